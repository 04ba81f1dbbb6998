"""Which layer holds the gap between acceptance and production, by elimination.

Acceptance tests GPUs, memory and links: cold, one thing at a time, without the training job's software. So
what it cannot see is taken away in a fixed order, and the run made again: the input pipeline, the host's
software, the job's own pattern of communication, behaviour under load that lasts and over time. What a layer
is worth is what the step gains as it goes. Communication has no switch: it is worth what is exposed, or slows
kernels, once all else is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.analysis import causes as names
from simulator.analysis.result import Result
from simulator.faults import Effect, Factor, Noise, Pause, Resource
from simulator.spec import Checkpoint, Distribution, Fault, Scenario
from simulator.study.acceptance import Acceptance, Thresholds, accept, cold, effects_on_cluster, present
from simulator.study.simulate import simulate

TESTED: Final = "what acceptance tests"
INPUT: Final = "input pipeline"
HOST: Final = "host software"
COMMUNICATION: Final = "the job's own communication"
TIME: Final = "sustained load and time"
#: in the order of elimination
LAYERS: Final = (TESTED, INPUT, HOST, COMMUNICATION, TIME)

#: a layer below this share of the step holds nothing
_LEAST: Final = 0.02
#: in the place of a removed fault, so that the others keep their draws
_NO_FAULT: Final = Fault("slow-compute", size={"factor": 1.0})

_Change = Callable[[Scenario], Scenario]

#: what the software of a layer does, and the scenario without it
_SOFTWARE: Final[Mapping[str, Mapping[str, _Change]]] = {
    INPUT: {
        "dataloader": lambda s: replace(
            s, dataloader=replace(s.dataloader, load_time=Distribution("constant", 0.0))
        ),
    },
    HOST: {
        "launches": lambda s: replace(s, software=replace(s.software, cuda_graphs=True)),
        "host synchronisation": lambda s: replace(
            s, software=replace(s.software, log_every=0, clip_syncs_host=False)
        ),
        "checkpoints": lambda s: replace(s, checkpoint=Checkpoint()),
    },
}


@dataclass(frozen=True, slots=True)
class Part:
    """Something of a layer, and the seconds of a step that it costs."""

    layer: str
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Elimination:
    """Acceptance, then the step by layer. `rest_s`: the step with every layer gone.

    `holds`: the layer that costs most; None where none costs 2% of the step.
    """

    acceptance: Acceptance
    step_s: float
    rest_s: float
    parts: tuple[Part, ...]

    @property
    def layers(self) -> dict[str, float]:
        """Seconds by layer, in order."""
        return {layer: sum(part.seconds for part in self.parts if part.layer == layer) for layer in LAYERS}

    @property
    def holds(self) -> str | None:
        layers = self.layers
        most = max(layers, key=lambda layer: layers[layer])
        return most if layers[most] >= _LEAST * self.step_s else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "step_s": self.step_s,
            "rest_s": self.rest_s,
            "holds": self.holds,
            "layers": self.layers,
            "parts": [
                {"layer": part.layer, "name": part.name, "seconds": part.seconds} for part in self.parts
            ],
            "acceptance": self.acceptance.to_dict(),
        }


def eliminate(
    scenario: Scenario, thresholds: Thresholds | None = None, *, result: Result | None = None
) -> Elimination:
    """Run acceptance, then the job again and again with a layer less. `result`: of the whole, if known."""
    accepted = accept(scenario, thresholds)
    before = result = result or simulate(scenario, allow_oom=True)
    parts = []
    for layer, name, change in _changes(scenario):
        changed = change(scenario)
        if changed != scenario:
            scenario, after = changed, simulate(changed, allow_oom=True)
            parts.append(Part(layer, name, before.step_time_s - after.step_time_s))
            before = after
    shown = [part for part in _communication(before) if part.seconds > 0]
    rest = before.step_time_s - sum(part.seconds for part in shown)
    parts = [*parts, *shown]
    return Elimination(
        accepted, result.step_time_s, rest, tuple(sorted(parts, key=lambda part: LAYERS.index(part.layer)))
    )


def _communication(result: Result) -> Iterator[Part]:
    for item in result.waterfall:
        if item.name == names.CONTENTION or item.name.startswith("exposed "):
            yield Part(COMMUNICATION, item.name, item.seconds)


def _changes(scenario: Scenario) -> Iterator[tuple[str, str, _Change]]:
    """(layer, what, how to take it away). Communication comes last of all, from what is left."""
    layers = [_layer(found) for found in effects_on_cluster(scenario)[1]]

    def faults(layer: str) -> Iterator[tuple[str, str, _Change]]:
        mine = [number for number, one in enumerate(layers) if one == layer]
        if mine:
            kinds = ", ".join(dict.fromkeys(scenario.faults[number].kind for number in mine))
            yield layer, f"faults: {kinds}", _without(mine)

    yield from faults(TESTED)
    for layer in (INPUT, HOST):
        for name, change in _SOFTWARE[layer].items():
            yield layer, name, change
        yield from faults(layer)
    yield from faults(TIME)
    yield TIME, "clocks under load", lambda one: replace(one, cluster=cold(one.cluster))


def _without(numbers: list[int]) -> _Change:
    def removed(scenario: Scenario) -> Scenario:
        kept = (_NO_FAULT if number in numbers else one for number, one in enumerate(scenario.faults))
        return replace(scenario, faults=tuple(kept))

    return removed


def _layer(effects: tuple[Effect, ...]) -> str:
    """Where a fault belongs: hardware that is there from the start is what acceptance tests."""
    if present(effects):
        return TESTED
    for effect in effects:
        if isinstance(effect, Pause) or (
            isinstance(effect, Factor | Noise) and effect.resource is Resource.HOST
        ):
            return HOST
        if isinstance(effect, Factor | Noise) and effect.resource is Resource.LOADER:
            return INPUT
    return TIME
