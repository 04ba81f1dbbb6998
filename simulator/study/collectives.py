"""A collective by size on a cluster, alone or many groups at once, beside measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import SpecError, nearest
from simulator.formats.nccl_tests import read_nccl_tests
from simulator.hardware import gpu as find_gpu
from simulator.network import fabric as fabrics
from simulator.network.activity import BUS_FACTORS, Activity
from simulator.network.collectives import KINDS, plan
from simulator.network.fabric import Fabric
from simulator.network.fluid import max_min
from simulator.network.protocols import read_overlay
from simulator.scenario import load_topology
from simulator.units import UnitError, parse


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: see `trainsim collective --help`."""

    kind: str
    cluster: str = "dgx-h100"
    nodes: int | None = None
    gpus: int | None = None
    gpu: str | None = None
    size: str = "8B..8GB"
    group: str | None = None
    algorithm: str = "auto"
    protocol: str = "auto"
    measured: Path | None = None
    overlay: Path | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One size. `error`: our time over the measured one, less 1."""

    size_bytes: float
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    algorithm: str
    protocol: str
    measured_s: float | None = None

    @property
    def error(self) -> float | None:
        return None if self.measured_s is None else self.time_s / self.measured_s - 1

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "measured_s"}
        if self.measured_s is not None:
            plain |= {"measured_s": self.measured_s, "error": self.error}
        return plain


def rows(question: Question) -> list[Row]:
    """A row for each size. Raises SpecError for what cannot be asked."""
    if question.kind not in KINDS:
        raise SpecError.of("kind", f"'{question.kind}': no such collective{nearest(question.kind, KINDS)}")
    fabric = _fabric(question)
    groups = _groups(question, fabric)
    measured: dict[float, float] = {}
    if question.measured is not None:
        measured = {row.size_bytes: row.time_s for row in read_nccl_tests(question.measured).rows}
    sizes = sorted(measured) if measured else read_sizes(question.size)
    return [_row(question, fabric, groups, size, measured.get(size)) for size in sizes]


def _fabric(question: Question) -> Fabric:
    topology = load_topology(question.cluster)
    gpu = find_gpu(question.gpu or topology.gpu)
    count = question.gpus
    if count is None:
        nodes = 1 if question.nodes is None else question.nodes
        if nodes < 1:
            raise SpecError.of("--nodes", f"{nodes}: expected 1 or more")
        count = nodes * int(topology.parameters.get("gpus_per_node", 8))  # type: ignore[arg-type]
    return fabrics.build(topology, count, gpu)


def _groups(question: Question, fabric: Fabric) -> list[list[int]]:
    everyone = list(range(fabric.n_gpus))
    if question.group is None:
        return [everyone[:2] if question.kind == "send-recv" else everyone]
    if question.group == "rails":
        found: dict[int, list[int]] = {}
        for gpu, local in enumerate(fabric.local_rank.tolist()):
            found.setdefault(local, []).append(gpu)
        return list(found.values())
    if not question.group.isdecimal() or int(question.group) < 1:
        raise SpecError.of("--group", f"'{question.group}': expected a number of GPUs, or rails")
    size = int(question.group)
    if fabric.n_gpus % size:
        raise SpecError.of("--group", f"{size}: does not divide the {fabric.n_gpus} GPUs")
    return [everyone[first : first + size] for first in range(0, fabric.n_gpus, size)]


def read_sizes(text: str) -> list[float]:
    """Sizes of "1MiB" or "8B..8GB" (doubling). Raises SpecError for what are no sizes."""
    first, dots, last = text.partition("..")
    try:
        low = parse(first, "bytes")
        high = parse(last, "bytes") if dots else low
    except UnitError as error:
        raise SpecError.of("--size", str(error)) from error
    if low <= 0 or high < low:
        raise SpecError.of("--size", f"'{text}': expected sizes above 0, the smaller first")
    sizes = [low]
    while sizes[-1] * 2 <= high * (1 + 1e-9):
        sizes.append(sizes[-1] * 2)
    return sizes


def _row(
    question: Question, fabric: Fabric, groups: list[list[int]], size: float, measured_s: float | None
) -> Row:
    plans = [
        plan(
            fabric,
            question.kind,
            group,
            size,
            algorithm=question.algorithm,
            protocol=question.protocol,
            constants=None if question.overlay is None else read_overlay(question.overlay),
        )
        for group in groups
    ]
    time = max(times_together(fabric, plans))
    factor = BUS_FACTORS[question.kind](len(groups[0]))
    algbw = size / time if time > 0 else 0.0
    one = plans[0]
    return Row(size, time, algbw, algbw * factor, one.algorithm, one.protocol, measured_s)


def times_together(fabric: Fabric, plans: Iterable[Activity]) -> list[float]:
    """Times of activities that start at once and share links by max-min fairness; rates at the start."""
    plans = list(plans)
    if len(plans) == 1:
        return [plans[0].alone_s(fabric.capacity_bytes_per_s)]
    rates = max_min(
        fabric.capacity_bytes_per_s,
        np.cumsum([0, *(len(one.links) for one in plans)]),
        np.concatenate([one.links for one in plans]),
        np.concatenate([one.bytes for one in plans]),
        np.array([one.rate_cap_per_s for one in plans]),
        np.ones(len(plans)),
    )
    return [one.latency_s + 1 / rate for one, rate in zip(plans, rates.tolist(), strict=True)]
