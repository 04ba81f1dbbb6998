"""List scheduling of split passes: how the zero bubble schedules find their order.

All passes take one unit. Whenever a stage is free it takes, of what is ready, the input's backward of
the oldest micro-batch, else a forward if its memory allows, else a weight's backward (Qi et al. 2023,
arXiv:2401.10241, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from simulator.parallel.schedules.base import Action


def greedy(
    stages: int,
    micro_batches: int,
    chunks: int,
    limit: Callable[[int], int],
    position: Callable[[int, int], int],
) -> tuple[tuple[Action, ...], ...]:
    """Actions of every stage. `limit(stage)`: chunks' activations that it may hold."""
    place = tuple(tuple(position(s, c) for c in range(chunks)) for s in range(stages))
    return _greedy(stages, micro_batches, chunks, tuple(limit(s) for s in range(stages)), place)


@lru_cache(maxsize=64)
def _greedy(
    stages: int,
    micro_batches: int,
    chunks: int,
    limit: tuple[int, ...],
    place: tuple[tuple[int, ...], ...],
) -> tuple[tuple[Action, ...], ...]:
    parts = stages * chunks
    done: dict[tuple[str, int, int], int] = {}  # (F or I, part, micro-batch) -> time it is over
    orders: list[list[Action]] = [[] for _ in range(stages)]
    next_f = [[0] * chunks for _ in range(stages)]
    next_i = [[0] * chunks for _ in range(stages)]
    pending: list[list[Action]] = [[] for _ in range(stages)]  # weights' backwards
    held = [0] * stages
    time, left = 0, 3 * parts * micro_batches
    while left:
        chosen = []
        for stage in range(stages):
            action = _choose(
                stage, time, parts, micro_batches, place[stage], done, next_f[stage], next_i[stage],
                pending[stage], held[stage] < limit[stage],
            )  # fmt: skip
            if action is not None:
                chosen.append((stage, action))
        for stage, action in chosen:
            orders[stage].append(action)
            left -= 1
            part = place[stage][action.chunk]
            if action.kind == "F":
                next_f[stage][action.chunk] += 1
                held[stage] += 1
            elif action.kind == "I":
                next_i[stage][action.chunk] += 1
                pending[stage].append(Action("W", action.micro_batch, action.chunk))
            else:
                pending[stage].remove(action)
                held[stage] -= 1
            if action.kind != "W":
                done[action.kind, part, action.micro_batch] = time + 1
        time += 1
    return tuple(tuple(order) for order in orders)


def _choose(
    stage: int,
    time: int,
    parts: int,
    micro_batches: int,
    place: tuple[int, ...],
    done: dict[tuple[str, int, int], int],
    next_f: list[int],
    next_i: list[int],
    pending: list[Action],
    room: bool,
) -> Action | None:
    del stage
    backward = None
    for chunk in reversed(range(len(place))):
        i, part = next_i[chunk], place[chunk]
        if i >= micro_batches:
            continue
        before = ("F", part, i) if part == parts - 1 else ("I", part + 1, i)
        own = done.get(("F", part, i), time + 1)
        if (
            done.get(before, time + 1) <= time
            and own <= time
            and (backward is None or i < backward.micro_batch)
        ):
            backward = Action("I", i, chunk)
    if backward is not None:
        return backward
    if room:
        for chunk in reversed(range(len(place))):
            i, part = next_f[chunk], place[chunk]
            if i < micro_batches and (part == 0 or done.get(("F", part - 1, i), time + 1) <= time):
                return Action("F", i, chunk)
    return pending[0] if pending else None
