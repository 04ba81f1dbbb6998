"""What a segment costs on a GPU: its max-plus matrix, as a function of the speed it is given.

A run of kernels on one stream maps (host clock h, stream clock s) to (h + C, max(s + A, h + B)): A is
the sum of the durations, C the sum of the launch times, B the longest path that starts with some
launch. A kernel takes max(compute / sm, memory / hbm), where sm and hbm are the parts of the GPU's SM
throughput and of its HBM bandwidth that it gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.hardware import Stack, kernel_cost
from simulator.program.instructions import Segment
from simulator.spec import Gpu

Floats = NDArray[np.float64]

#: From so many speeds on they are worked out as arrays.
FEW_SPEEDS: Final = 32


@dataclass(slots=True, eq=False)
class SegmentCost:
    """One segment on one kind of GPU. The arrays have one entry a kernel, shape (kernels,).

    `host_s`: C, what issuing all of it costs the host. Matrices are remembered by speed, since a
    simulation meets the same few speeds again and again.
    """

    compute_s: Floats
    memory_s: Floats
    launch_s: Floats
    host_s: float
    varies: Mapping[str, Floats]  # "attention" | "experts": mask of the kernels that scale
    first_s: float = 0.0  # the launch of the first kernel
    remembered: dict[tuple[float, float], tuple[float, float, Mapping[str, float]]] = field(
        default_factory=dict
    )

    def matrix(self, sm: float = 1.0, hbm: float = 1.0) -> tuple[float, float, Mapping[str, float]]:
        """(A, B, the part of A that each varying load scales) at the given speeds; inf at speed 0."""
        known = self.remembered.get((sm, hbm))
        if known is None:
            known = self.remembered[sm, hbm] = self._matrix(sm, hbm)
        return known

    def _matrix(self, sm: float, hbm: float) -> tuple[float, float, Mapping[str, float]]:
        durations = self.durations_s(sm, hbm)
        total = float(durations.sum())
        if not len(durations):
            return 0.0, self.host_s, dict.fromkeys(self.varies, 0.0)
        launched = np.cumsum(self.launch_s)
        rest = total - np.cumsum(durations) + durations if np.isfinite(total) else durations
        lead = float((launched + rest).max())
        parts = {name: float(durations[mask > 0].sum()) for name, mask in self.varies.items()}
        return total, lead, parts

    def matrices(self, sm: Floats, hbm: Floats) -> tuple[Floats, Floats, Mapping[str, Floats]]:
        """`matrix` for arrays of speeds, shape (n,) each."""
        if len(sm) <= FEW_SPEEDS:
            rows = [self.matrix(*pair) for pair in zip(sm.tolist(), hbm.tolist(), strict=True)]
            parts = {name: np.array([row[2][name] for row in rows]) for name in self.varies}
            return np.array([r[0] for r in rows]), np.array([r[1] for r in rows]), parts
        with np.errstate(divide="ignore", invalid="ignore"):
            durations = np.fmax(self.compute_s[:, None] / sm, self.memory_s[:, None] / hbm)
        total = durations.sum(axis=0)
        if not len(self.compute_s):
            return total, np.full(len(sm), self.host_s), {}
        rest = total - np.cumsum(durations, axis=0) + durations
        lead = (np.cumsum(self.launch_s)[:, None] + rest).max(axis=0)
        parts = {name: durations[mask > 0].sum(axis=0) for name, mask in self.varies.items()}
        return total, lead, parts

    def durations_s(self, sm: float = 1.0, hbm: float = 1.0) -> Floats:
        """Time of each kernel, shape (kernels,)."""
        if sm <= 0 or hbm <= 0:
            return np.full(len(self.compute_s), np.inf)
        return np.maximum(self.compute_s / sm, self.memory_s / hbm)


def segment_cost(
    segment: Segment, gpu: Gpu, stack: Stack, *, launch_time_s: float, cuda_graphs: bool
) -> SegmentCost:
    """Price every kernel of a segment on a GPU.

    With CUDA graphs the whole segment is one launch; the Python between its kernels is gone too.
    """
    costs = [kernel_cost(kernel, gpu, stack) for kernel in segment.kernels]
    launches = np.array([kernel.launches for kernel in segment.kernels], dtype=np.float64)
    if cuda_graphs:
        launch_s = np.zeros(len(costs))
        launch_s[:1] = launch_time_s
    else:
        extra = segment.host_s / max(1.0, launches.sum())
        launch_s = launches * (launch_time_s + extra)
    masks = {}
    for name in {kernel.varies for kernel in segment.kernels if kernel.varies}:
        masks[name] = np.array([kernel.varies == name for kernel in segment.kernels], dtype=np.float64)
    return SegmentCost(
        compute_s=np.array([cost.compute_s for cost in costs]),
        memory_s=np.array([cost.memory_s for cost in costs]),
        launch_s=launch_s,
        host_s=float(launch_s.sum()),
        varies=masks,
        first_s=float(launch_s[0]) if len(launch_s) else 0.0,
    )
