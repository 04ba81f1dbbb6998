"""Weighted max-min fairness: how concurrent flows share links.

Progressive filling (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2): the rates of all
flows rise together, in proportion to their weights, until a link is full or a flow meets its cap; what
that stops keeps its rate, and the rest rises on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Levels that differ by less than this part are one level: sums of floats differ in their last bits.
_SAME = 1e-12


def max_min(
    capacity: Floats,
    indptr: Ints,
    links: Ints,
    coefficients: Floats,
    caps: Floats,
    weights: Floats,
) -> Floats:
    """Rates of n flows, shape (n,).

    Flow i loads `links[indptr[i]:indptr[i + 1]]` with `coefficients` units for each unit of its rate; a
    link carries `capacity` units a second. `caps`: most that a flow can do (inf: nothing but links limits
    it); `weights`: shares where flows compete. A flow on no link runs at its cap.

    Every rate is at its cap or has a full link on its way on which no flow of greater rate over weight
    goes. Each round settles at least one flow: O(rounds x entries).
    """
    count = len(caps)
    owner = np.repeat(np.arange(count), np.diff(indptr))
    rates = np.zeros(count)
    open_ = np.ones(count, dtype=bool)
    left = capacity.astype(np.float64).copy()
    pull = coefficients * weights[owner]
    limit = np.divide(caps, weights)
    while open_.any():
        live = open_[owner]
        load = np.bincount(links[live], weights=pull[live], minlength=len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            level_of_link = np.where(load > 0, left / load, np.inf)
        level = limit.copy()
        np.minimum.at(level, owner[live], level_of_link[links[live]])
        level[~open_] = np.inf
        lowest = level.min()
        if not np.isfinite(lowest):
            rates[open_] = np.inf
            break
        settled = open_ & (level <= lowest * (1 + _SAME))
        rates[settled] = np.minimum(lowest * weights[settled], caps[settled])
        open_ &= ~settled
        done = settled[owner]
        np.subtract.at(left, links[done], coefficients[done] * rates[owner[done]])
        np.maximum(left, 0.0, out=left)
    return rates
