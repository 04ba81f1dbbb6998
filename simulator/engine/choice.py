"""Which engine runs a setting, and the run itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulator.engine.cast import Cast, unfolded
from simulator.engine.setting import Setting
from simulator.errors import SpecError
from simulator.faults import Resource
from simulator.timeline import Timeline
from simulator.units import show_bytes

#: Up to so many operations (all steps of all lanes) the event engine runs under `auto`: half a minute.
MOST_OPERATIONS: Final = 600_000

#: Bytes that the event engine keeps of an operation, rows and objects.
_BYTES_OF_OPERATION: Final = 1100.0

#: Spans that the lanes engine keeps at most.
MOST_SPANS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Choice:
    """`engine`: "events" or "lanes"; `why`: a sentence for people."""

    engine: str
    why: str


def choose_engine(setting: Setting, cast: Cast) -> Choice:
    """`auto` takes the event engine unless private draws keep so many ranks apart that it would be slow.

    Raises SpecError, before anything runs, where the engine asked for would not fit in run.memory.
    """
    wanted = setting.scenario.run.engine
    lanes, operations = len(cast.lanes), _operations(setting, cast)
    about = f"{lanes} {'lane' if lanes == 1 else 'lanes'} for {setting.mesh.ranks} ranks"
    if wanted == "events":
        _fits(setting, operations)
        return Choice("events", f"asked for; {about}")
    if wanted == "lanes":
        return Choice("lanes", f"asked for; {about}")
    if operations <= MOST_OPERATIONS:
        return Choice("events", f"{about}: few enough for the event engine")
    return Choice("lanes", f"{about}: too many for the event engine, {operations:,} operations")


def _operations(setting: Setting, cast: Cast) -> int:
    by_role = [len(script.step(0).operations) for script in setting.scripts]
    return setting.steps * sum(by_role[lane.role] for lane in cast.lanes)


def _fits(setting: Setting, operations: int) -> None:
    needed, allowed = operations * _BYTES_OF_OPERATION, setting.scenario.run.memory_bytes
    if needed > allowed:
        raise SpecError.of(
            "run.engine",
            f"events: {operations:,} operations would keep about {show_bytes(needed)}, more than "
            f"run.memory ({show_bytes(allowed)}); engine: lanes fits, fewer run.steps or more "
            "run.memory might",
        )


def _noise_fits(setting: Setting) -> None:
    resources = [r for r in (Resource.SM, Resource.HOST) if setting.noises(r)]
    launches = sum(len(script.step(0).launch_items) for script in setting.scripts)
    ranks = setting.mesh.ranks // len(setting.scripts)
    needed = 2.0 * 8.0 * launches * ranks * len(resources)  # draws and factors
    allowed = setting.scenario.run.memory_bytes
    if needed > allowed:
        raise SpecError.of(
            "run.memory",
            f"{show_bytes(allowed)}: the draws of a step need {show_bytes(needed)}; raise run.memory, "
            "or give the noise to fewer ranks",
        )


def run(setting: Setting, *, links: bool = False, progress: Callable[[int], None] | None = None) -> Timeline:
    """Simulate all steps with the engine that the scenario asks for, or the fitting one.

    The timeline's `meta` says which engine ran ("engine") and why ("engine_why").
    """
    from simulator.engine.fold import fold

    fold_it = setting.scenario.run.fold or setting.scenario.run.engine == "lanes"
    cast = fold(setting, all_links=links) if fold_it else unfolded(setting)
    choice = choose_engine(setting, cast)
    if choice.engine == "lanes":
        return run_lanes(setting, choice, progress)
    from simulator.engine import events

    return events.run(cast, links=links, about={"engine_why": choice.why}, progress=progress)


def run_lanes(setting: Setting, choice: Choice, progress: Callable[[int], None] | None = None) -> Timeline:
    """Simulate with arrays; spans are kept of some ranks of every class."""
    from simulator.engine.events import without_garbage_collection

    _noise_fits(setting)
    with without_garbage_collection():
        return _run_lanes(setting, choice, progress)


def _run_lanes(setting: Setting, choice: Choice, progress: Callable[[int], None] | None) -> Timeline:
    from simulator.engine.calm import run_calm
    from simulator.engine.lane_axes import Axes
    from simulator.engine.lane_noise import LaneNoise
    from simulator.engine.lane_record import LaneRecorder, choose
    from simulator.engine.lanes import Lanes

    axes = Axes(setting.mesh)
    noise = LaneNoise(setting, axes)
    noise.ahead(0)
    calm = run_calm(setting, axes)
    spans = setting.steps * max(len(script.step(0).operations) for script in setting.scripts)
    shown = choose(calm, setting, max(1, MOST_SPANS // max(1, spans)))
    recorder = LaneRecorder(setting, axes, calm, shown)
    lanes = Lanes(setting, calm, recorder, noise=noise)
    for step in range(setting.steps):
        recorder.steps(lanes.step(step).ends)
        if progress is not None:
            progress(step + 1)
    recorder.finish([stage.host for stage in lanes.stages], setting.steps - 1)
    note = (
        "collectives share links or take SMs and HBM from kernels here: their durations come from the "
        "folded event run without private noise"
        if calm.contends
        else "nothing contends: durations are exact"
    )
    return recorder.timeline({"engine": "lanes", "engine_why": f"{choice.why}; {note}"})
