"""Torus of 1 to 3 dimensions: every accelerator is linked to its neighbours, ends joined.

Accelerators are numbered with the first dimension fastest. Routes go dimension by dimension, the
shorter way round; `channel` rotates the order of the dimensions, so that parallel rings spread. A
dimension of length 2 has both its links between the same two neighbours (Dally and Towles,
Principles and Practices of Interconnection Networks, chapter 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.network.fabric import Fabric
from simulator.network.families import family
from simulator.network.families.parameters import Family, checked, flag, quantity, whole, wholes
from simulator.network.links import Ints, LinkTableBuilder, Pattern
from simulator.network.routing import NONE, pack
from simulator.spec import Gpu, Topology

_AXES: Final = "xyz"


@family("torus")
@dataclass(frozen=True, slots=True, kw_only=True)
class Torus(Family):
    """Parameters of a torus (or, without `wrap`, a mesh)."""

    dimensions: int = whole(3, about="1, 2 or 3")
    shape: tuple[int, ...] = wholes(least=1, about="of the torus; as near a cube as it goes if not given")
    wrap: bool = flag(True, about="join the ends")
    gpus_per_host: int = whole(4, about="accelerators under one operating system")
    link_bandwidth: float | None = quantity(
        "bytes_per_s",
        None,
        about="of a link, one direction; the accelerator's, spread evenly, if not given",
    )
    link_latency: float = quantity("s", 0.0, zero=True, about="of a hop")

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        shape = self.shape_of(gpus)
        each = gpu.nvlink_bandwidth_bytes_per_s / (2 * len(shape))
        bandwidth = self.link_bandwidth or each
        checked((bandwidth > 0, "link_bandwidth", f"missing: {gpu.name} has no links of its own"))
        table = LinkTableBuilder()
        links = _lay(shape, self.wrap, self.gpus_per_host, bandwidth, self.link_latency, table)
        hosts = np.arange(gpus) // self.gpus_per_host
        longest = max(shape)
        across = (2 if self.wrap else 1) * gpus // longest
        return Fabric(
            name=topology.name,
            family=topology.family,
            n_gpus=gpus,
            n_nodes=int(hosts[-1]) + 1,
            node_of=hosts,
            local_rank=np.arange(gpus) % self.gpus_per_host,
            host_of=hosts,
            links=table.table(),
            router=TorusRouter(shape, self.wrap, links),
            nics_per_node=0,
            channels=len(shape),
            nic_of=np.full((gpus, 1), -1, np.int64),
            bisection_bytes_per_s=across * bandwidth if longest % 2 == 0 else None,
            shape=shape,
            parameters=self,
        )

    def shape_of(self, gpus: int) -> tuple[int, ...]:
        """Lengths of the dimensions for that many accelerators."""
        if self.shape:
            checked(
                (
                    len(self.shape) <= len(_AXES),
                    "shape",
                    f"{list(self.shape)}: expected 1 to 3 lengths",
                ),
                (
                    prod(self.shape) == gpus,
                    "shape",
                    f"{list(self.shape)} holds {prod(self.shape)} accelerators, not {gpus}",
                ),
            )
            return self.shape
        checked(
            (
                self.dimensions <= len(_AXES),
                "dimensions",
                f"{self.dimensions}: expected 1 to {len(_AXES)}",
            )
        )
        return near_cube(gpus, self.dimensions)


def near_cube(number: int, dimensions: int) -> tuple[int, ...]:
    """Factors of `number`, as equal as they come, in ascending order.

    >>> near_cube(512, 3), near_cube(128, 3), near_cube(12, 2)
    ((8, 8, 8), (4, 4, 8), (3, 4))
    """
    if dimensions == 1:
        return (number,)
    root = round(number ** (1 / dimensions) + 1e-9)
    least = next(d for d in range(max(root, 1), 0, -1) if number % d == 0)
    rest = near_cube(number // least, dimensions - 1)
    return tuple(sorted((least, *rest)))


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The links of all accelerators in one direction of one axis."""

    label: str
    tail: Ints
    head: Ints
    per_host: int

    @property
    def count(self) -> int:
        return len(self.tail)

    def _accelerator(self, number: int) -> str:
        host, local = divmod(number, self.per_host)
        return f"node{host}/gpu{local}"

    def name(self, i: int) -> str:
        return f"{self._accelerator(int(self.tail[i]))}/{self.label}"

    def ends(self, i: int) -> tuple[str, str]:
        return self._accelerator(int(self.tail[i])), self._accelerator(int(self.head[i]))

    def find(self, pattern: Pattern) -> Iterator[int]:
        for i in range(self.count):
            tail, head = self.ends(i)
            near = pattern.may_match(f"{tail}/") and pattern.matches(f"{tail}/{self.label}")
            if near or (pattern.may_match(f"{head}/") and pattern.matches(f"{head}/{self.name(i)}")):
                yield i


def _lay(
    shape: tuple[int, ...],
    wrap: bool,
    per_host: int,
    bandwidth: float,
    latency_s: float,
    table: LinkTableBuilder,
) -> Ints:
    """Put the links into the table; their numbers, shape (2 * dimensions, accelerators), -1: none."""
    number = np.arange(prod(shape))
    links = np.full((2 * len(shape), len(number)), NONE, np.int64)
    stride = 1
    for axis, length in enumerate(shape):
        at = number // stride % length
        for side, step in enumerate((1, -1)):
            to = number + ((at + step) % length - at) * stride
            inside = (at + step >= 0) & (at + step < length)
            there = inside | np.full(len(number), wrap and length > 1)
            run = _Side(f"{_AXES[axis]}{'+-'[side]}", number[there], to[there], per_host)
            start = table.add(run, "torus", bandwidth, latency_s)
            links[2 * axis + side, there] = start + np.arange(run.count)
        stride *= length
    return links


@dataclass(frozen=True, slots=True, eq=False)
class TorusRouter:
    """Dimension-order routing. `links`: shape (2 * dimensions, accelerators)."""

    shape: tuple[int, ...]
    wrap: bool
    links: Ints

    def routes(self, src: Ints, dst: Ints, channel: int) -> tuple[Ints, Ints]:
        axes = range(len(self.shape))
        turned = [(axis + channel) % len(self.shape) for axis in axes]
        strides = [prod(self.shape[:axis]) for axis in axes]
        here, pieces = src.copy(), [np.full(len(src), NONE, np.int64)]
        for axis in turned:
            length, stride = self.shape[axis], strides[axis]
            at, goal = here // stride % length, dst // stride % length
            forward, hops = self._way(at, goal, length, src)
            for hop in range(int(hops.max(initial=0))):
                moves = hop < hops
                side = np.where(forward, 2 * axis, 2 * axis + 1)
                pieces.append(np.where(moves, self.links[side, here], NONE))
                step = np.where(forward, 1, -1)
                now = here // stride % length
                here = np.where(moves, here + ((now + step) % length - now) * stride, here)
        return pack(pieces)

    def _way(self, at: Ints, goal: Ints, length: int, src: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Whether each goes forward, and how far; half-way round, odd senders go backward."""
        if not self.wrap:
            return goal >= at, np.abs(goal - at)
        ahead = (goal - at) % length
        forward = (2 * ahead < length) | ((2 * ahead == length) & (src % 2 == 0))
        return forward, np.where(forward, ahead, length - ahead)
