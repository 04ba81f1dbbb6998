"""Run a scenario over a grid of fields"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import (
    AllowOom,
    JsonOption,
    ScenarioArgument,
    SetOption,
    check_writable,
    overrides,
    print_json,
    progress,
    show,
    whole_file,
)


def command(
    scenario: ScenarioArgument,
    vary: Annotated[
        list[str], typer.Option(metavar="A.B=X,Y,Z", help="A field and its values; repeat for a grid.")
    ],
    settings: SetOption = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
    csv: Annotated[Path | None, typer.Option(help="Write a CSV file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw step time and MFU as a page of HTML (extra: plot).")
    ] = None,
    as_json: JsonOption = False,
    allow_oom: AllowOom = False,
) -> None:
    """Simulate every point of a grid; points that do not fit or cannot be stand as rows with the reason.

    Example: trainsim sweep gpt2-xl-ddp --vary overlap.bucket_size="1 MiB,25 MiB,400 MiB,8 GiB"
    """
    import math

    from simulator.study.sweep import read_vary, sweep, to_csv

    for file in (csv, plot):
        check_writable(file)
    if plot is not None:
        from simulator.report.sweep_plot import page, require_plotly

        require_plotly()
    grid = read_vary(vary)
    with progress(math.prod(len(values) for values in grid.values()), "points") as done:
        points = sweep(
            scenario, overrides(settings), grid, processes=processes, allow_oom=allow_oom, progress=done
        )  # fmt: skip
    if csv is not None:
        with whole_file(csv) as stream:
            stream.write(to_csv(points).encode())
    if plot is not None:
        with whole_file(plot) as stream:
            stream.write(page(points, f"{scenario}: {', '.join(grid)}").encode())
    if as_json:
        print_json([point.to_dict() for point in points])
        return
    from simulator.report.sweep_table import table

    show(table(points))
