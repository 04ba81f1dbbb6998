"""Rows of work on the shown ranks, and what the pieces of a block wait for, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.engine.block import Block
from simulator.engine.lane_axes import Floats, Ints
from simulator.engine.lane_op import Done
from simulator.engine.script import Item


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of pieces of work on the shown ranks of a stage; arrays of one entry a piece and rank."""

    stage: int
    items: tuple[Item, ...]
    step: int
    start: Floats
    end: Floats
    issued: Floats
    ready: Floats
    blocker: Ints
    meeting: Ints
    busy: Floats


def latest_needed(known: Floats, needs: Ints) -> Floats:
    """The latest of the rows of `known` that each piece needs, 0 where there are none."""
    result: Floats = known[needs[:, 0]]
    for column in needs.T[1:]:
        np.maximum(result, known[column], out=result)
    np.maximum(result, 0.0, out=result)
    return result


class Order:
    """What the pieces of a block wait for, as tables; rows are filled up with their first entry."""

    def __init__(self, block: Block):
        self.needs = _filled(block.needs)
        self._waiting = np.flatnonzero([bool(waits) for waits in block.waits])
        self._waits = _filled([waits[::-1] for waits in block.waits if waits])
        self._previous = np.array(block.previous)[self._waiting]
        self.launches = np.flatnonzero([item.launch >= 0 for item in block.items])
        self.collectives = np.flatnonzero([item.launch < 0 for item in block.items])
        groups: dict[str, list[int]] = {}
        for number, item in enumerate(block.items):
            if item.launch < 0:
                groups.setdefault(getattr(item.work, "group", ""), []).append(number)
        self.groups = {group: np.array(numbers) for group, numbers in groups.items()}

    def known(
        self,
        outside: Sequence[Done | None],
        ends: tuple[Floats, Floats],
        places: Callable[[tuple[int, ...]], Ints],
        count: int,
    ) -> Floats:
        """Ends of what the block waits for and of its pieces, at `count` places of the mesh.

        What was never there was over before all. `ends`: of the block's launches and its collectives;
        `places`: where in an array of a shape.
        """
        known = np.full((len(outside) + len(self.needs), count), -np.inf)
        for row, one in zip(known, outside, strict=False):
            if one is not None:
                row[:] = one.end.take(places(one.end.shape))
        for numbers, rows in zip((self.launches, self.collectives), ends, strict=True):
            found = rows.reshape(len(rows), -1).take(places(rows.shape[1:]), axis=1) if len(rows) else rows
            known[len(outside) + numbers] = found.reshape(len(numbers), count)
        return known

    def blockers(self, known: Floats, rows: Ints) -> Ints:
        """Rows of what each piece waited for, -1 where it was what came before on its stream.

        `known`: ends of what the block waits for and of its pieces on the shown ranks; `rows`: theirs.
        """
        result = np.full((len(self.needs), known.shape[1]), -1)
        latest = np.full((len(self._waiting), known.shape[1]), -np.inf)
        chosen = np.full(latest.shape, -1)
        for wait in self._waits.T:
            end = known[wait]
            chosen = np.where(end > latest, rows[wait], chosen)
            np.maximum(latest, end, out=latest)
        result[self._waiting] = np.where(known[self._previous] > latest, -1, chosen)
        return result


def _filled(rows: Sequence[Sequence[int]]) -> Ints:
    width = max(map(len, rows), default=0)
    table = [[*ones, *[ones[0]] * (width - len(ones))] for ones in rows]
    return np.array(table, dtype=np.int64).reshape(len(rows), width)
