"""Links that can never hold anything up.

All that climbs through a switch's uplink has come in through the links below it (and all that comes down
through it leaves by them). Where those together carry no more than the uplink does, as in a network without
oversubscription, they fill before it or with it: max-min fair shares are the same without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.network.fabric import Fabric
from simulator.network.links import Floats, Grid

#: Capacities that differ by less than this part are the same: they are sums.
_SAME = 1e-9


def never_bind(fabric: Fabric) -> NDArray[np.bool_]:
    """Whether a link only ever carries what other links carry too that cannot fill it, shape (links,).

    Of trees of switches, whose routes go up and then down; elsewhere no link is known to be such.
    """
    links = fabric.links
    result = np.zeros(len(links.tier), dtype=bool)
    below: dict[tuple[str, str], float] = {}  # (vertex, direction) -> capacity of the links below it
    if any(layer.peers for layer in fabric.layers):
        return result
    grids = [
        (run, np.arange(int(start), int(start) + run.count))
        for run, start in zip(links.runs, links.starts.tolist(), strict=True)
        if isinstance(run, Grid) and run.direction and run.upper_format
    ]
    for grid, numbers in grids:
        for vertex, capacity in _above(grid, links.capacity_bytes_per_s[numbers]).items():
            key = (vertex, grid.direction)
            below[key] = below.get(key, 0.0) + capacity
    for grid, numbers in grids:
        if any(key[0].startswith(grid.owner.partition("{")[0]) for key in below):
            for i, number in enumerate(numbers.tolist()):
                lower = grid.ends(i)[grid.direction == "down"]
                most = below.get((lower, grid.direction))
                result[number] = most is not None and links.capacity_bytes_per_s[number] >= most * (1 - _SAME)
    return result


def _above(grid: Grid, capacity: Floats) -> dict[str, float]:
    """Capacity of the grid's links that lead to each vertex above."""
    assert grid.upper_number is not None
    kinds, of_link = np.unique(grid.upper_number.reshape(grid.count, -1), axis=0, return_inverse=True)
    sums = np.bincount(of_link.ravel(), weights=capacity, minlength=len(kinds))
    names = (grid.upper_format.format(*kind) for kind in kinds.tolist())
    return dict(zip(names, sums.tolist(), strict=True))
