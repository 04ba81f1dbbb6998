"""Which of many machines is not like the others: a robust test with a stated rate of false alarms.

Centre and scale are medians, so that the outlier that is sought does not hide itself. A value is
called out if it lies above the centre by more than the Bonferroni quantile of Student's t allows.
A scale from a median absolute deviation of n normal values is as good as a standard deviation of
about 0.37 n values (its efficiency: Rousseeuw and Croux, JASA 88, 1993), which gives the degrees of
freedom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.analysis.intervals import Floats, Ints

#: standard deviation of a normal distribution over its median absolute deviation
_NORMAL: Final = 1.4826
#: efficiency of the median absolute deviation against the standard deviation
_EFFICIENCY: Final = 0.37
#: differences below this are rounding and schedule noise, whatever their scale
_SCALE_FLOOR: Final = 0.002
#: a median of m normal values varies like a mean, times the square root of pi / 2
_OF_MEDIAN: Final = 1.2533
#: fewer machines than this say nothing about how machines differ
_ENOUGH: Final = 8


@dataclass(frozen=True, slots=True)
class Outlier:
    """A unit (a node or a rank, by its number in the input) above the others by `excess`."""

    unit: int
    excess: float
    p_value: float


def weighted_median(values: Floats, weights: Floats) -> float:
    """The lower weighted median: half of the weight is at or below it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def machines(
    values: Floats, node: Ints, ranks: Floats, *, false_alarms: float, least: float
) -> tuple[Outlier, ...]:
    """Nodes most of whose ranks are above the rest, the worst first; unit = node number.

    `values`: logarithms or differences by lane; `ranks`: ranks that each lane stands for;
    `false_alarms`: probability of any call when all are alike; `least`: smallest excess of interest.
    """
    nodes, index = np.unique(node, return_inverse=True)
    middle = _medians(values, index, len(nodes), ranks)
    size = np.bincount(index, weights=ranks).astype(np.float64)
    centre = weighted_median(middle, size)
    per_node = float(np.median(np.minimum(size, np.bincount(index))))
    scale, freedom = _scale(np.abs(values - middle[index]), ranks, len(nodes))
    scale *= _OF_MEDIAN / np.sqrt(max(1.0, per_node))
    if len(nodes) >= _ENOUGH:
        across = _NORMAL * weighted_median(np.abs(middle - centre), size)
        if per_node < 2:
            freedom = _EFFICIENCY * (len(nodes) - 1)
        scale = max(scale, across)
    return _above(
        middle - centre, nodes, max(scale, _SCALE_FLOOR), freedom, false_alarms=false_alarms, least=least
    )


def ranks_of_machines(
    values: Floats, node: Ints, ranks: Floats, *, false_alarms: float, least: float
) -> tuple[Outlier, ...]:
    """Lanes above the other lanes of their own node, the worst first; unit = lane."""
    nodes, index = np.unique(node, return_inverse=True)
    if len(nodes) == len(values):
        return ()  # alone on its node, a rank is its node
    excess = values - _medians(values, index, len(nodes), ranks)[index]
    scale, freedom = _scale(np.abs(excess), ranks, len(nodes))
    scale *= np.sqrt(1 + _OF_MEDIAN**2 * len(nodes) / len(values))  # the median varies too
    lanes = np.arange(len(values))
    return _above(excess, lanes, max(scale, _SCALE_FLOOR), freedom, false_alarms=false_alarms, least=least)


def _medians(values: Floats, index: Ints, groups: int, weights: Floats) -> Floats:
    """The weighted median of each group, between the two middle values where it falls between them,
    shape (groups,).
    """
    order = np.lexsort((values, index))
    reached = np.cumsum(weights[order])
    ends = np.cumsum(np.bincount(index, minlength=groups)) - 1
    half = (np.concatenate([[0.0], reached[ends[:-1]]]) + reached[ends]) / 2
    low = np.searchsorted(reached, half)
    high = np.minimum(np.searchsorted(reached, half, side="right"), ends)
    result: Floats = (values[order][low] + values[order][high]) / 2
    return result


def _scale(deviations: Floats, ranks: Floats, nodes: int) -> tuple[float, float]:
    """(standard deviation, its degrees of freedom) from deviations around the nodes' medians.

    The ranks that a lane stands for did the very same, so each lane counts once in the freedom. The
    median of a node is near its values, which makes the deviations too small: `_small_sample`.
    """
    lanes, free = len(deviations), len(deviations) - nodes
    if free < 1:
        return 0.0, max(1.0, _EFFICIENCY * (float(ranks.sum()) - 1))
    scale = _NORMAL * weighted_median(deviations, ranks) * _small_sample(lanes / nodes)
    return scale, max(1.0, _EFFICIENCY * free)


def _small_sample(size: float) -> float:
    """Standard deviation over 1.4826 MAD for deviations from the medians of groups of `size` normals.

    From 200,000 draws a size: 1.41 for 2, 2.16 for 3 (a third of the deviations are 0), 1.39 for 4,
    1.195 for 8, 1.083 for 16; from 4 on, size / (size - 1.25) is within 4%.
    """
    if size < 4:
        return float(np.interp(size, [1, 2, 3, 4], [1.41, 1.41, 2.16, 1.45]))
    return size / (size - 1.25)


def _above(
    excess: Floats, units: Ints, scale: float, freedom: float, *, false_alarms: float, least: float
) -> tuple[Outlier, ...]:
    from scipy.special import stdtr

    p_value = np.minimum(1.0, len(units) * stdtr(freedom, -excess / scale))
    found = np.flatnonzero((p_value <= false_alarms) & (excess >= least))
    found = found[np.argsort(-excess[found], kind="stable")]
    return tuple(Outlier(int(units[i]), float(excess[i]), float(p_value[i])) for i in found)
