"""What each cause of a slow step is worth: alone, one after the other, or as Shapley values.

A cause is worth what the step gains when the run is made again without it. Causes interact (a slow node
hides behind a slow loader), so three ways are offered: `single` removes each alone; `cumulative` removes
them one after the other in the fixed order; `shapley` averages over orders (Shapley, "A Value for n-Person
Games", 1953) in which what goes wrong in this run (faults, loader, host) goes before what every run of its
shape has (bubble, communication, kernels): else a slow loader would be worth more for kernels that might be
faster. The last two add up to what removing all of them gains. With all causes gone only the model's
FLOPs at the peak are left; what the step then still takes longer is the remainder, so that the worths and
it always add up to the gap between the formula and the step.

Which runs are needed is known beforehand: each is made once, in as many processes as asked for, and
nothing but its step time is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, get_args

import numpy as np

from simulator.analysis.result import peak_flops_per_s
from simulator.draws import generator
from simulator.engine.ideal import Ideal, axes, idealised
from simulator.engine.setting import Setting
from simulator.engine.steps import step_times
from simulator.errors import SpecError
from simulator.program.instructions import Launch
from simulator.spec import Scenario
from simulator.study.removals import Removal, removals
from simulator.study.simulate import make_setting

Method = Literal["single", "cumulative", "shapley"]
METHODS: Final[tuple[str, ...]] = get_args(Method)

#: up to so many causes Shapley values are exact: 16 runs
_EXACT: Final = 4
#: pairs of an order and its reverse beyond that; the fixed order is the first
_PAIRS: Final = 4
#: of runs of so many ranks and more one pair is made
_MANY_RANKS: Final = 1024
#: of a step: less is no difference between two runs
_NOTHING: Final = 1e-9

Causes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Worth:
    """Seconds of a step by cause, in the fixed order of removal.

    `all_s`: what removing all of them gains; `remainder_s`: what the step then takes longer than the
    formula, `predicted_s`, says; `exact`: False where orders were drawn.
    """

    method: str
    seconds: Mapping[str, float]
    advice: Mapping[str, str]
    all_s: float
    step_s: float
    predicted_s: float
    runs: int
    exact: bool

    @property
    def gap_s(self) -> float:
        """The step against the formula."""
        return self.step_s - self.predicted_s

    @property
    def remainder_s(self) -> float:
        """What is left of the gap when every cause is gone."""
        return self.gap_s - self.all_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("method", "all_s", "step_s", "predicted_s", "gap_s", "remainder_s", "runs", "exact")
        return {name: getattr(self, name) for name in names} | {"seconds": dict(self.seconds)}


def worth(
    scenario: Scenario,
    method: str = "shapley",
    *,
    processes: int = 2,
    step_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Worth:
    """Run the scenario again without its causes. Raises SpecError for an unknown method.

    `step_s`: its step time with all of them, if it has been run already. `progress` is called with the runs
    that are made and all that there are.
    """
    if method not in METHODS:
        raise SpecError.of("--worth", f"'{method}': expected one of {', '.join(METHODS)}")
    plain = _plain(scenario)  # processes that are forked have it too
    found = removals(scenario, axes(plain.programs))
    causes = tuple(found)
    orders, exact = _orders(found, method, scenario)
    whole: Causes = frozenset(causes)
    wanted = {frozenset[str](), whole}
    for order in orders:
        wanted |= set(_prefixes(order))
    if method == "single":
        wanted |= {frozenset((cause,)) for cause in causes}
    if step_s is not None:
        wanted.discard(frozenset())
    order_of_runs = sorted(wanted, key=lambda one: (len(one), sorted(one)))
    steps = {frozenset[str](): step_s} if step_s is not None else {}
    steps |= _run(scenario, found, order_of_runs, processes, progress)
    base = steps[frozenset()]
    if method == "single":
        seconds = {cause: base - steps[frozenset((cause,))] for cause in causes}
    else:
        seconds = dict.fromkeys(causes, 0.0)
        for order in orders:
            for before, cause in zip(_prefixes(order), order, strict=False):
                seconds[cause] += (steps[before] - steps[before | {cause}]) / len(orders)
    # sums of floats differ in their last bits between runs that are alike
    seconds = {cause: 0.0 if abs(spent) < _NOTHING * base else spent for cause, spent in seconds.items()}
    advice = {cause: one.advice for cause, one in found.items()}
    return Worth(method, seconds, advice, base - steps[whole], base, predicted_s(plain), len(steps), exact)


def present(scenario: Scenario) -> tuple[str, ...]:
    """The causes that the scenario has, in the order in which they are removed."""
    return tuple(removals(scenario, axes(make_setting(scenario).programs)))


def predicted_s(setting: Setting) -> float:
    """Seconds that the model's FLOPs of a step take at the peak of all GPUs together."""
    flops = 0.0
    for script, ranks in zip(setting.scripts, np.bincount(setting.stage_of_rank).tolist(), strict=True):
        for item in script.step(0).launch_items:
            if isinstance(item.work, Launch):
                flops += ranks * sum(kernel.model_flops for kernel in item.work.segment.kernels)
    peaks = np.array([peak_flops_per_s(gpu, setting.scenario.precision) for gpu in setting.gpus])
    return float(flops / peaks[setting.gpu_of_rank].sum())


