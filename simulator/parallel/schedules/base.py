"""What a pipeline schedule is, and where the known ones are kept.

A schedule says in which order a stage does its work: forwards and backwards (whole, or split into the
input's and the weights' part) of micro-batches on its virtual stages. When they happen follows from
what they wait for; no schedule knows a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, Literal, TypeAlias

from simulator.errors import SpecError, nearest


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of a stage's work. `chunk`: which of the stage's virtual stages.

    F forward; B backward, whole; I backward for the input only; W backward for the weights only.
    `beside`: runs side by side with the action that follows.
    """

    kind: Literal["F", "B", "I", "W"]
    micro_batch: int
    chunk: int = 0
    beside: bool = False


#: (stage, stages, micro-batches, virtual stages) -> the stage's actions in order
Order: TypeAlias = Callable[[int, int, int, int], tuple[Action, ...]]


def wrap_around(stage: int, chunk: int, stages: int, virtual_stages: int) -> int:
    """Chunk c of stage s is part c x stages + s of the model (interleaving)."""
    del virtual_stages
    return chunk * stages + stage


#: (stage, stages, micro-batches, virtual stages) -> a figure
Order4: TypeAlias = Callable[[int, int, int, int], float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule by name. `position`: which of the stages x virtual parts of the model a chunk is.

    `overlaps_p2p`: receives are posted one piece of work ahead and sends are not waited for; else, as
    Megatron-LM does without virtual stages, compute waits for both. `peak`: the published formula for
    the activations held, in whole stages' of a micro-batch. `copies`: how often each part of the model
    stands; positions of the second copy follow those of the first.
    """

    name: str
    order: Order
    position: Callable[[int, int, int, int], int] = wrap_around
    splits_backward: bool = False
    virtual_stages: int = 0  # 0: as the scenario says; else what the schedule needs
    overlaps_p2p: bool = False
    peak: Order4 | None = None
    copies: int = 1

    def parts(self, stages: int, virtual: int) -> int:
        """Parts that the model is cut into."""
        return stages * virtual // self.copies

    def neighbours(self, position: int, stages: int, virtual: int) -> tuple[int | None, int | None]:
        """Positions before and after one, in the same copy of the model; None at its ends."""
        part, parts = position % self.parts(stages, virtual), self.parts(stages, virtual)
        return position - 1 if part else None, position + 1 if part < parts - 1 else None

    def in_flight(self, stage: int, stages: int, micro_batches: int, virtual: int) -> list[int]:
        """Most micro-batches whose activations each chunk of a stage holds at once.

        Of all moments, the one at which the chunks together hold most.
        """
        held = [0] * virtual
        most, best = -1, held
        for action in self.order(stage, stages, micro_batches, virtual):
            if action.kind == "F":
                held[action.chunk] += 1
            elif action.kind in ("B", "W"):
                held[action.chunk] -= 1
            if sum(held) > most:
                most, best = sum(held), list(held)
        return best


_SCHEDULES: Final[dict[str, Schedule]] = {}


def schedule(
    name: str,
    *,
    position: Callable[[int, int, int, int], int] = wrap_around,
    splits_backward: bool = False,
    virtual_stages: int = 0,
    overlaps_p2p: bool = False,
    peak: Order4 | None = None,
    copies: int = 1,
) -> Callable[[Order], Order]:
    """Register a function as the order of the schedule `name`."""

    def register(order: Order) -> Order:
        _SCHEDULES[name] = Schedule(
            name, order, position, splits_backward, virtual_stages, overlaps_p2p, peak, copies
        )
        return order

    return register


def schedules() -> Mapping[str, Schedule]:
    """All schedules by name: every module of this package registers its own, plug-ins too."""
    _register_all()
    return _SCHEDULES


@cache
def _register_all() -> None:
    """Once: the search for plug-ins reads the metadata of every installed package."""
    from importlib.metadata import entry_points

    import simulator.parallel.schedules as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    for plug_in in entry_points(group="trainsim.schedules"):
        plug_in.load()


def find_schedule(name: str) -> Schedule:
    """The schedule `name`; raises SpecError with the nearest name."""
    known = schedules()
    if name not in known:
        raise SpecError.of("parallelism.schedule", f"'{name}': unknown schedule{nearest(name, known)}")
    return known[name]
