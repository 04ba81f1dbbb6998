"""Simulate a scenario: step time, MFU, and where each second goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    read_ranks,
    show,
    whole_file,
)

if TYPE_CHECKING:
    from simulator.timeline import Timeline


def command(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    as_json: JsonOption = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto (ui.perfetto.dev); .gz packs it.")
    ] = None,
    trace_format: Annotated[
        str,
        typer.Option(help="perfetto, or kineto: PyTorch profiler files, one a rank, in the folder --trace."),
    ] = "perfetto",
    trace_ranks: Annotated[str | None, typer.Option(help="Ranks in the trace, for instance 0,8,17.")] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the whole timeline, to be read back later (.npz).")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="auto, events or lanes.")] = None,
    allow_oom: AllowOom = False,
) -> None:
    """Simulate a scenario and print step time, MFU and the waterfall from peak to MFU.

    Example: trainsim simulate gpt2-xl-ddp --set overlap.grad_reduce=false --trace step.json
    """
    from simulator.errors import SpecError
    from simulator.study.simulate import load, simulate

    if trace_format not in ("perfetto", "kineto"):
        raise SpecError.of("--trace-format", f"'{trace_format}': expected perfetto or kineto")
    if trace_format == "perfetto":
        check_writable(trace)
    elif trace is None:
        raise SpecError.of("--trace-format", "kineto: expected --trace with the folder to write to")
    check_writable(save)
    changes = overrides(settings)
    if engine is not None:
        changes["run.engine"] = engine
    loaded = load(scenario, changes)
    ranks = read_ranks("--trace-ranks", trace_ranks, loaded.cluster.gpus)
    with progress(loaded.run.steps, "steps") as done:
        result = simulate(
            loaded, allow_oom=allow_oom, links=trace is not None or save is not None, progress=done
        )
    if trace is not None and trace_format == "kineto":
        _write_kineto(trace, result.timeline, ranks, loaded.cluster.gpus)
    elif trace is not None:
        from simulator.report.trace import choose, write_trace

        with whole_file(trace) as stream:
            chosen = choose(result.timeline, ranks)
            write_trace(result.timeline, stream, chosen, compress=trace.suffix == ".gz")
    if save is not None:
        from simulator.analysis.result import lane_peaks
        from simulator.report import store

        peaks = lane_peaks(loaded, result.timeline)
        with whole_file(save) as stream:
            store.save(store.Saved(result.timeline, peaks, loaded.run.warmup, result.to_dict()), stream)
    if as_json:
        print_json(result.to_dict())
        return
    from simulator.report.table import page

    show(page(result))


def _write_kineto(folder: Path, timeline: Timeline, ranks: list[int] | None, world: int) -> None:
    """One file a rank, each whole or not at all."""
    from simulator.errors import SpecError
    from simulator.report.kineto_out import group_members, write_rank
    from simulator.report.trace import choose

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecError.of(str(folder), f"no folder to write to: {error.strerror}") from error
    chosen, members = choose(timeline, ranks), group_members(timeline)
    for lane in chosen.lanes:
        with whole_file(folder / f"rank{timeline.ranks[lane].rank}.json") as stream:
            write_rank(timeline, stream, lane, chosen, world, members)
