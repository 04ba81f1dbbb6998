"""Many draws of one scenario: where faults fall, and how large they turn out, by one seed a draw.

Draw `n` is the scenario with `run.seed` increased by n, so that any draw can be looked at by itself:
`trainsim simulate FILE --set run.seed=...`. Where only effects on ranks differ between draws, the lanes
engine runs many of them at once as its leading axis, with the collectives of one calm run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.spec import Scenario

if TYPE_CHECKING:
    from simulator.engine.calm import Calm
    from simulator.engine.setting import Setting
    from simulator.timeline import Timeline

Floats = NDArray[np.float64]

#: Numbers in an array of clocks that runs fastest: in the second-level cache, and small enough for the
#: allocator to use its memory again (glibc maps blocks of 128 KiB and more afresh).
_ENTRIES: Final = 8_192

#: Draws that a process takes at a time, at most.
_MOST_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Draws:
    """Step times of many draws.

    `step_time_s`: of each draw, mean over its measured steps, seconds; `seeds`: their run.seed;
    `healthy_s`: the step without any fault; `tokens_per_step` of the whole job; `how`: the engine's way.
    """

    seeds: tuple[int, ...]
    step_time_s: tuple[float, ...]
    healthy_s: float
    tokens_per_step: float
    how: str

    def quantile(self, part: float) -> float:
        """The step time that a share `part` of the draws stays within, seconds."""
        return float(np.quantile(self.step_time_s, part))

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.step_time_s))

    @property
    def worst_seed(self) -> int:
        """The seed of the slowest draw, the first of equals."""
        return self.seeds[int(np.argmax(self.step_time_s))]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        quantiles = {f"p{100 * part:g}": self.quantile(part) for part in (0.05, 0.5, 0.95, 0.99)}
        return {
            "draws": len(self.seeds),
            "healthy_s": self.healthy_s,
            "mean_s": self.mean_s,
            "standard_deviation_s": float(np.std(self.step_time_s)),
            **{f"{name}_s": value for name, value in quantiles.items()},
            "worst_s": max(self.step_time_s),
            "worst_seed": self.worst_seed,
            "tokens_per_s": self.tokens_per_step / self.mean_s,
            "how": self.how,
            "seeds": list(self.seeds),
            "step_time_s": list(self.step_time_s),
        }


def monte_carlo(
    scenario: Scenario,
    draws: int,
    *,
    processes: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Draws:
    """Run `draws` draws; the same answer with any number of processes.

    Raises SpecError for a scenario without faults or data that are drawn, for all draws would be one.
    """
    seeds = tuple(scenario.run.seed + number for number in range(draws))
    first = _Runner(scenario)
    if not first.random(seeds[:3]):
        raise SpecError.of("faults", "nothing is drawn at random: every draw would be the same run")
    chunk = first.chunk(min(draws, _MOST_AT_ONCE))
    tasks = [seeds[start : start + chunk] for start in range(0, draws, chunk)]
    times: list[float] = []
    for part in _map(first, tasks, processes):
        times += part
        if progress is not None:
            progress(len(times))
    batch = scenario.batch
    return Draws(
        seeds, tuple(times), first.healthy_s(), float(batch.global_batch * batch.sequence_length), first.how
    )


def _map(first: _Runner, tasks: Sequence[tuple[int, ...]], processes: int) -> Iterator[list[float]]:
    if processes <= 1 or len(tasks) == 1:
        yield from map(first.run, tasks)
        return
    with ProcessPoolExecutor(processes, initializer=_prepare, initargs=(first.scenario,)) as pool:
        yield from pool.map(_run, tasks)


_runner: _Runner | None = None  # of a worker process


def _prepare(scenario: Scenario) -> None:
    global _runner  # noqa: PLW0603  # a worker process builds its setting once
    _runner = _Runner(scenario)


def _run(seeds: tuple[int, ...]) -> list[float]:
    assert _runner is not None
    return _runner.run(seeds)


class _Runner:
    """Runs draws of one scenario."""

    def __init__(self, scenario: Scenario):
        from simulator.engine.lane_axes import Axes
        from simulator.study.simulate import make_setting

        self.scenario = scenario
        self.setting = make_setting(scenario)
        self._axes = Axes(self.setting.mesh)
        self._together = self._only_ranks_differ(self.setting)
        self._calm: Calm | None = None
        self._warmup = min(scenario.run.warmup, scenario.run.steps - 1)

    @property
    def how(self) -> str:
        """For people."""
        if self._together:
            return "lanes engine, many draws at once; collectives from the run without faults of ranks"
        return "each draw a run of its own: what is drawn touches links, kernels or data"

    @staticmethod
    def _hashed(setting: Setting) -> bool:
        """Whether the seed also decides which ways flows take."""
        return getattr(setting.fabric.parameters, "ecmp", "") == "hashed"

    @classmethod
    def _only_ranks_differ(cls, setting: Setting) -> bool:
        from simulator.faults import Factor, Pause, Resource

        if setting.draws_data or cls._hashed(setting):
            return False
        return all(
            isinstance(effect, Pause) or (isinstance(effect, Factor) and effect.resource is not Resource.LINK)
            for effect in setting.effects
        )

    def random(self, seeds: Sequence[int]) -> bool:
        """Whether draws can differ at all."""
        from simulator.faults import Noise

        if self.setting.draws_data or self._hashed(self.setting):
            return True
        drawn = [self._drawn(seed).effects for seed in seeds]
        return any(isinstance(effect, Noise) for effect in drawn[0]) or any(
            effects != drawn[0] for effects in drawn
        )

    def chunk(self, most: int) -> int:
        """Draws to run at once."""
        if not self._together:
            return 1
        ranks = max(1, self.setting.mesh.ranks // len(self.setting.scripts))
        per_node = max(1, int(np.bincount(self.setting.node_of_rank).max()))
        return max(1, min(most, _ENTRIES * per_node // ranks))

    def _drawn(self, seed: int) -> Setting:
        from simulator.engine.setting import effects_of

        scenario, setting = self._seeded(seed), self.setting
        effects = effects_of(scenario, setting.mesh, setting.fabric, setting.place)
        return replace(setting, scenario=scenario, effects=effects, _noise={}, _load_times={})

    def _seeded(self, seed: int) -> Scenario:
        return replace(self.scenario, run=replace(self.scenario.run, seed=seed))

    def healthy_s(self) -> float:
        """The step without any fault, seconds."""
        from simulator.engine import run

        return self._mean(run(replace(self.setting, effects=(), _noise={}, _load_times={})))

    def run(self, seeds: Sequence[int]) -> list[float]:
        """Mean step time of each draw."""
        if not self._together:
            return [self._alone(seed) for seed in seeds]
        from simulator.engine.calm import run_calm
        from simulator.engine.events import without_garbage_collection
        from simulator.engine.lanes import Lanes

        with without_garbage_collection():
            if self._calm is None:
                self._calm = run_calm(self.setting, self._axes)
            effects = [self._drawn(seed).effects for seed in seeds]
            lanes = Lanes(self.setting, self._calm, samples=effects)
            ends = [np.zeros(len(seeds))]
            for step in range(self.setting.steps):
                ends.append(self._over_ranks(lanes.step(step).ends, len(seeds)))
        measured = self.setting.steps - self._warmup
        return ((ends[-1] - ends[self._warmup]) / measured).tolist()  # type: ignore[no-any-return]

    @staticmethod
    def _over_ranks(ends: Sequence[Floats], samples: int) -> Floats:
        """Mean over ranks of the ends of a step, shape (samples,)."""
        means = [
            np.broadcast_to(end.mean(axis=tuple(range(1, end.ndim))) if end.ndim > 1 else end, (samples,))
            for end in ends
        ]
        return np.mean(means, axis=0)  # type: ignore[no-any-return]

    def _alone(self, seed: int) -> float:
        from simulator.engine import run
        from simulator.study.simulate import make_setting

        return self._mean(run(make_setting(self._seeded(seed))))

    def _mean(self, timeline: Timeline) -> float:
        steps = timeline.steps
        spent = (steps[:, -1, 1] - steps[:, self._warmup, 0]) / (steps.shape[1] - self._warmup)
        return float(np.average(spent, weights=[lane.multiplicity for lane in timeline.ranks]))
