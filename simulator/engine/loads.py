"""Work that differs between micro-batches and ranks: packed documents of drawn lengths.

Attention works within each document, so a sequence of s tokens packed with documents of lengths l does
sum(l^2) / s^2 of the work of one whole sequence. Ranks that share their data share the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.draws import generator, sample
from simulator.spec import Distribution, Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def loads_of(
    scenario: Scenario, micro_batches: int, data_of_rank: Ints
) -> Mapping[str, Callable[[int], Floats]]:
    """By name of what varies: step -> factors of shape (micro-batches, ranks)."""
    documents = scenario.batch.documents
    if documents is None:
        return {}
    known: dict[int, Floats] = {}

    def attention(step: int) -> Floats:
        if step not in known:
            known.clear()
            rng = generator(scenario.run.seed, "documents", step)
            shape = (micro_batches, int(data_of_rank.max()) + 1, scenario.batch.micro_batch)
            squares = packed(documents.length, scenario.batch.sequence_length, shape, rng)
            known[step] = squares.mean(axis=2)[:, data_of_rank]
        return known[step]

    return {"attention": attention}


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
