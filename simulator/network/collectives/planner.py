"""From (fabric, kind, group, size) to an activity: choice of algorithm and protocol, protocol overhead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from simulator.errors import SpecError, nearest
from simulator.network.activity import BUS_FACTORS, LATENCY_BOUND_BYTES, Activity
from simulator.network.collectives.base import (
    Algorithm,
    Floats,
    Groups,
    Ints,
    algorithms,
    kind_of_tier,
    make_groups,
    merged,
)
from simulator.network.fabric import Fabric
from simulator.network.protocols import Protocol, Transport, find_protocol, protocols, transport

KINDS: Final = tuple(BUS_FACTORS)


def wire(fabric: Fabric, kind: str, groups: Ints, *, algorithm: str = "auto") -> tuple[Ints, Ints, Floats]:
    """(group index, link, bytes on it for each byte of size) of many groups, shape (groups, n), at once.

    A (group, link) may stand several times: its bytes add up.

    Bare payload: protocol overhead is a factor that `plan` adds. `auto` takes the kind's first algorithm.
    """
    made = _arranged(fabric, kind, np.asarray(groups, dtype=np.int64))
    chosen = next(iter(_candidates(made, kind, algorithm)))
    return chosen.load(made, kind)


def _arranged(fabric: Fabric, kind: str, gpus: Ints) -> Groups:
    """Members sorted by node, but for a send, whose order says who sends."""
    made = make_groups(fabric, gpus)
    if kind != "send-recv":
        return made
    apart = bool((fabric.node_of[gpus[:, 0]] != fabric.node_of[gpus[:, 1]]).all())
    shape = (len(gpus), 2, 1) if apart else (len(gpus), 1, 2)
    return Groups(fabric, gpus.reshape(shape), even=made.even)


def _candidates(groups: Groups, kind: str, algorithm: str) -> Iterable[Algorithm]:
    known = algorithms()
    able = [one for one in known.values() if kind in one.kinds]
    if not able:
        raise SpecError.of("kind", f"'{kind}': no such collective{nearest(kind, KINDS)}")
    if algorithm == "auto":
        return sorted(
            (one for one in able if one.of_nccl and one.works(groups)),
            key=lambda one: one.name not in ("ring", "pairwise"),
        )
    if algorithm not in known:
        raise SpecError.of("algorithm", f"'{algorithm}': no such algorithm{nearest(algorithm, known)}")
    named = [one for one in able if one.name == algorithm and one.works(groups)]
    return named or [one for one in able if one.works(groups)]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What is worked out once for a group, whatever the size of the message."""

    groups: Groups
    algorithm: Algorithm
    links: Ints
    load: Floats
    kinds: Ints  # of the links: index into _KINDS
    transport: Transport


_KINDS: Final = ("nvlink", "pcie", "net")
_SHAPES: WeakKeyDictionary[Fabric, dict[tuple[str, bytes, str, bool], list[_Shape]]] = WeakKeyDictionary()
_GENERATIONS: WeakKeyDictionary[Fabric, str] = WeakKeyDictionary()


def plan(
    fabric: Fabric,
    kind: str,
    gpus: Sequence[int] | Ints,
    size_bytes: float,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    constants: Transport | None = None,
) -> Activity:
    """The activity of one group: the fastest algorithm and protocol on the idle fabric, or those asked for.

    An algorithm asked for that cannot do the kind or the group gives way to one that can.
    Messages up to LATENCY_BOUND_BYTES take their latency and load no link.
    `constants`: of the transport, in place of the bundled ones of this generation.
    Raises SpecError for unknown names, a GPU twice, a negative size.
    """
    members = np.arange(gpus.start, gpus.stop, gpus.step) if isinstance(gpus, range) else np.asarray(gpus)
    members = members.astype(np.int64, copy=False)
    _check(fabric, members, size_bytes)
    shapes = _shapes(fabric, kind, members, algorithm, bare=size_bytes <= LATENCY_BOUND_BYTES)
    if protocol == "auto":
        chosen = [one for name, one in protocols().items() if name != "ideal"]
    else:
        chosen = [find_protocol(protocol)]
    best: Activity | None = None
    least = math.inf
    for shape in shapes:
        for one in chosen:
            if one.most_bytes and size_bytes > one.most_bytes and protocol == "auto":
                continue
            if constants is not None:
                shape = replace(shape, transport=constants)  # noqa: PLW2901
            activity = _activity(shape, kind, size_bytes, one)
            time = activity.alone_s(fabric.capacity_bytes_per_s)
            if time < least:
                best, least = activity, time
    assert best is not None
    return best


