"""Intervals by rank, in bulk: unions, overlaps, neighbours. Exact: no time is ever scaled or
rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def last_at_or_before(rank: Ints, time_s: Floats, of_rank: Ints, at_s: Floats) -> Ints:
    """For each query the position of the last entry of its rank with `time_s` <= `at_s`, or -1.

    `rank`, `time_s`: the table, sorted by rank and then by time, shape (n,). `of_rank`, `at_s`: the
    queries, shape (m,). O((n + m) log(n + m)).
    """
    return _before(rank, time_s, of_rank, at_s, inclusive=True)


def last_before(rank: Ints, time_s: Floats, of_rank: Ints, at_s: Floats) -> Ints:
    """Like `last_at_or_before`, with `time_s` < `at_s`."""
    return _before(rank, time_s, of_rank, at_s, inclusive=False)


def _before(rank: Ints, time_s: Floats, of_rank: Ints, at_s: Floats, *, inclusive: bool) -> Ints:
    n, m = len(rank), len(of_rank)
    query = np.zeros(n + m, dtype=np.int8)
    query[n:] = 1
    tie = query if inclusive else 1 - query  # what stands first among equals
    ranks = np.concatenate([rank, of_rank])
    order = np.lexsort((tie, np.concatenate([time_s, at_s]), ranks))
    seen = np.cumsum(order < n) - 1  # position of the last table entry so far, of any rank
    result = np.full(m, -1, dtype=np.int64)
    mine = order >= n
    result[order[mine] - n] = seen[mine]
    found = result >= 0
    found[found] = rank[result[found]] == of_rank[found]
    result[~found] = -1
    return result


def expand(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Rows `first[i]` to `last[i]` (inclusive) of every i, one after the other: (i, row)."""
    counts = np.maximum(0, last - first + 1)
    owner = np.repeat(np.arange(len(first)), counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.repeat(first, counts) + np.arange(int(counts.sum())) - start


def total(index: Ints, values: Floats, count: int) -> Floats:
    """The sum of the values at each index, shape (count,)."""
    result: Floats = np.bincount(index, weights=values, minlength=count).astype(np.float64)
    return result


def covered(rank: Ints, start_s: Floats, end_s: Floats, lanes: int, least: int = 1) -> Floats:
    """Time covered by at least `least` of the intervals, for each rank, shape (lanes,)."""
    ranks, times, depth = _depth(rank, start_s, end_s)
    return _time_where(ranks, times, depth >= least, lanes)


def overlap(one: tuple[Ints, Floats, Floats], other: tuple[Ints, Floats, Floats], lanes: int) -> Floats:
    """Time covered by intervals of both sets at once, for each rank, shape (lanes,).

    A set is (rank, start_s, end_s). |A and B| = |A| + |B| - |A or B|, each a union.
    """
    both = tuple(np.concatenate(pair) for pair in zip(one, other, strict=True))
    union = covered(both[0].astype(np.int64), both[1], both[2], lanes)
    return np.maximum(0.0, covered(*one, lanes) + covered(*other, lanes) - union)


def union(rank: Ints, start_s: Floats, end_s: Floats) -> tuple[Ints, Floats, Floats]:
    """The intervals merged where they touch: (rank, start_s, end_s), sorted."""
    ranks, times, depth = _depth(rank, start_s, end_s)
    inside = depth > 0
    opens = inside & ~np.concatenate([[False], inside[:-1]])
    closes = ~inside & np.concatenate([[False], inside[:-1]])
    starts, ends = times[opens], times[closes]
    return ranks[opens], starts, ends


def clip(spans: tuple[Ints, Floats, Floats], low_s: Floats, high_s: Floats) -> tuple[Ints, Floats, Floats]:
    """The parts of (rank, start_s, end_s) inside each rank's window, bounds of shape (lanes,)."""
    rank, start, end = spans
    start, end = np.maximum(start, low_s[rank]), np.minimum(end, high_s[rank])
    keep = end > start
    return rank[keep], start[keep], end[keep]


def _depth(rank: Ints, start_s: Floats, end_s: Floats) -> tuple[Ints, Floats, Ints]:
    """The edges of all intervals sorted by rank and time, and how many are open after each.

    At equal times starts come first, so that what touches is one. Each rank's edges add up to 0, so
    one running sum serves all ranks.
    """
    keep = end_s > start_s
    rank, start_s, end_s = rank[keep], start_s[keep], end_s[keep]
    n = len(rank)
    ranks = np.concatenate([rank, rank])
    times = np.concatenate([start_s, end_s])
    change = np.ones(2 * n, dtype=np.int64)
    change[n:] = -1
    order = np.lexsort((-change, times, ranks))
    return ranks[order], times[order], np.cumsum(change[order])


def _time_where(ranks: Ints, times: Floats, mask: Bools, lanes: int) -> Floats:
    if not len(ranks):
        return np.zeros(lanes)
    length = np.where(mask[:-1] & (ranks[1:] == ranks[:-1]), times[1:] - times[:-1], 0.0)
    return total(ranks[:-1], length, lanes)
