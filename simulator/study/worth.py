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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from simulator.analysis.result import peak_flops_per_s
from simulator.draws import generator
from simulator.engine.ideal import axes
from simulator.engine.setting import Setting
from simulator.errors import SpecError
from simulator.program.instructions import Launch
from simulator.spec import Scenario
from simulator.study.removals import Removal, removals
from simulator.study.reruns import Causes, Progress, Reruns, plain_setting
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

#: causes of the host's software
_HOST: Final = ("launches", "host synchronisation")

_NONE: Final[Causes] = frozenset()


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
    base: Callable[[], float] | None = None,
    progress: Progress | None = None,
) -> Worth:
    """Run the scenario again without its causes. Raises SpecError for an unknown method.

    `base`: runs the scenario itself and gives its step time, for callers that want more of it; called in this
    process while others run. `progress` is called with the runs that are made and all that are known of.
    """
    if method not in METHODS:
        raise SpecError.of("--worth", f"'{method}': expected one of {', '.join(METHODS)}")
    plain = plain_setting(scenario)
    predicted = predicted_s(plain)
    found = removals(scenario, axes(plain.programs))
    with Reruns(scenario, found, processes, progress) as steps:
        idle = _host_that_does_not_count(found, method, steps, base)
        seconds, exact = _priced(scenario, found, method, steps, idle)
        step_s, all_s = steps[_NONE], steps[_NONE] - steps[frozenset(found)]
    # sums of floats differ in their last bits between runs that are alike
    seconds = {cause: 0.0 if abs(spent) < _NOTHING * step_s else spent for cause, spent in seconds.items()}
    advice = {cause: one.advice for cause, one in found.items()}
    return Worth(method, seconds, advice, all_s, step_s, predicted, len(steps), exact)


def _host_that_does_not_count(
    found: Mapping[str, Removal], method: str, steps: Reruns, base: Callable[[], float] | None
) -> Causes:
    """Run the scenario itself, and give the host's causes if it keeps nobody waiting: neither in the run as it
    is nor without all else that goes wrong does taking both away change the step. Then neither need be run.
    """
    wrong = frozenset(cause for cause, one in found.items() if one.wrong)
    host = frozenset(_HOST) & wrong
    pairs = {"single": [(_NONE, host)], "shapley": [(_NONE, host), (wrong - host, wrong)]}.get(method, [])

    def run_it() -> None:
        if base is not None:
            steps.know(_NONE, base())

    wanted = {one for pair in pairs for one in pair} | {_NONE}
    steps.make(wanted - {_NONE} if base is not None else wanted, run_it)
    same = all(abs(steps[one] - steps[other]) <= _NOTHING * steps[_NONE] for one, other in pairs)
    return host if pairs and same else _NONE


def _priced(
    scenario: Scenario, found: Mapping[str, Removal], method: str, steps: Reruns, idle: Causes
) -> tuple[dict[str, float], bool]:
    """Seconds by cause, and whether all orders that count were taken."""
    whole = frozenset(found)
    if method == "single":
        alone = {cause: frozenset((cause,)) for cause in found if cause not in idle}
        steps.make([whole, *alone.values()])
        return dict.fromkeys(found, 0.0) | {c: steps[_NONE] - steps[one] for c, one in alone.items()}, True
    orders, exact = _orders(
        {cause: one for cause, one in found.items() if cause not in idle}, method, scenario
    )
    wrong = frozenset(cause for cause, one in found.items() if one.wrong)

    def run(before: Causes) -> Causes:
        """Once all that goes wrong is gone, the host goes too: it might count where kernels are faster."""
        return before | idle if before >= wrong - idle else before

    steps.make([_NONE, whole, *(run(before) for order in orders for before in _prefixes(order))])
    seconds = dict.fromkeys(found, 0.0)
    for order in orders:
        for before, cause in zip(_prefixes(order), order, strict=False):
            gain = steps[run(before)] - steps[run(before | {cause})]
            seconds[cause] += gain / len(orders)
    return seconds, exact


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
