"""What can be taken out of a scenario, in the order in which it is removed, and what to do about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from simulator.analysis import causes as names
from simulator.engine.ideal import Ideal
from simulator.spec import Checkpoint, Distribution, Fault, Place, Recompute, Scenario

#: up to so many faults each is a cause of its own
SINGLE_FAULTS: Final = 4
#: in the place of a removed fault, so that the others keep their draws
_NO_FAULT: Final = Fault("slow-compute", size={"factor": 1.0})

UNEVEN: Final = "stages of unequal work"
LOADS: Final = "work that differs between ranks"
NO_OVERLAP: Final = "gradient communication without overlap"
ROOFLINE: Final = "kernels below their roofline"
MEMORY: Final = "memory-bound and uncounted work"

#: causes that every run has: they come after what a run suffers from
ALWAYS: Final = (ROOFLINE, MEMORY)


_NOTHING: Final = Ideal()


@dataclass(frozen=True, slots=True)
class Removal:
    """How a cause is taken out: of the scenario, or of what runs; and what to do about it.

    `wrong`: it goes wrong in this run, so it is priced before what every run of this shape has.
    """

    cause: str
    advice: str
    scenario: Callable[[Scenario], Scenario] = lambda scenario: scenario
    ideal: Ideal = _NOTHING
    wrong: bool = False


_FAULT_ADVICE: Final = "take the faulty machines out; plan collections and pauses at common steps"

_OF_SCENARIO: Final = (
    Removal(
        "faults",
        _FAULT_ADVICE,
        lambda s: replace(s, faults=()),
        wrong=True,
    ),
    Removal(
        "dataloader",
        "more workers: load time over workers bounds the step; more prefetch against jitter",
        lambda s: replace(s, dataloader=replace(s.dataloader, load_time=Distribution("constant", 0.0))),
        Ideal(copies=True),
        wrong=True,
    ),
    Removal(
        "launches", "CUDA graphs, torch.compile, larger micro-batches", ideal=Ideal(host=True), wrong=True
    ),
    Removal(
        "host synchronisation",
        "read the loss and the norm less often, or a step late",
        lambda s: replace(s, software=replace(s.software, log_every=0, clip_syncs_host=False)),
        wrong=True,
    ),
    Removal(
        "checkpoints",
        "save asynchronously, or less often (trainsim plan checkpoint)",
        lambda s: replace(s, checkpoint=Checkpoint()),
        wrong=True,
    ),
    Removal(
        "recomputation",
        "recompute less: smaller micro-batches, sharding or sequence parallelism make room",
        lambda s: replace(s, recompute=Recompute()),
    ),
    Removal(
        NO_OVERLAP,
        "reduce gradients during the backward",
        lambda s: replace(s, overlap=replace(s.overlap, grad_reduce=True)),
    ),
)

_COMMUNICATION: Final[Mapping[str, str]] = {
    "tp": "keep TP inside the node; overlap.tp; less TP",
    "cp": "a ring where compute hides it, or less CP",
    "ep": "keep experts near; overlap the all-to-all",
    "pp": "a schedule that overlaps sends; larger micro-batches",
    "dp": "overlap, larger buckets, more micro-batches a step, better placement",
}

_KERNELS: Final = (
    Removal(
        "optimizer",
        "a fused optimizer; shard it over the data-parallel ranks (zero-1)",
        ideal=Ideal(optimizer=True),
    ),
    Removal(
        ROOFLINE,
        "kernels nearer to their roofline: larger products (micro-batch, less TP), a faster attention",
        ideal=Ideal(below_roofline=True),
    ),
    Removal(
        MEMORY,
        "memory-bound kernels and FLOPs that MFU does not count: fuse them, keep activations on chip",
        ideal=Ideal(overhead=True),
    ),
)


def removals(scenario: Scenario, communicates: frozenset[str]) -> dict[str, Removal]:
    """What the scenario has and can be taken out, in order; `communicates`: axes that its programs use."""
    found: dict[str, Removal] = {}
    for one in (*_OF_SCENARIO, *_of_shape(scenario), *_of_axes(scenario, communicates), *_KERNELS):
        if one.cause == "faults" and 0 < len(scenario.faults) <= SINGLE_FAULTS:
            for number, fault in enumerate(scenario.faults):
                cause = fault_name(number, fault)
                found[cause] = Removal(cause, _fault_advice(fault), _without_fault(number), wrong=True)
        elif one.cause == "launches" or one.scenario(scenario) != scenario or one.ideal != _NOTHING:
            found[one.cause] = one
    load = scenario.dataloader.load_time
    if load.mean == 0 and "dataloader" in found:
        del found["dataloader"]
    return found


def fault_name(number: int, fault: Fault) -> str:
    """How the n-th fault is called among causes."""
    return f"fault {number + 1}: {fault.kind}"


#: kind of fault -> what to do about it; {} is where it sits
_MEND: Final[Mapping[str, str]] = {
    "slow-compute": "take {} out; look at its clocks, power limit and cooling",
    "slow-memory": "take {} out; look at remapped rows and the memory clock",
    "slow-host": "look at what else runs on the CPUs of {}, and at their frequency",
    "host-stall": "profile the host of {} (py-spy): storage, throttling, neighbours",
    "garbage-collection": "collect at common steps: gc.disable() and gc.collect()",
    "slow-nic": "take {} out, or replace the NIC, its cable or its optics",
    "degraded-link": "replace {}: cable, optics or port",
    "flapping-link": "replace {}: cable, optics or port",
    "background-traffic": "keep other traffic off {}: schedule it, or give it links of its own",
    "silicon-spread": "chips differ: power limits alike, or leave the slowest out",
    "kernel-jitter": "fewer synchronisations a step: what varies adds up between them",
}


def _fault_advice(fault: Fault) -> str:
    return _MEND.get(fault.kind, _FAULT_ADVICE).format(_where(fault.place))


def _where(place: Place) -> str:
    for what, some in (
        ("rank", place.ranks), ("node", place.nodes), ("NIC", place.nics), ("link", place.links),
    ):  # fmt: skip
        if some:
            shown = ", ".join(str(one) for one in some[:4]) + (", ..." if len(some) > 4 else "")
            return f"{what}{'s' * (len(some) > 1)} {shown}"
    return "what is slow" if place.fraction is not None else "all of it"


def _of_shape(scenario: Scenario) -> list[Removal]:
    found = []
    if scenario.batch.documents is not None or scenario.batch.expert_imbalance > 1:
        advice = "sort or pack documents by length; balance the experts' load"
        found.append(Removal(LOADS, advice, ideal=Ideal(even_loads=True)))
    if scenario.parallelism.pp > 1:
        advice = "give layers to stages by their time: fewer for those with embedding and loss"
        found.append(Removal(UNEVEN, advice, ideal=Ideal(even_stages=True)))
        advice = "more micro-batches a step, more virtual stages, or a zero bubble schedule"
        found.append(Removal(names.BUBBLE, advice, ideal=Ideal(bubble=True)))
    return found


def _of_axes(scenario: Scenario, communicates: frozenset[str]) -> list[Removal]:
    del scenario
    known = [axis for axis in names.AXES if axis in communicates]
    found = [
        Removal(
            names.exposed(axis),
            _COMMUNICATION.get(axis, "overlap it"),
            ideal=Ideal(instant=frozenset((axis,))),
        )
        for axis in (*known, *sorted(communicates - set(names.AXES)))
    ]
    if communicates:
        advice = "fewer SMs for NCCL, less overlap where it does not pay, collectives on other links"
        found.append(Removal(names.CONTENTION, advice, ideal=Ideal(contention=True)))
    return found


def _without_fault(number: int) -> Callable[[Scenario], Scenario]:
    def removed(scenario: Scenario) -> Scenario:
        faults = list(scenario.faults)
        faults[number] = _NO_FAULT
        return replace(scenario, faults=tuple(faults))

    return removed
