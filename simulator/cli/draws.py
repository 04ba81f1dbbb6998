"""Draw a scenario's faults many times over"""

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
    draws: Annotated[int, typer.Option(min=1, help="How many, each with a seed of its own.")] = 200,
    settings: SetOption = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Step times over many draws of where faults fall and how large they turn out.

    Draw n is the scenario with run.seed increased by n; the answer is the same with any --processes.

    Example: trainsim draws jitter --draws 50
    """
    from simulator.study.monte_carlo import monte_carlo
    from simulator.study.simulate import load

    loaded = load(scenario, overrides(settings))
    with progress(draws, "draws") as done:
        found = monte_carlo(loaded, draws, processes=processes, progress=done)
    if as_json:
        print_json(found.to_dict())
        return
    from simulator.report.draws_table import table

    show(table(found, scenario))
