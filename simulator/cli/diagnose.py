"""Explain a step: where the time went, what each cause is worth"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    AllowOom,
    JsonOption,
    ScenarioArgument,
    SetOption,
    overrides,
    print_json,
    progress,
)


def command(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="Exit 1 if it holds, as in mfu<0.38 or step_s>1.2.")
    ] = None,
    as_json: JsonOption = False,
    allow_oom: AllowOom = False,
) -> None:
    """Read a scenario's timeline in a fixed order and rank the causes by what removing each is worth.

    Example: trainsim diagnose slow-node --fail-if "mfu<0.5"
    """
    from simulator.report.diagnosis import report
    from simulator.study.conditions import holds, read_condition
    from simulator.study.diagnose import REMOVALS, diagnose
    from simulator.study.simulate import load

    conditions = [read_condition(text) for text in fail_if or []]
    loaded = load(scenario, dict(overrides(settings)))
    with progress(len(REMOVALS), "causes") as done:
        found = diagnose(loaded, allow_oom=allow_oom, progress=done)
    plain = found.to_dict()
    if as_json:
        print_json(plain)
    else:
        print(report(found))
    met = [condition for condition in conditions if holds(condition, plain)]
    if met:
        import sys

        for name, sign, value in met:
            print(f"fails: {name} is {plain[name]:.4g}, {sign} {value:g}", file=sys.stderr)
        raise typer.Exit(1)
