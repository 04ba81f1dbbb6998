"""Explain a step: where the time went, what each cause is worth"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import (
    AllowOom,
    JsonOption,
    SetOption,
    overrides,
    print_json,
    progress,
)


def command(
    target: Annotated[
        str, typer.Argument(help="Scenario, by file or bundled name; profiler trace or folder of them.")
    ],
    settings: SetOption = None,
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="Exit 1 if it holds, as in mfu<0.38 or step_s>1.2.")
    ] = None,
    as_json: JsonOption = False,
    worth_by: Annotated[
        str | None,
        typer.Option("--worth", help="Scenarios: remove causes too by single, cumulative or shapley."),
    ] = None,
    allow_oom: AllowOom = False,
    model: Annotated[str | None, typer.Option(help="Traces: the model, for MFU.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Traces: the GPU, for MFU.")] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Traces: tokens of a step, all ranks together, for MFU.")
    ] = None,
) -> None:
    """Read a timeline, simulated or a real profiler trace, in a fixed order; rank the causes by worth.

    Example: trainsim diagnose slow-node --fail-if "mfu<0.5"
    """
    from simulator.report.diagnosis import report
    from simulator.study.conditions import holds, read_condition
    from simulator.study.diagnose import REMOVALS, diagnose
    from simulator.study.simulate import load

    conditions = [read_condition(text) for text in fail_if or []]
    if worth_by is not None:
        check_worth(worth_by, target)
    if is_trace(target):
        from simulator.report.trace_diagnosis import report as trace_report
        from simulator.study.trace_diagnosis import diagnose_traces

        traced = diagnose_traces(Path(target), model=model, gpu=gpu, tokens_per_step=tokens_per_step)
        plain, text = traced.to_dict(), trace_report(traced)
    else:
        loaded = load(target, dict(overrides(settings)))
        with progress(len(REMOVALS), "causes") as done:
            found = diagnose(loaded, allow_oom=allow_oom, progress=done)
        plain, text = found.to_dict(), report(found)
        if worth_by is not None:
            from simulator.report.diagnosis import worth_table
            from simulator.study.worth import worth

            priced = worth(loaded, worth_by)
            plain["worth"] = priced.to_dict()
            text += "\n\n" + worth_table(priced)
    if as_json:
        print_json(plain)
    else:
        print(text)
    met = [condition for condition in conditions if holds(condition, plain)]
    if met:
        import sys

        for name, sign, value in met:
            print(f"fails: {name} is {plain[name]:.4g}, {sign} {value:g}", file=sys.stderr)
        raise typer.Exit(1)


def check_worth(method: str, target: str) -> None:
    """Raise SpecError, before any run, for a way that there is not, or a target that cannot run again."""
    from simulator.errors import SpecError
    from simulator.study.worth import METHODS

    if method not in METHODS:
        raise SpecError.of("--worth", f"'{method}': expected one of {', '.join(METHODS)}")
    if is_trace(target):
        raise SpecError.of("--worth", f"'{target}': expected a scenario; a trace cannot run again")


def is_trace(target: str) -> bool:
    """Whether it is a profiler trace, or a folder of them; a scenario may be written as JSON too."""
    path = Path(target)
    if path.is_dir() or target.endswith(".gz"):
        return True
    if not (target.endswith(".json") and path.is_file()):
        return target.endswith(".json")
    with path.open("rb") as stream:
        head = stream.read(1 << 20)
    return not (b'"model"' in head and b'"cluster"' in head and b'"ph"' not in head)