def _orders(
    found: Mapping[str, Removal], method: str, scenario: Scenario
) -> tuple[list[tuple[str, ...]], bool]:
    """Orders of removal to average over, and whether these are all that count."""
    causes = tuple(found)
    if method == "single":
        return [], True
    if method == "cumulative":
        return [causes], True
    wrong = tuple(cause for cause in causes if found[cause].wrong)
    shape = tuple(cause for cause in causes if not found[cause].wrong)
    before, every_one = _arranged(wrong, scenario)
    after, every_other = _arranged(shape, scenario)
    # each part's mean is over its own orders: what is before comes to the same whatever its order
    count = math.lcm(len(before), len(after))
    pairs = [(before[at % len(before)], after[at % len(after)]) for at in range(count)]
    return [one + other for one, other in pairs], every_one and every_other


def _arranged(causes: tuple[str, ...], scenario: Scenario) -> tuple[list[tuple[str, ...]], bool]:
    """All orders of a few causes, else pairs of one and its reverse: the fixed one, and drawn ones."""
    if len(causes) <= _EXACT:
        return list(itertools.permutations(causes)), True
    pairs = 1 if scenario.cluster.gpus >= _MANY_RANKS else _PAIRS
    rng = generator(scenario.run.seed, "worth", len(causes))
    drawn = [tuple(causes[i] for i in rng.permutation(len(causes))) for _ in range(pairs - 1)]
    return [order for one in (causes, *drawn) for order in (one, one[::-1])], False


def _prefixes(order: Sequence[str]) -> list[Causes]:
    return [frozenset(order[:count]) for count in range(len(order) + 1)]


def _run(
    scenario: Scenario,
    found: Mapping[str, Removal],
    wanted: Iterable[Causes],
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> dict[Causes, float]:
    """Step time without each set of causes."""
    tasks: list[tuple[Scenario, Ideal]] = []
    number: dict[Causes, int] = {}
    for removed in wanted:  # sets that come to the same run are one
        task = _without(scenario, found, removed)
        if task not in tasks:
            tasks.append(task)
        number[removed] = tasks.index(task)
    steps = [0.0] * len(tasks)
    if processes <= 1 or len(tasks) <= 2:
        made: Iterator[tuple[int, float]] = ((at, _step(task)) for at, task in enumerate(tasks))
        _keep(made, steps, progress)
    else:
        with ProcessPoolExecutor(min(processes, len(tasks))) as pool:
            futures = {pool.submit(_step, task): at for at, task in enumerate(tasks)}
            _keep(((futures[one], one.result()) for one in as_completed(futures)), steps, progress)
    return {removed: steps[at] for removed, at in number.items()}


def _keep(
    made: Iterator[tuple[int, float]], steps: list[float], progress: Callable[[int, int], None] | None
) -> None:
    for done, (at, seconds) in enumerate(made, 1):
        steps[at] = seconds
        if progress is not None:
            progress(done, len(steps))


def _without(scenario: Scenario, found: Mapping[str, Removal], removed: Causes) -> tuple[Scenario, Ideal]:
    chosen = [one for cause, one in found.items() if cause in removed]
    for one in chosen:
        scenario = one.scenario(scenario)
    return scenario, reduce(or_, (one.ideal for one in chosen), Ideal())


def _step(task: tuple[Scenario, Ideal]) -> float:
    scenario, ideal = task
    lanes, steps = step_times(idealised(_plain(scenario), ideal))
    cluster = scenario.cluster
    weight = np.array(
        [
            lane.multiplicity
            * peak_flops_per_s(cluster.node_gpus.get(lane.node, cluster.gpu), scenario.precision)
            for lane in lanes
        ]
    )
    first = min(scenario.run.warmup, steps.shape[1] - 1)
    durations = steps[:, first:, 1] - steps[:, first:, 0]
    return float((weight / weight.sum() @ durations).mean())


#: settings that a process has made; what is removed of what runs leaves them as they are
_MADE: Final[list[tuple[Scenario, Setting]]] = []
_KEPT: Final = 2


def _plain(scenario: Scenario) -> Setting:
    for known, setting in _MADE:
        if known == scenario:
            return setting
    setting = make_setting(scenario)
    _MADE[:] = [(scenario, setting), *_MADE[: _KEPT - 1]]
    return setting
