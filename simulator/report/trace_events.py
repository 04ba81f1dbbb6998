"""The few kinds of Chrome trace events that are written, as JSON texts on an exact grid of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from simulator.analysis.intervals import Ints

#: a tick is 125 ns: 8 to a microsecond
_PER_S: Final = 8e6
_FRACTIONS: Final = ("", ".125", ".25", ".375", ".5", ".625", ".75", ".875")


def ticks(seconds: ArrayLike) -> Ints:
    """Seconds as whole ticks of 125 ns, elementwise."""
    result: Ints = np.rint(np.asarray(seconds, dtype=np.float64) * _PER_S).astype(np.int64)
    return result


def microseconds(tick: int) -> str:
    """A tick as microseconds, exactly.

    >>> microseconds(9)
    '1.125'
    """
    whole, part = divmod(tick, 8)
    return f"{whole}{_FRACTIONS[part]}"


@dataclass(frozen=True, slots=True)
class Track:
    """A thread of a process."""

    pid: int
    tid: int
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Something from `start` to `end` (ticks). `args`: the inside of a JSON object."""

    start: int
    end: int
    name: str
    category: str
    args: str = ""


def process(pid: int, name: str, sort: int) -> Iterator[str]:
    """The metadata of a process; processes are shown in order of `sort`."""
    yield _meta(pid, 0, "process_name", "name", json.dumps(name))
    yield _meta(pid, 0, "process_sort_index", "sort_index", str(sort))


def thread(track: Track) -> Iterator[str]:
    """The metadata of a thread; threads are shown in order of their numbers."""
    yield _meta(track.pid, track.tid, "thread_name", "name", json.dumps(track.name))
    yield _meta(track.pid, track.tid, "thread_sort_index", "sort_index", str(track.tid))


def _meta(pid: int, tid: int, what: str, key: str, value: str) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{what}","args":{{"{key}":{value}}}}}'


def slices(pid: int, tid: int, parts: Iterable[Slice]) -> Iterator[str]:
    """Complete events. Names are inserted as they are: they must be free of quotes."""
    for part in parts:
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{microseconds(part.start)},'
            f'"dur":{microseconds(part.end - part.start)},"name":"{part.name}",'
            f'"cat":"{part.category}","args":{{{part.args}}}}}'
        )


def counter(pid: int, name: str, tick: int, key: str, value: float) -> str:
    """One value of a counter."""
    return (
        f'{{"ph":"C","pid":{pid},"tid":0,"ts":{microseconds(tick)},"name":{json.dumps(name)},'
        f'"args":{{"{key}":{value:.6g}}}}}'
    )
