"""Run published figures against ours and print the errors"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, progress, show, whole_file


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Sets; all if none is named.")] = None,
    rows: Annotated[
        bool | None, typer.Option("--rows/--totals", help="Print every row; of all sets, totals only.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Bias by GPU, size and sequence length (HTML).")] = None,
    markdown: Annotated[bool, typer.Option(help="Print the totals as the README's table.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Processes; the figures are the same.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Print name, published, ours and error of every row, and totals; exit 1 if a row misses its tolerance.

    Example: trainsim validate korthikanti-2022 --plot bias.html
    """
    from simulator.report.validation_table import markdown_table, rows_table, totals_table
    from simulator.study.validation import Row, find_set, run_tasks, summary, validation_sets

    if plot is not None:
        from simulator.report.sweep_plot import require_plotly

        check_writable(plot)
        require_plotly()
    chosen = names or list(validation_sets())
    owners = [(name, task) for name in chosen for task in find_set(name)()]
    with progress(len(owners), "rows") as done:
        every = run_tasks([task for _, task in owners], processes, done)
    found: dict[str, list[Row]] = {name: [] for name in chosen}
    for (name, _), row in zip(owners, every, strict=True):
        found[name].append(row)
    totals = [one for name in chosen for one in summary(name, found[name])]
    if plot is not None:
        from simulator.report.validation_plot import page

        with whole_file(plot) as stream:
            stream.write(page(found).encode())
    if as_json:
        print_json([{"set": name, **row.to_dict()} for name in chosen for row in found[name]])
    elif markdown:
        typer.echo(markdown_table(totals))
    else:
        if rows or (rows is None and names):
            for name in chosen:
                show(rows_table(name, found[name]))
        if chosen != ["seeds"]:
            show(totals_table(totals))
    if any(not row.ok for row in every):
        raise typer.Exit(1)
