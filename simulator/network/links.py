"""Directed links of a fabric: arrays for the engines, names for people.

Links come in grids: the same set of labels repeated for each owner (node, leaf, spine). A name is
`owner/label/direction`, for instance `node3/nic0/up`; `up` leads away from the GPUs. Names are made
when asked for: a fabric of 131,072 GPUs has a million links and nobody reads them all.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob over link names. Without a wildcard it also means everything below that name."""

    literal: str  # the part before the first wildcard
    regex: re.Pattern[str]

    @classmethod
    def of(cls, text: str) -> Pattern:
        text = text.strip()
        wild = _WILD.search(text)
        literal = text[: wild.start()] if wild else text
        below = fnmatch.translate(text.rstrip("/") + "/*")
        return cls(literal, re.compile(f"(?:{fnmatch.translate(text)})|(?:{below})"))

    def may_match(self, prefix: str) -> bool:
        """Whether a name that starts with `prefix` can match (quick, never wrongly False)."""
        return prefix.startswith(self.literal) or self.literal.startswith(prefix)

    def owners(self, named: str, count: int) -> Iterable[int]:
        """Of `count` owners with names like `named` ("node{}"), the numbers that can match."""
        before = named.partition("{")[0]
        if not self.may_match(before):
            return ()
        number, slash, _ = self.literal[len(before) :].partition("/")
        if slash and number.isdecimal():
            return range(int(number), min(int(number) + 1, count))
        return (i for i in range(count) if self.may_match(f"{named.format(i)}/"))

    def matches(self, name: str) -> bool:
        return self.regex.match(name) is not None


class Links(Protocol):
    """A run of directed links with consecutive numbers."""

    @property
    def count(self) -> int: ...
    def name(self, i: int) -> str: ...
    def ends(self, i: int) -> tuple[str, str]: ...
    def find(self, pattern: Pattern) -> Iterator[int]: ...


@dataclass(frozen=True, slots=True)
class Grid:
    """`owners` copies of `labels`: link i is label i % len(labels) of owner i // len(labels).

    `lower` are the vertices that the links leave, within the owner ("" the owner itself). `upper` is
    what they lead to: a vertex within the owner for each label, or, with `upper_format`, a numbered
    vertex outside for each link (`upper_number`, shape (links,) or (links, k) for k numbers in the name),
    by whose name the link is found as well.
    """

    owner: str  # "node{}"
    owners: int
    labels: tuple[str, ...]
    direction: str  # "up", "down" or "" (from `lower` to `upper`, among equals)
    lower: tuple[str, ...]
    upper: tuple[str, ...] = ()
    upper_format: str = ""
    upper_number: Ints | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        return self.owners * len(self.labels)

    def name(self, i: int) -> str:
        owner, label = divmod(i, len(self.labels))
        return "/".join(
            part for part in (self.owner.format(owner), self.labels[label], self.direction) if part
        )

    def ends(self, i: int) -> tuple[str, str]:
        """Names of the vertices that the link leaves and reaches."""
        number, label = divmod(i, len(self.labels))
        owner = self.owner.format(number)
        lower = f"{owner}/{self.lower[label]}" if self.lower[label] else owner
        upper = self._outside(i) or f"{owner}/{self.upper[label]}"
        return (upper, lower) if self.direction == "down" else (lower, upper)

    def _outside(self, i: int) -> str:
        if not self.upper_format:
            return ""
        assert self.upper_number is not None
        return self.upper_format.format(*np.atleast_1d(self.upper_number[i]).tolist())

    def find(self, pattern: Pattern) -> Iterator[int]:
        width = len(self.labels)
        for owner in pattern.owners(self.owner, self.owners):
            for i in range(owner * width, (owner + 1) * width):
                if pattern.matches(self.name(i)):
                    yield i
        if self.upper_format and pattern.may_match(self.upper_format.partition("{")[0]):
            yield from self._find_from_above(pattern)

    def _find_from_above(self, pattern: Pattern) -> Iterator[int]:
        assert self.upper_number is not None
        numbers = self.upper_number.reshape(self.count, -1)
        kinds, of_link = np.unique(numbers, axis=0, return_inverse=True)
        for kind, number in enumerate(kinds.tolist()):
            above = self.upper_format.format(*number)
            if pattern.may_match(above + "/"):
                for i in np.flatnonzero(of_link.ravel() == kind).tolist():
                    if pattern.matches(f"{above}/{self.name(i)}"):
                        yield i


@dataclass(frozen=True, slots=True)
class Listed:
    """Links with names and ends of their own."""

    names: tuple[str, ...]
    vertices: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def ends(self, i: int) -> tuple[str, str]:
        return self.vertices[i]

    def find(self, pattern: Pattern) -> Iterator[int]:
        """By name, or by the name of the vertex at either end."""
        for i, name in enumerate(self.names):
            tail, head = self.vertices[i]
            if any(pattern.matches(text) for text in (name, f"{tail}/{head}", f"{head}/{tail}")):
                yield i


@dataclass(frozen=True, slots=True, eq=False)
class LinkTable:
    """All directed links. `capacity_bytes_per_s`, `latency_s`, `tier`: shape (links,)."""

    runs: tuple[Links, ...]
    starts: Ints
    capacity_bytes_per_s: Floats
    latency_s: Floats
    tier: NDArray[np.int8]
    tiers: tuple[str, ...]

    def _run_of(self, link: int) -> tuple[Links, int]:
        if not 0 <= link < len(self.tier):
            raise IndexError(f"link {link}: expected 0 to {len(self.tier) - 1}")
        run = int(np.searchsorted(self.starts, link, side="right")) - 1
        return self.runs[run], link - int(self.starts[run])

    def name(self, link: int) -> str:
        run, i = self._run_of(int(link))
        return run.name(i)

    def ends(self, link: int) -> tuple[str, str]:
        run, i = self._run_of(int(link))
        return run.ends(i)

    def find(self, text: str) -> Ints:
        """Numbers of the links whose name, seen from either end, matches the glob; sorted, distinct."""
        pattern = Pattern.of(text)
        found = {
            int(start) + i
            for start, run in zip(self.starts, self.runs, strict=True)
            for i in run.find(pattern)
        }
        return np.array(sorted(found), dtype=np.int64)


class LinkTableBuilder:
    """Collects runs of links, then makes the table."""

    def __init__(self) -> None:
        self._runs: list[Links] = []
        self._capacity: list[Floats] = []
        self._latency: list[Floats] = []
        self._tier: list[NDArray[np.int8]] = []
        self._tiers: list[str] = []
        self._count = 0

    def add(self, links: Links, tier: str, capacity: ArrayLike, latency_s: float) -> int:
        """Append a run; the number of its first link. `capacity`: scalar or shape (links.count,)."""
        start, count = self._count, links.count
        if not count:
            return start
        if tier not in self._tiers:
            self._tiers.append(tier)
        self._runs.append(links)
        self._capacity.append(np.broadcast_to(np.asarray(capacity, np.float64), (count,)))
        self._latency.append(np.full(count, latency_s))
        self._tier.append(np.full(count, self._tiers.index(tier), np.int8))
        self._count += count
        return start

    def table(self) -> LinkTable:
        counts = [run.count for run in self._runs]
        return LinkTable(
            runs=tuple(self._runs),
            starts=np.cumsum([0, *counts])[:-1].astype(np.int64),
            capacity_bytes_per_s=_joined(self._capacity, np.float64),
            latency_s=_joined(self._latency, np.float64),
            tier=_joined(self._tier, np.int8),
            tiers=tuple(self._tiers),
        )


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)
