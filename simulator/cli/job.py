"""Job: what slows a production job, from its operation table"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, whole_file


def command(
    table: Annotated[Path, typer.Argument(help="Operation table: CSV, or Parquet with the extra `parquet`.")],
    svg: Annotated[
        Path | None, typer.Option(help="Write the heat map, dp rank by stage, as a picture.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a production job's operations with ideal durations: what it suffers from, and who holds it.

    Example: trainsim job operations.csv --svg heat.svg
    """
    from simulator.formats.op_tables import read_op_table
    from simulator.report.job_report import draw, report
    from simulator.study.job import study_job

    check_writable(svg)
    found = study_job(read_op_table(table))
    if svg is not None:
        with whole_file(svg) as stream:
            stream.write(draw(found).encode())
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(report(found))
