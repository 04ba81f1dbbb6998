"""What a GPU holds, the margin, and what to change, with prices"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    JsonOption,
    ScenarioArgument,
    SetOption,
    overrides,
    print_json,
    progress,
    show,
)


def command(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Price each change by running a step with it.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Memory of the fullest rank, its margin, and changes that save memory with their price in step time.

    Also micro-batches against recomputation: each size with the least recomputation that fits.

    Example: trainsim memory gpt2-xl-ddp --no-run
    """
    from simulator.study.fit import fit
    from simulator.study.simulate import load

    loaded = load(scenario, overrides(settings))
    with progress(0, "runs") as done:
        count = iter(range(1, 1000))
        found = fit(loaded, run=run, progress=lambda: done(next(count)))
    if as_json:
        print_json(found.to_dict())
        return
    from simulator.report.fit_table import table

    show(table(found))
