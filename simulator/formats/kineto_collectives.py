"""Collectives of several ranks' traces: which kernels are one meeting, and by how much clocks differ.

Members of a meeting are its process group's k-th kernels. All of them end within a few microseconds of
each other, since each waits for the others' last bytes; so the median difference of their ends is the
difference of two ranks' clocks.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.formats.kineto import RankTrace, column
from simulator.formats.kineto_names import operation
from simulator.timeline import Collectives, DeviceKind, Floats, Ints

#: fewer meetings of two ranks than this say nothing certain of their clocks
_LEAST: Final = 3

_BYTES: Final[Mapping[str, int]] = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "byte": 1, "char": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Meeting:
    """`members`: (index of the trace, row of its GPU events)."""

    operation: str
    group: str
    size_bytes: float
    group_size: int
    members: tuple[tuple[int, int], ...]


def meetings(traces: Sequence[RankTrace]) -> list[Meeting]:
    """Every collective of the traces, point-to-point left out."""
    found: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for index, trace in enumerate(traces):
        names = list(trace.names)
        seen: dict[tuple[str, str, str], int] = defaultdict(int)
        rows = np.flatnonzero(column(trace.kind) == DeviceKind.COLLECTIVE)
        for row in rows[np.argsort(column(trace.ts)[rows], kind="stable")].tolist():
            about = trace.about.get(row, {})
            what = str(about.get("Collective name") or operation(names[trace.name[row]]))
            key = (str(about.get("Process Group Name", "")), str(about.get("Process Group Ranks", "")), what)
            found[*key, seen[key]].append((index, row))
            seen[key] += 1
    return [_meeting(traces, key, members) for key, members in found.items()]


def _meeting(traces: Sequence[RankTrace], key: tuple[Any, ...], members: list[tuple[int, int]]) -> Meeting:
    index, row = members[0]
    about = traces[index].about.get(row, {})
    group = str(about.get("Process Group Description") or key[0] or "unknown group")
    elements = max(_number(about.get("In msg nelems")), _number(about.get("Out msg nelems")))
    width = _BYTES.get(str(about.get("dtype", "")).lower(), 0)
    size = elements * width if width else np.nan
    listed = _listed(key[1])
    count = int(_number(about.get("Group size"), len(listed) or world_size(traces)))
    return Meeting(str(key[2]), group, size, count, tuple(members))


def _number(value: Any, default: float = np.nan) -> float:
    return float(value) if isinstance(value, (int, float)) else default


def _listed(text: str) -> list[int]:
    try:
        value = ast.literal_eval(text)  # "[0, 1, ...]" is cut off in long ones
    except (ValueError, SyntaxError):
        return []
    return list(value) if isinstance(value, (list, tuple)) else []


def world_size(traces: Sequence[RankTrace]) -> int:
    """Ranks of the job: as the first trace says, or as many as there are traces."""
    about = traces[0].head.get("distributedInfo")
    size = about.get("world_size") if isinstance(about, dict) else None
    return size if isinstance(size, int) else len(traces)


def clock_offsets_us(traces: Sequence[RankTrace], found: Sequence[Meeting]) -> Floats:
    """By how much each rank's clock is ahead of the first one's, shape (ranks,).

    0 where ranks meet too seldom, or where their ends differ as much after the shift as before: then
    the kernels were not the same meetings, or the clocks agreed already.
    """
    offset = np.zeros(len(traces))
    differences: dict[int, list[float]] = defaultdict(list)
    for meeting in found:
        ends = {index: traces[index].ts[row] + traces[index].dur[row] for index, row in meeting.members}
        if 0 in ends:
            for index, end in ends.items():
                differences[index].append(end - ends[0])
    for index, values in differences.items():
        if index and len(values) >= _LEAST:
            middle = float(np.median(values))
            if np.median(np.abs(np.array(values) - middle)) < 0.5 * np.median(np.abs(values)):
                offset[index] = middle
    return offset


def table(
    found: Sequence[Meeting], number: dict[str, int], first_row: Sequence[int], start_s: Floats, end_s: Floats
) -> tuple[Collectives, Ints]:
    """The meetings as rows, and each device span's meeting or -1.

    `first_row`: where each trace's GPU events begin among the device spans. Where members are missing
    from the traces the last to arrive is unknown, and `begin_s` is the last of those seen.
    """
    owner = np.full(len(start_s), -1, dtype=np.int64)
    begin, end, first, last = (np.zeros(len(found)) for _ in range(4))
    for at, meeting in enumerate(found):
        rows = np.array([first_row[index] + row for index, row in meeting.members])
        owner[rows] = at
        latest = int(np.argmax(start_s[rows]))
        first[at], begin[at], end[at] = start_s[rows].min(), start_s[rows].max(), end_s[rows].max()
        last[at] = meeting.members[latest][0] if len(rows) == meeting.group_size else -1
    return Collectives(
        kind=_indices(number, [one.operation for one in found]),
        axis=_indices(number, [one.group for one in found]),
        size_bytes=np.array([one.size_bytes for one in found], dtype=np.float64),
        group_size=np.array([one.group_size for one in found], dtype=np.int64),
        begin_s=begin, end_s=end, ideal_s=np.full(len(found), np.nan), first_s=first,
        last_rank=last.astype(np.int64),
    ), owner  # fmt: skip


def _indices(number: dict[str, int], names: list[str]) -> Ints:
    return np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