def _check(fabric: Fabric, gpus: Ints, size_bytes: float) -> None:
    if not math.isfinite(size_bytes) or size_bytes < 0:
        raise SpecError.of("size", f"{size_bytes!r}: expected 0 bytes or more")
    if not len(gpus):
        raise SpecError.of("group", "no GPUs: expected 1 or more")
    if gpus.max() >= fabric.n_gpus or gpus.min() < 0:
        raise SpecError.of("group", f"GPU {gpus.max()}: expected 0 to {fabric.n_gpus - 1}")
    if np.bincount(gpus).max() > 1:
        raise SpecError.of("group", "a GPU stands in the group twice")


def _shapes(fabric: Fabric, kind: str, gpus: Ints, algorithm: str, *, bare: bool) -> list[_Shape]:
    known = _SHAPES.setdefault(fabric, {})
    key = (kind, gpus.tobytes(), algorithm, bare)
    if key not in known:
        groups = _arranged(fabric, kind, gpus[None, :])
        known[key] = [_shape(groups, kind, one, bare=bare) for one in _candidates(groups, kind, algorithm)]
    return known[key]


def _shape(groups: Groups, kind: str, algorithm: Algorithm, *, bare: bool) -> _Shape:
    fabric = groups.fabric
    if bare:
        none = np.empty(0, dtype=np.int64)
        return _Shape(groups, algorithm, none, np.empty(0), none, transport(generation(fabric)))
    _, links, load = merged(groups, algorithm.load(groups, kind))
    by_tier = np.array([_KINDS.index(kind_of_tier(tier)) for tier in fabric.tiers], dtype=np.int64)
    kinds = by_tier[fabric.tier[links]]
    return _Shape(groups, algorithm, links, load, kinds, transport(generation(fabric)))


def generation(fabric: Fabric) -> str:
    """The transport's constants by the speed of the fabric's NVLink."""
    if fabric not in _GENERATIONS:
        _GENERATIONS[fabric] = _generation(fabric)
    return _GENERATIONS[fabric]


def _generation(fabric: Fabric) -> str:
    tiers = [i for i, tier in enumerate(fabric.tiers) if tier == "nvlink"]
    inside = fabric.capacity_bytes_per_s[np.isin(fabric.tier, tiers)]
    fastest = float(inside.max(initial=0.0))
    if fastest <= 0:
        return "nvlink3"
    for limit, name in ((160e9, "nvlink2"), (320e9, "nvlink3"), (500e9, "nvlink4")):
        if fastest <= limit:
            return name
    return "nvlink5"


def _activity(shape: _Shape, kind: str, size_bytes: float, protocol: Protocol) -> Activity:
    groups, algorithm = shape.groups, shape.algorithm
    latency = algorithm.latency_s(groups, kind, protocol)
    factor = np.ones(len(_KINDS))
    if protocol.name != "ideal":
        reached = dict(shape.transport.reached)
        if algorithm.sms == "nvls":
            reached["nvlink"] = shape.transport.nvls_reached
        factor = np.array([1 / (reached[name] * protocol.payload[name]) for name in _KINDS])
        latency += shape.transport.launch_s + _ramp_s(shape, protocol, size_bytes)
    lone = groups.each == 1 and groups.nodes > 1 and algorithm.name == "ring" and protocol.name != "ideal"
    where = "net" if groups.nodes > 1 and algorithm.sms == "node" else algorithm.sms
    return Activity(
        kind=kind,
        algorithm=algorithm.name,
        protocol=protocol.name,
        size_bytes=size_bytes,
        latency_s=latency if groups.size > 1 else 0.0,
        links=shape.links,
        bytes=shape.load * factor[shape.kinds] * size_bytes,
        rate_cap_per_s=_lone_cap(shape, size_bytes) if lone else math.inf,
        sms=0.0 if protocol.name == "ideal" else shape.transport.sms[where],
        hbm_bytes=algorithm.hbm_per_byte(kind, groups.size) * size_bytes,
    )


def _lone_cap(shape: _Shape, size_bytes: float) -> float:
    """What a group with one member a node drives at most, in activities a second."""
    net = shape.kinds == _KINDS.index("net")
    if not net.any() or size_bytes <= 0:
        return math.inf
    capacity = shape.groups.fabric.capacity_bytes_per_s[shape.links[net]]
    alone = float((capacity / shape.load[net]).min())
    return alone * shape.transport.lone_reached / size_bytes


def _ramp_s(shape: _Shape, protocol: Protocol, size_bytes: float) -> float:
    """Filling the pipeline of chunks: grows with the size until a chunk is full."""
    if protocol.name != "Simple" or not len(shape.links):
        return 0.0
    kind = _KINDS[int(shape.kinds.max())]
    most = shape.transport.ramp_bytes[kind]
    capacity = shape.groups.fabric.capacity_bytes_per_s[shape.links]
    slowest = float((capacity / np.maximum(shape.load, 1e-12)).min())
    return min(size_bytes, most) / slowest
