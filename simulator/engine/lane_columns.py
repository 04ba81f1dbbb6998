"""Columns of a timeline from what the lanes engine recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.lane_axes import Ints
from simulator.engine.record import Names
from simulator.timeline import Collectives, HostSpans, LoaderSpans

if TYPE_CHECKING:
    from simulator.engine.calm import Calm


def joined(parts: Sequence[NDArray[Any]], kind: type) -> NDArray[Any]:
    """Arrays end to end, rows of rows one after the other."""
    return np.concatenate([np.empty(0, dtype=kind), *(part.ravel() for part in parts)]).astype(
        kind, copy=False
    )


def host_columns(rows: Sequence[tuple[Any, ...]], names: Names) -> HostSpans:
    """Columns of (lanes, starts, ends, kind, name, step)."""
    counts = [len(row[0]) for row in rows]

    def each(pick: Callable[[tuple[Any, ...]], int]) -> Ints:
        return np.repeat(np.array([pick(row) for row in rows], dtype=np.int64), counts)

    return HostSpans(
        rank=joined([row[0] for row in rows], np.int64),
        start_s=joined([row[1] for row in rows], np.float64),
        end_s=joined([row[2] for row in rows], np.float64),
        kind=each(lambda row: int(row[3])),
        name=each(lambda row: names(row[4])),
        step=each(lambda row: row[5]),
    )


def collective_columns(rows: Sequence[Sequence[Any]], calm: Calm, names: Names) -> Collectives:
    """Columns of [item, members, begin, end, first, last]."""
    items, members, begin, end, first, last = zip(*rows, strict=True) if (rows) else ((),) * 6
    unique = dict(zip(map(id, items), items, strict=True))
    number = {key: i for i, key in enumerate(unique)}
    place = np.array([number[id(item)] for item in items], np.int64)
    works = [item.work for item in unique.values()]
    return Collectives(
        kind=np.array([names(getattr(work, "kind", "send-recv")) for work in works], np.int64)[place],
        axis=np.array([names(getattr(work, "group", "pp")) for work in works], np.int64)[place],
        size_bytes=np.array([work.size_bytes for work in works], np.float64)[place],
        group_size=np.array(members, np.int64),
        begin_s=np.array(begin, np.float64),
        end_s=np.array(end, np.float64),
        ideal_s=np.array([calm.ideal_s(item) for item in unique.values()], np.float64)[place],
        first_s=np.array(first, np.float64),
        last_rank=np.array(last, np.int64),
    )


def loader_columns(rows: Sequence[tuple[Any, ...]]) -> LoaderSpans:
    """Columns of (lanes, worker, batch, starts, ends)."""
    counts = [len(row[0]) for row in rows]
    return LoaderSpans(
        joined([row[0] for row in rows], np.int64),
        np.repeat(np.array([row[1] for row in rows], np.int64), counts),
        np.repeat(np.array([row[2] for row in rows], np.int64), counts),
        joined([row[3] for row in rows], np.float64),
        joined([row[4] for row in rows], np.float64),
    )
