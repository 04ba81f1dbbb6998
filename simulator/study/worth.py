"""What each removable cause of a slow step is worth: alone, one after the other, or as Shapley values.

A cause is worth what the step gains when the run is made again without it. Causes interact (a slow node
hides behind a slow loader), so three ways are offered: `single` removes each alone; `cumulative` removes
them one after the other in the fixed order; `shapley` averages over orders (Shapley, "A Value for n-Person
Games", 1953). The last two add up to what removing all of them gains. Which runs are needed is known
beforehand: each is made once, in as many processes as asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from simulator.draws import generator
from simulator.errors import SpecError
from simulator.spec import Fault, Scenario
from simulator.study.diagnose import REMOVALS
from simulator.study.simulate import simulate

Method = Literal["single", "cumulative", "shapley"]
METHODS: Final[tuple[str, ...]] = get_args(Method)

#: up to so many causes Shapley values are exact: 16 runs
_EXACT: Final = 4
#: orders drawn beyond that, each with its reverse
_DRAWN: Final = 4
#: up to so many faults each is a cause of its own
_SINGLE_FAULTS: Final = 4
#: in the place of a removed fault, so that the others keep their draws
_NO_FAULT: Final = Fault("slow-compute", size={"factor": 1.0})

Causes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Worth:
    """Seconds of a step by cause, in the fixed order of removal.

    `all_s`: what removing all of them gains; `exact`: False where orders were drawn.
    """

    method: str
    seconds: Mapping[str, float]
    all_s: float
    runs: int
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "seconds": dict(self.seconds)}


def worth(scenario: Scenario, method: str = "shapley", *, processes: int = 2) -> Worth:
    """Run the scenario again without its causes. Raises SpecError for an unknown method."""
    if method not in METHODS:
        raise SpecError.of("--worth", f"'{method}': expected one of {', '.join(METHODS)}")
    causes = present(scenario)
    orders, exact = _orders(causes, method, scenario.run.seed)
    whole: Causes = frozenset(causes)
    wanted = {frozenset[str](), whole}
    for order in orders:
        wanted |= set(_prefixes(order))
    if method == "single":
        wanted |= {frozenset((cause,)) for cause in causes}
    steps = _run(scenario, sorted(wanted, key=sorted), processes)
    base = steps[frozenset()]
    if method == "single":
        seconds = {cause: base - steps[frozenset((cause,))] for cause in causes}
    else:
        seconds = dict.fromkeys(causes, 0.0)
        for order in orders:
            for before, cause in zip(_prefixes(order), order, strict=False):
                seconds[cause] += (steps[before] - steps[before | {cause}]) / len(orders)
    return Worth(method, seconds, base - steps[whole], len(steps), exact)


def present(scenario: Scenario) -> tuple[str, ...]:
    """The causes that the scenario has, in the order in which they are removed."""
    return tuple(_removals(scenario))


def _removals(scenario: Scenario) -> dict[str, Callable[[Scenario], Scenario]]:
    found: dict[str, Callable[[Scenario], Scenario]] = {}
    for name, (removal, _) in REMOVALS.items():
        if name == "faults" and 0 < len(scenario.faults) <= _SINGLE_FAULTS:
            for number, fault in enumerate(scenario.faults):
                found[f"fault {number + 1}: {fault.kind}"] = _without_fault(number)
        elif removal(scenario) != scenario:
            found[name] = removal
    return found


def _without_fault(number: int) -> Callable[[Scenario], Scenario]:
    def removed(scenario: Scenario) -> Scenario:
        faults = list(scenario.faults)
        faults[number] = _NO_FAULT
        return replace(scenario, faults=tuple(faults))

    return removed


def _orders(causes: tuple[str, ...], method: str, seed: int) -> tuple[list[tuple[str, ...]], bool]:
    """Orders of removal to average over, and whether these are all that count."""
    if method != "shapley":
        return ([causes] if method == "cumulative" else []), True
    if len(causes) <= _EXACT:
        return list(itertools.permutations(causes)), True
    rng = generator(seed, "worth")
    drawn = [tuple(causes[i] for i in rng.permutation(len(causes))) for _ in range(_DRAWN)]
    return [order for one in drawn for order in (one, one[::-1])], math.factorial(len(causes)) <= 2 * _DRAWN


def _prefixes(order: Sequence[str]) -> list[Causes]:
    return [frozenset(order[:count]) for count in range(len(order) + 1)]


def _run(scenario: Scenario, wanted: Iterable[Causes], processes: int) -> dict[Causes, float]:
    """Step time without each set of causes."""
    sets = list(wanted)
    tasks = [(scenario, removed) for removed in sets]
    if processes <= 1 or len(tasks) <= 2:
        return dict(zip(sets, map(_step, tasks), strict=True))
    with ProcessPoolExecutor(min(processes, len(tasks))) as pool:
        return dict(zip(sets, pool.map(_step, tasks), strict=True))


def _step(task: tuple[Scenario, Causes]) -> float:
    scenario, removed = task
    changed = scenario
    for name, removal in _removals(scenario).items():
        if name in removed:
            changed = removal(changed)
    return simulate(changed, allow_oom=True).step_time_s
