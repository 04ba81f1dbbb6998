"""Job: what slows a production job, from its operation table"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, print_json


def command(
    table: Annotated[Path, typer.Argument(help="Operation table: CSV, or Parquet with the extra `parquet`.")],
    as_json: JsonOption = False,
) -> None:
    """Replay a production job's operations with ideal durations: slowdown, by stage, dp rank and type.

    Example: trainsim job operations.csv
    """
    from simulator.formats.op_tables import read_op_table
    from simulator.study.job import study_job

    found = study_job(read_op_table(table))
    if as_json:
        print_json({"slowdown": found.slowdown, **asdict(found)})
        return
    typer.echo(
        f"step {found.traced_s:.4f} s traced, {found.replayed_s:.4f} s replayed, {found.ideal_s:.4f} s ideal"
    )
    typer.echo(f"slowdown S {found.slowdown:.4f}")
    for name, values in (("stage", found.by_stage), ("dp rank", found.by_dp_rank), ("type", found.by_optype)):
        typer.echo(f"kept as traced, by {name}:")
        for one, value in sorted(values.items(), key=lambda item: -item[1]):
            typer.echo(f"  {one:28} {value:.4f}")
