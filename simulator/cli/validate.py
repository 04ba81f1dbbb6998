"""Run published figures against ours and print the errors"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption, print_json, progress, show


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Sets; all if none is named.")] = None,
    rows: Annotated[bool, typer.Option("--rows/--totals", help="Print every row, or totals only.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Print name, published, ours and error of every row; exit 1 if a row misses its tolerance.

    Example: trainsim validate seeds
    """
    from simulator.report.validation_table import rows_table, totals_table
    from simulator.study.validation import find_set, summary, validation_sets

    chosen = names or sorted(validation_sets())
    tasks = [(name, task) for name in chosen for task in find_set(name)()]
    found: dict[str, list[object]] = {name: [] for name in chosen}
    with progress(len(tasks), "rows") as done:
        for number, (name, task) in enumerate(tasks):
            found[name].append(task())
            done(number + 1)
    every = [row for name in chosen for row in found[name]]
    failed = any(not row.ok for row in every)  # type: ignore[attr-defined]
    if as_json:
        print_json([{"set": name, **row.to_dict()} for name in chosen for row in found[name]])  # type: ignore[attr-defined]
    else:
        if rows:
            for name in chosen:
                show(rows_table(name, found[name]))  # type: ignore[arg-type]
        totals = [one for name in chosen for one in summary(name, found[name])]  # type: ignore[arg-type]
        if not (rows and chosen == ["seeds"]):
            show(totals_table(totals))
    if failed:
        raise typer.Exit(1)
