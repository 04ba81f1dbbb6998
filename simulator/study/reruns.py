"""Runs of a scenario without some of its causes, each made once and remembered by what was removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import reduce
from operator import or_
from types import TracebackType
from typing import Final

import numpy as np

from simulator.analysis.result import peak_flops_per_s
from simulator.engine.ideal import Ideal, idealised
from simulator.engine.setting import Setting
from simulator.engine.steps import step_times
from simulator.spec import Scenario
from simulator.study.removals import Removal
from simulator.study.simulate import make_setting

Causes = frozenset[str]
Progress = Callable[[int, int], None]


class Reruns(AbstractContextManager["Reruns"]):
    """Step times by the causes removed. With more than one process, they run beside this one."""

    def __init__(
        self,
        scenario: Scenario,
        found: Mapping[str, Removal],
        processes: int,
        progress: Progress | None = None,
    ):
        self._scenario, self._found, self._progress = scenario, found, progress
        self._steps: dict[Causes, float] = {}
        self._made: list[tuple[tuple[Scenario, Ideal], float]] = []
        self._pool = ProcessPoolExecutor(processes) if processes > 1 else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        _MADE.clear()

    def __getitem__(self, removed: Causes) -> float:
        return self._steps[removed]

    def __len__(self) -> int:
        return len(self._made)

    def know(self, removed: Causes, step_s: float) -> None:
        """A step time that has been found elsewhere."""
        self._steps[removed] = step_s
        self._made.append((self._without(removed), step_s))

    def make(self, wanted: Iterable[Causes], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run what is not known yet; `meanwhile` is called in this process, beside the others."""
        new = [removed for removed in wanted if removed not in self._steps]
        new.sort(key=lambda one: (len(one), sorted(one)))
        tasks: list[tuple[Scenario, Ideal]] = []
        known = [task for task, _ in self._made]
        for removed in new:  # sets that come to the same run are one
            task = self._without(removed)
            if task not in tasks and task not in known:
                tasks.append(task)
        made = len(self._made)
        for done, pair in enumerate(self._results(tasks, meanwhile), 1):
            self._made.append(pair)
            if self._progress is not None:
                self._progress(made + done, made + len(tasks))
        for removed in new:
            task = self._without(removed)
            self._steps[removed] = next(step_s for one, step_s in self._made if one == task)

    def _results(
        self, tasks: list[tuple[Scenario, Ideal]], meanwhile: Callable[[], None]
    ) -> Iterator[tuple[tuple[Scenario, Ideal], float]]:
        if self._pool is None:
            meanwhile()
            yield from ((task, _step(task)) for task in tasks)
            return
        futures = {self._pool.submit(_step, task): task for task in tasks}
        meanwhile()
        yield from ((futures[one], one.result()) for one in as_completed(futures))

    def _without(self, removed: Causes) -> tuple[Scenario, Ideal]:
        chosen = [one for cause, one in self._found.items() if cause in removed]
        scenario = self._scenario
        for one in chosen:
            scenario = one.scenario(scenario)
        return scenario, reduce(or_, (one.ideal for one in chosen), Ideal())


def _step(task: tuple[Scenario, Ideal]) -> float:
    """Mean of the measured steps, over ranks by their peak, as a result's step time is."""
    scenario, ideal = task
    lanes, steps = step_times(idealised(plain_setting(scenario), ideal))
    cluster = scenario.cluster
    gpus = [cluster.node_gpus.get(lane.node, cluster.gpu) for lane in lanes]
    peaks = np.array([peak_flops_per_s(gpu, scenario.precision) for gpu in gpus])
    weight = peaks * np.array([lane.multiplicity for lane in lanes])
    first = min(scenario.run.warmup, steps.shape[1] - 1)
    durations = steps[:, first:, 1] - steps[:, first:, 0]
    return float((weight / weight.sum() @ durations).mean())


#: settings that this process has made lately; what is removed of what runs leaves them as they are
_MADE: Final[list[tuple[Scenario, Setting]]] = []
_KEPT: Final = 2


def plain_setting(scenario: Scenario) -> Setting:
    """The scenario made ready; remembered, and so known to processes that are forked later."""
    for known, setting in _MADE:
        if known == scenario:
            return setting
    setting = make_setting(scenario)
    _MADE[:] = [(scenario, setting), *_MADE[: _KEPT - 1]]
    return setting
