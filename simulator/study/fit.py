"""How well a scenario fits into memory, what to change if it does not, and what each change costs.

Every change is worked out, not guessed: its memory, and, if it helps, its step time by running one step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.errors import SpecError
from simulator.model.memory import StageMemory
from simulator.scenario.consistency import check
from simulator.spec import LayerList, Recompute, Scenario
from simulator.study.memory import capacity_bytes, memory_by_stage
from simulator.study.simulate import simulate

#: Combinations that are run where no single change fits.
MOST_RUNS: Final = 8

#: From what is given up least to most.
MODES: Final = ("none", "selective", "full")
_SHARDINGS: Final = ("ddp", "zero-1", "zero-2", "fsdp")

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """What to set, the fullest rank's memory with it, and the step's time (None: not run)."""

    settings: Settings
    peak_bytes: float
    fits: bool
    step_time_s: float | None = None

    @property
    def name(self) -> str:
        """As `--set` takes it.

        >>> Change({"recompute": "full", "batch.micro_batch": 2}, 0.0, True).name
        'recompute=full batch.micro_batch=2'
        """
        return " ".join(f"{path}={value}" for path, value in self.settings.items())

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": dict(self.settings),
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "step_time_s": self.step_time_s,
        }


@dataclass(frozen=True, slots=True)
class Fit:
    """A scenario's memory. `margin_bytes`: capacity less peak; below 0 it does not fit.

    `changes`: those that save memory, run if they fit, the fastest first. `micro_batches`: sizes of a
    micro-batch, each with the least recomputation that fits; the fastest is where a smaller micro-batch and
    recomputation break even.
    """

    memory: StageMemory
    capacity_bytes: float
    step_time_s: float | None
    changes: tuple[Change, ...]
    micro_batches: tuple[Change, ...]

    @property
    def margin_bytes(self) -> float:
        return self.capacity_bytes - self.memory.peak_bytes

    @property
    def fits(self) -> bool:
        return self.margin_bytes >= 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "fits": self.fits,
            "stage": self.memory.stage,
            "peak_bytes": self.memory.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "margin_bytes": self.margin_bytes,
            "items": dict(self.memory.items),
            "step_time_s": self.step_time_s,
            "changes": [change.to_dict() for change in self.changes],
            "micro_batches": [change.to_dict() for change in self.micro_batches],
        }


def fit(scenario: Scenario, *, run: bool = True, progress: Callable[[], None] | None = None) -> Fit:
    """Memory of the fullest rank, and changes with their prices (not run: memory only).

    `progress` is called after each run.
    """
    memory = _fullest(scenario)
    runner = _Runner(run, progress or (lambda: None))
    changes = _helpful(scenario, memory, len(_KINDS))
    return Fit(
        memory=memory,
        capacity_bytes=capacity_bytes(scenario),
        step_time_s=runner.step_s(scenario),
        changes=tuple(sorted((runner.price(*one) for one in changes), key=_order)),
        micro_batches=tuple(runner.price(*one) for one in _sizes(scenario)),
    )


@dataclass(frozen=True, slots=True)
class _Runner:
    run: bool
    progress: Callable[[], None]

    def step_s(self, scenario: Scenario) -> float | None:
        """One step, from rest."""
        if not self.run:
            return None
        short = replace(scenario, run=replace(scenario.run, steps=1, warmup=0))
        time_s = simulate(short, allow_oom=True).step_time_s
        self.progress()
        return time_s

    def price(self, settings: Settings, changed: Scenario, peak_bytes: float) -> Change:
        fits = peak_bytes <= capacity_bytes(changed)
        return Change(settings, peak_bytes, fits, self.step_s(changed) if fits else None)


def _order(change: Change) -> tuple[bool, float, float]:
    return not change.fits, change.step_time_s or 0.0, change.peak_bytes


def _fullest(scenario: Scenario) -> StageMemory:
    return max(memory_by_stage(scenario), key=lambda stage: stage.peak_bytes)


def _peak(scenario: Scenario) -> float | None:
    """None where the parts do not fit together."""
    try:
        return None if check(scenario) else _fullest(scenario).peak_bytes
    except SpecError:
        return None


Candidate = tuple[Settings, Scenario, float]


def enough(scenario: Scenario, most: int = 2) -> tuple[str, ...]:
    """Changes that let a scenario fit, at most so many together, as `--set` takes them; nothing is run."""
    capacity = capacity_bytes(scenario)
    found = _helpful(scenario, _fullest(scenario), most)
    return tuple(Change(settings, peak, True).name for settings, _, peak in found if peak <= capacity)


def _helpful(scenario: Scenario, memory: StageMemory, most: int) -> list[Candidate]:
    """Single changes that save memory; where none is enough, combinations of at most so many that are."""
    capacity = capacity_bytes(scenario)
    singles = [
        (settings, changed, peak)
        for kind in _KINDS
        for settings, changed in kind(scenario)
        if (peak := _peak(changed)) is not None and peak < memory.peak_bytes
    ]
    if memory.peak_bytes <= capacity or any(peak <= capacity for _, _, peak in singles):
        return singles
    for kinds in range(2, most + 1):
        found = list(_combined(scenario, kinds, capacity))
        if found:  # those that leave least unused have given up least
            return [*singles, *sorted(found, key=lambda one: -one[2])[:MOST_RUNS]]
    return singles


def _combined(scenario: Scenario, kinds: int, capacity: float) -> Iterator[Candidate]:
    """Changes of so many kinds together that fit."""
    for chosen in itertools.combinations(_KINDS, kinds):
        started: list[tuple[Settings, Scenario]] = [({}, scenario)]
        for kind in chosen:
            started = [({**a, **b}, new) for a, old in started for b, new in kind(old)]
        for settings, changed in started:
            peak = _peak(changed)
            if peak is not None and peak <= capacity:
                yield settings, changed, peak


# ----------------------------------------------------------------------------------- kinds of changes


def _recompute(scenario: Scenario) -> Iterator[tuple[Settings, Scenario]]:
    if isinstance(scenario.model, LayerList):
        return
    now = scenario.recompute.kind
    for mode in MODES[1:]:
        if mode != now and not (now == "full" and mode == "selective"):
            yield {"recompute": mode}, replace(scenario, recompute=Recompute(mode))


def _micro_batch(scenario: Scenario) -> Iterator[tuple[Settings, Scenario]]:
    size = scenario.batch.micro_batch // 2
    while size >= 1:
        yield _with_micro_batch(scenario, size)
        size //= 2


def _with_micro_batch(scenario: Scenario, size: int) -> tuple[Settings, Scenario]:
    changed = replace(scenario, batch=replace(scenario.batch, micro_batch=size))
    return {"batch.micro_batch": size}, changed


def _sharding(scenario: Scenario) -> Iterator[tuple[Settings, Scenario]]:
    now = scenario.parallelism.sharding
    if now not in _SHARDINGS:
        return
    for name in _SHARDINGS[_SHARDINGS.index(now) + 1 :]:
        yield (
            {"parallelism.sharding": name},
            replace(scenario, parallelism=replace(scenario.parallelism, sharding=name)),  # type: ignore[arg-type]
        )


def _split(axis: str) -> Callable[[Scenario], Iterator[tuple[Settings, Scenario]]]:
    """Twice and more of an axis, out of the data-parallel ranks."""

    def changes(scenario: Scenario) -> Iterator[tuple[Settings, Scenario]]:
        parallelism = scenario.parallelism
        times = 2
        while parallelism.dp % times == 0 and getattr(parallelism, axis) * times <= 8:
            sizes: dict[str, Any] = {axis: getattr(parallelism, axis) * times, "dp": parallelism.dp // times}
            settings = {f"parallelism.{name}": size for name, size in sizes.items()}
            if axis == "pp" and parallelism.layers_per_stage:
                sizes["layers_per_stage"] = ()
                settings["parallelism.layers_per_stage"] = "[]"
            yield settings, replace(scenario, parallelism=replace(parallelism, **sizes))
            times *= 2

    return changes


def _offload(scenario: Scenario) -> Iterator[tuple[Settings, Scenario]]:
    """A half and all of a stage's layers, where it has one part."""
    if isinstance(scenario.model, LayerList) or scenario.parallelism.virtual_stages > 1:
        return
    layers = -(-scenario.model.layers // scenario.parallelism.pp)
    for count in sorted({layers // 2, layers}):
        if count > scenario.offload.layers:
            yield (
                {"offload.layers": count},
                replace(scenario, offload=replace(scenario.offload, layers=count)),
            )


_KINDS: Final[tuple[Callable[[Scenario], Iterator[tuple[Settings, Scenario]]], ...]] = (
    _recompute, _micro_batch, _sharding, _split("tp"), _split("pp"), _offload,
)  # fmt: skip


def _sizes(scenario: Scenario) -> Iterator[Candidate]:
    """Micro-batches of 1, 2, 4, ... with the least recomputation that fits."""
    if isinstance(scenario.model, LayerList):
        return
    capacity = capacity_bytes(scenario)
    size = 1
    while size * scenario.parallelism.dp <= scenario.batch.global_batch:
        settings, smaller = _with_micro_batch(scenario, size)
        for mode in MODES:
            changed = replace(smaller, recompute=Recompute(mode))
            peak = _peak(changed)
            if peak is not None and peak <= capacity:
                yield {**settings, "recompute": mode}, changed, peak
                break
        else:
            return
        size *= 2
