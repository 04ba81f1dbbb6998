"""Work that differs between micro-batches and ranks: packed documents, and experts that are not balanced.

Attention works within each document, so a sequence of s tokens packed with documents of lengths l does
sum(l^2) / s^2 of the work of one whole sequence. Ranks that share their data share the draw.

Of the ranks that experts are spread over, one, drawn anew for each micro-batch, gets the stated imbalance
times the mean of the tokens; the others share the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.draws import generator, sample
from simulator.parallel.mesh import Mesh
from simulator.spec import Distribution, Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def loads_of(
    scenario: Scenario, mesh: Mesh, micro_batches: int, data_of_rank: Ints
) -> Mapping[str, Callable[[int], Floats]]:
    """By name of what varies: step -> factors of shape (micro-batches, ranks)."""
    seed, batch = scenario.run.seed, scenario.batch
    found: dict[str, Callable[[int], Floats]] = {}
    documents = batch.documents
    if documents is not None:
        length = documents.length

        def attention(step: int) -> Floats:
            shape = (micro_batches, int(data_of_rank.max()) + 1, batch.micro_batch)
            squares = packed(length, batch.sequence_length, shape, generator(seed, "documents", step))
            return np.asarray(squares.mean(axis=2)[:, data_of_rank])

        found["attention"] = _remembered(attention)
    if batch.expert_imbalance > 1:
        place, group = mesh.coordinate_array("ep"), _expert_group(mesh)
        ep = mesh.size("ep")
        rest = (ep - batch.expert_imbalance) / (ep - 1)

        def experts(step: int) -> Floats:
            rng = generator(seed, "experts", step)
            fullest = rng.integers(ep, size=(micro_batches, int(group.max()) + 1))[:, group]
            return np.where(fullest == place, batch.expert_imbalance, rest)

        found["experts"] = _remembered(experts)
    return found


def _expert_group(mesh: Mesh) -> Ints:
    """Number of each rank's EP group, shape (ranks,); TP and PP peers share their data, so theirs is one."""
    number = np.zeros(mesh.ranks, dtype=np.int64)
    for axis in ("cp", "shard", "dp"):
        number = number * mesh.sizes[mesh.axes.index(axis)] + mesh.coordinate_array(axis)
    return number


def _remembered(work: Callable[[int], Floats]) -> Callable[[int], Floats]:
    """The last step's factors are kept."""
    known: dict[int, Floats] = {}

    def of_step(step: int) -> Floats:
        if step not in known:
            known.clear()
            known[step] = work(step)
        return known[step]

    return of_step


def packed(length: Distribution, sequence: int, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """sum(l^2) / s^2 of sequences packed with documents until they are full; the last is cut. Shape `shape`."""
    filled = np.zeros(shape)
    squares = np.zeros(shape)
    while (filled < sequence).any():
        drawn = np.maximum(1.0, np.round(sample(length, rng, shape)))
        taken = np.minimum(drawn, sequence - filled)
        squares += np.square(taken)
        filled += taken
    return squares / float(sequence) ** 2
