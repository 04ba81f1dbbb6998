"""Rings over NVLinks that join GPUs pairwise (hybrid cube mesh): as many side by side as the links allow.

Which cycles through all members carry how much is a linear program: maximise the sum of shares such that no
link carries more than its capacity. NCCL searches for such rings by brute force; for up to eight GPUs the
programme gives the same number of rings.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any, Final

import numpy as np

from simulator.network.collectives.base import Floats, Groups, Ints

#: Cycles through more members than this are too many to list.
MOST_MEMBERS: Final = 8


def rings(groups: Groups) -> list[tuple[Ints, float]]:
    """(members in order, share of the data) of each ring of the first group; empty where one ring will do.

    Only for groups inside one node whose members are joined by direct links.
    """
    members = groups.members[0, 0]
    n = len(members)
    if groups.nodes > 1 or not 3 <= n <= MOST_MEMBERS:
        return []
    capacity = _direct(groups, members)
    if capacity is None:
        return []
    cycles = np.array([(0, *rest) for rest in permutations(range(1, n))], dtype=np.int64)
    used = np.roll(cycles, -1, axis=1)
    cycles = cycles[(capacity[cycles, used] > 0).all(axis=1)]
    if not len(cycles):
        return []
    return [(members[cycles[i]], share) for i, share in _pack(cycles, capacity)]


def _direct(groups: Groups, members: Ints) -> Floats | None:
    """Capacity of the direct link between each pair, 0 for none; None where a switch joins them."""
    fabric = groups.fabric
    n = len(members)
    capacity = np.zeros((n, n))
    for a in range(n):
        others = np.array([b for b in range(n) if b != a])
        indptr, links = fabric.routes(np.full(n - 1, members[a]), members[others])
        for place, b in enumerate(others.tolist()):
            way = links[indptr[place] : indptr[place + 1]]
            nvlink = all(fabric.tiers[tier] == "nvlink" for tier in fabric.tier[way].tolist())
            if nvlink and len(way) == 1:
                capacity[a, b] = float(fabric.capacity_bytes_per_s[way[0]])
            elif nvlink and len(way) == 2 and "switch" in fabric.link_name(int(way[0])):
                return None
    return capacity if capacity.any() else None


def _pack(cycles: Ints, capacity: Floats) -> list[tuple[int, float]]:
    """(cycle, share of the data) of the best packing."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n = cycles.shape[1]
    following = np.roll(cycles, -1, axis=1)
    rows = (cycles * n + following).ravel()
    columns = np.repeat(np.arange(len(cycles)), n)
    use = coo_array((np.ones(len(rows)), (rows, columns)), shape=(n * n, len(cycles))).tocsr()
    found: Any = linprog(-np.ones(len(cycles)), A_ub=use, b_ub=capacity.ravel(), method="highs-ds")
    total = -float(found.fun) if found.success else 0.0
    if total <= 0:
        return []
    return [(i, float(found.x[i]) / total) for i in np.flatnonzero(found.x > 1e-9 * total).tolist()]
