"""Kinds of faults: what each is called, what gives it a size, and what it does.

A kind is a frozen dataclass of its size fields (with `metadata={"dimension": ...}` where a field is a
quantity with a unit) and a method `effects(context, fault)`. Registering it is all there is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.draws import generator
from simulator.errors import Finding, SpecError, nearest
from simulator.faults.effects import Effect, Window
from simulator.spec import Fault, Place, When
from simulator.units import UnitError, parse


class FabricView(Protocol):
    """The part of a fabric that places of faults need."""

    @property
    def tier(self) -> NDArray[np.int8]: ...

    def find_links(self, pattern: str) -> NDArray[np.int64]: ...

    def link_name(self, link: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What a fault may look at to find its targets and its times.

    `node_of_rank`: shape (ranks,). `number`: the fault's place in the scenario, which keys its draws.
    """

    ranks: int
    node_of_rank: NDArray[np.int64]
    fabric: FabricView
    steps: int
    seed: int
    number: int

    def rng(self, what: str) -> np.random.Generator:
        return generator(self.seed, f"fault:{what}", self.number)


class Kind(Protocol):
    """A kind of fault with its size filled in."""

    def effects(self, context: Context, fault: Fault) -> Iterable[Effect]: ...


_KINDS: Final[dict[str, type[Any]]] = {}
_T = TypeVar("_T")


def fault_kind(name: str) -> Callable[[type[_T]], type[_T]]:
    """Register a dataclass as the kind `name`."""

    def register(cls: type[_T]) -> type[_T]:
        _KINDS[name] = cls
        return cls

    return register


def kinds() -> Mapping[str, type[Any]]:
    """All registered kinds, the bundled ones and those of installed plug-ins."""
    from importlib import import_module
    from importlib.metadata import entry_points

    for module in ("compute", "host", "loader", "network"):
        import_module(f"simulator.faults.{module}")
    for plug_in in entry_points(group="trainsim.faults"):
        plug_in.load()
    return _KINDS


def resolve(fault: Fault) -> Kind:
    """The fault's kind with its size parsed; raises SpecError with every finding."""
    known = kinds()
    if fault.kind not in known:
        raise SpecError.of("kind", f"'{fault.kind}': unknown fault{nearest(fault.kind, known)}")
    cls = known[fault.kind]
    declared = {field.name: field for field in fields(cls)}
    findings = [
        Finding(name, f"unknown key of the fault '{fault.kind}'{nearest(name, declared)}")
        for name in fault.size
        if name not in declared
    ]
    values: dict[str, Any] = {}
    for name, field in declared.items():
        if name not in fault.size:
            if field.default is MISSING and field.default_factory is MISSING:
                findings.append(Finding(name, f"missing; the fault '{fault.kind}' needs it"))
            continue
        try:
            values[name] = _value(fault.size[name], field.metadata)
        except UnitError as error:
            findings.append(Finding(name, str(error)))
    if findings:
        raise SpecError(findings)
    kind: Kind = cls(**values)
    return kind


def _value(value: Any, metadata: Mapping[str, Any]) -> Any:
    if "dimension" in metadata:
        return parse(value, metadata["dimension"])
    expected = metadata.get("type", float)
    if expected is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnitError(f"{value!r}: expected a number")
        if not np.isfinite(value):
            raise UnitError(f"{value!r}: expected a finite number")
        least, most = metadata.get("least", 0.0), metadata.get("most", np.inf)
        if not least <= value <= most:
            raise UnitError(f"{value!r}: expected {least:g} to {most:g}")
        return float(value)
    if expected is int:
        if isinstance(value, bool) or not isinstance(value, int) or value < metadata.get("least", 0):
            raise UnitError(f"{value!r}: expected a whole number of {metadata.get('least', 0)} or more")
        return value
    if value not in expected:
        raise UnitError(f"{value!r}: expected one of {', '.join(expected)}{nearest(str(value), expected)}")
    return value


# ------------------------------------------------------------------------------- places and times


def ranks_of(place: Place, context: Context) -> NDArray[np.int64]:
    """The ranks at a place, ascending; all of them if the place names nothing."""
    if place.ranks:
        _within(place.ranks, context.ranks, "rank")
        return np.array(sorted(set(place.ranks)), dtype=np.int64)
    if place.nodes:
        _within(place.nodes, int(context.node_of_rank.max()) + 1, "node")
        return np.flatnonzero(np.isin(context.node_of_rank, place.nodes))
    if place.fraction is not None:
        nodes = np.unique(context.node_of_rank)
        units = nodes if place.of == "node" else np.arange(context.ranks)
        count = round(place.fraction * len(units))
        chosen = context.rng("place").permutation(units)[:count]
        return (
            np.flatnonzero(np.isin(context.node_of_rank, chosen)) if place.of == "node" else np.sort(chosen)
        )
    return np.arange(context.ranks)


def _within(values: Iterable[int], count: int, what: str) -> None:
    for value in values:
        if not 0 <= value < count:
            raise SpecError.of(what, f"{value}: expected 0 to {count - 1}")


def links_of(place: Place, context: Context) -> NDArray[np.int64]:
    """The directed links at a place: by name or pattern, by NIC ("NODE:NIC"), or all NICs of its nodes."""
    patterns = list(place.links)
    for nic in place.nics:
        node, _, number = nic.partition(":")
        patterns.append(f"node{node}/nic{number or '*'}*")
    if not patterns:
        nodes = np.unique(context.node_of_rank[ranks_of(place, context)])
        patterns = [f"node{node}/nic*" for node in nodes]
    found = []
    for pattern in patterns:
        links = context.fabric.find_links(pattern)
        if not len(links):
            raise SpecError.of(
                "link", f"'{pattern}': no link of the fabric has such a name; {_some_names(context)}"
            )
        found.append(links)
    return np.unique(np.concatenate(found))


def _some_names(context: Context) -> str:
    """One link of each tier, as an example of names."""
    fabric = context.fabric
    _, first = np.unique(fabric.tier, return_index=True)
    return "there are, for example, " + ", ".join(fabric.link_name(int(link)) for link in first[:4])


def windows_of(when: When, context: Context, *, duration_s: float | None = None) -> tuple[Window, ...]:
    """When the fault acts, for kinds whose effect is a factor. A Poisson process needs a duration."""
    if when.per_s is not None:
        if not duration_s:
            raise SpecError.of("duration", "missing; a fault with a rate lasts some time each time")
        gaps = context.rng("times").exponential(1 / when.per_s, 2000) if when.per_s > 0 else np.array([])
        starts = np.cumsum(gaps) + (when.from_s or 0.0)
        return tuple(Window(float(start), float(start) + duration_s) for start in starts)
    if when.from_s is not None or when.to_s is not None:
        end = when.to_s if when.to_s is not None else np.inf
        start = when.from_s or 0.0
        return (Window(start, min(end, start + duration_s) if duration_s else end),)
    return (
        tuple(Window(step, step + 1, in_steps=True) for step in repeated_steps(when, context))
        if (when.every_steps)
        else (Window(when.from_step or 0, np.inf if when.to_step is None else when.to_step, in_steps=True),)
    )


def repeated_steps(when: When, context: Context, phase: int = 0) -> range:
    """The steps of a fault that comes every `every_steps` steps, shifted by `phase`."""
    first = when.from_step or 0
    last = context.steps if when.to_step is None else min(when.to_step, context.steps)
    every = when.every_steps or 1
    return range(first + phase % every, last, every)
