"""Explain a step: where the time went, what each cause is worth"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    AllowOom,
    JsonOption,
    SetOption,
    check_writable,
    overrides,
    print_json,
    progress,
    read_ranks,
    whole_file,
)

if TYPE_CHECKING:
    from simulator.study.finding import Diagnosis


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="Scenario, by file or bundled name; saved run; profiler trace or folder of them."
        ),
    ],
    settings: SetOption = None,
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="Exit 1 if it holds, as in mfu<0.38 or step_s>1.2.")
    ] = None,
    as_json: JsonOption = False,
    worth_by: Annotated[
        str | None,
        typer.Option("--worth", help="Scenarios: price causes by single (default), cumulative or shapley."),
    ] = None,
    with_acceptance: Annotated[
        bool, typer.Option("--with-acceptance", help="Scenarios: find the layer that acceptance cannot see.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page too: waterfall, timeline, ranks by step, causes.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Ranks of the page's timeline, for instance 0,8,17.")
    ] = None,
    allow_oom: AllowOom = False,
    model: Annotated[str | None, typer.Option(help="Traces: the model, for MFU.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Traces: the GPU, for MFU.")] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Traces: tokens of a step, all ranks together, for MFU.")
    ] = None,
) -> None:
    """Read a timeline, simulated, saved or a profiler's, in a fixed order; rank the causes by worth.

    Example: trainsim diagnose slow-node --fail-if "mfu<0.5"
    """
    from simulator.report.diagnosis import report
    from simulator.study.conditions import figure, holds, read_condition

    conditions = [read_condition(text) for text in fail_if or []]
    check_writable(html)
    chosen = read_ranks("--ranks", ranks)
    if worth_by is not None:
        check_worth(worth_by, target)
    check_options(target, settings, {"--model": model, "--gpu": gpu, "--tokens-per-step": tokens_per_step})
    if with_acceptance:
        check_runs_again("--with-acceptance", target)
    if is_trace(target):
        from simulator.study.trace_diagnosis import diagnose_traces

        found = diagnose_traces(Path(target), model=model, gpu=gpu, tokens_per_step=tokens_per_step)
    elif is_saved_run(target):
        from simulator.study.diagnose import diagnose_saved

        found = diagnose_saved(Path(target))
    else:
        found = _of_scenario(target, overrides(settings), worth_by or "single", allow_oom)
    plain, text = found.to_dict(), report(found)
    if with_acceptance:
        from simulator.report.acceptance_table import elimination
        from simulator.study.acceptance_layers import eliminate
        from simulator.study.simulate import load

        layers = eliminate(load(target, dict(overrides(settings))), result=found.result)
        plain["with_acceptance"] = layers.to_dict()
        text += "\n\n" + elimination(layers)
    if html is not None:
        from simulator.report.page import page

        drawn = page(found, chosen).encode()
        with whole_file(html) as stream:
            stream.write(drawn)
    if as_json:
        print_json(plain)
    else:
        print(text)
    met = [condition for condition in conditions if holds(condition, plain)]
    if met:
        import sys

        for name, sign, value in met:
            print(f"fails: {name} is {figure(name, plain):.4g}, {sign} {value:g}", file=sys.stderr)
        raise typer.Exit(1)


def _of_scenario(target: str, changes: dict[str, str], method: str, allow_oom: bool) -> Diagnosis:
    from simulator.study.diagnose import diagnose
    from simulator.study.simulate import load

    loaded = load(target, dict(changes))
    with progress(1, "runs without a cause") as show:
        return diagnose(loaded, method=method, allow_oom=allow_oom, progress=show)


def check_options(target: str, settings: list[str] | None, of_traces: Mapping[str, object]) -> None:
    """Raise SpecError for options that the target cannot have, before anything runs."""
    from simulator.errors import SpecError

    if settings and (is_trace(target) or is_saved_run(target)):
        raise SpecError.of("--set", f"'{target}' is no scenario: nothing to override")
    given = [name for name, value in of_traces.items() if value is not None]
    if given and not is_trace(target):
        raise SpecError.of(given[0], f"'{target}' is no profiler trace: it knows its own")


def is_saved_run(target: str) -> bool:
    """Whether it is what `trainsim simulate --save` wrote, by its name."""
    return target.endswith(".npz")


def check_worth(method: str, target: str) -> None:
    """Raise SpecError, before any run, for a way that there is not, or a target that cannot run again."""
    from simulator.errors import SpecError
    from simulator.study.worth import METHODS

    if method not in METHODS:
        raise SpecError.of("--worth", f"'{method}': expected one of {', '.join(METHODS)}")
    check_runs_again("--worth", target)


def check_runs_again(option: str, target: str) -> None:
    """Raise SpecError for what is no scenario."""
    from simulator.errors import SpecError

    if is_trace(target) or is_saved_run(target):
        raise SpecError.of(option, f"'{target}': expected a scenario; nothing else can run again")


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
