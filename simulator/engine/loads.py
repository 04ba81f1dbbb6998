"""Work that differs between micro-batches and ranks: packed documents, and experts that are not balanced.

Attention works within each document, so a sequence of s tokens packed with documents of lengths l does
sum(l^2) / s^2 of the work of one whole sequence. Ranks that share their data share the draw. Of the ranks that
context parallelism splits a sequence over, each works on the queries of its two chunks: two chunks at mirrored
places balance one long document, not many (but for all-to-all, where every rank sees whole sequences).

Of the ranks that experts are spread over, one, drawn anew for each micro-batch, gets the stated imbalance
times the mean of the tokens; the others share the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.draws import generator, sample
from simulator.parallel.mesh import Mesh
from simulator.spec import Documents, Scenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def loads_of(scenario: Scenario, mesh: Mesh, micro_batches: int) -> Mapping[str, Callable[[int], Floats]]:
    """By name of what varies: step -> factors of shape (micro-batches, ranks)."""
    seed, batch = scenario.run.seed, scenario.batch
    found: dict[str, Callable[[int], Floats]] = {}
    documents = batch.documents
    if documents is not None:
        parallelism = scenario.parallelism
        split = parallelism.cp if parallelism.cp_kind != "all-to-all" else 1
        sequence, place = _number(mesh, ("ep", "shard", "dp")), mesh.coordinate_array("cp") % split

        def attention(step: int) -> Floats:
            shape = (micro_batches, int(sequence.max()) + 1, batch.micro_batch)
            chunks = packed(
                documents, batch.sequence_length, shape, generator(seed, "documents", step), _chunks(split)
            ).mean(axis=2)
            both = chunks if split == 1 else chunks[..., :split] + chunks[..., : split - 1 : -1]
            return np.asarray(both[:, sequence, place] * split)

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


def _chunks(split: int) -> int:
    """Chunks that a sequence is cut into: two for each of the ranks that share it."""
    return 2 * split if split > 1 else 1


def _expert_group(mesh: Mesh) -> Ints:
    """Number of each rank's EP group, shape (ranks,); TP and PP peers share their data, so theirs is one."""
    return _number(mesh, ("cp", "shard", "dp"))


def _number(mesh: Mesh, axes: tuple[str, ...]) -> Ints:
    """A number for each rank by its place along some axes, shape (ranks,)."""
    number = np.zeros(mesh.ranks, dtype=np.int64)
    for axis in axes:
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


def packed(
    documents: Documents, sequence: int, shape: tuple[int, ...], rng: np.random.Generator, chunks: int = 1
) -> Floats:
    """Work on the queries of each of `chunks` equal parts of sequences packed with documents until they are
    full (the last is cut), over that of whole sequences without documents. Shape `(*shape, chunks)`.

    A query sees what its document has before it: a document from u has ((y - u)^2 - (x - u)^2) / 2 scores in
    its part from x to y, all in all sum(l^2) / 2 for documents of lengths l.
    """
    filled = np.zeros(shape)
    squares = np.zeros((*shape, chunks))
    edges = np.linspace(0.0, sequence, chunks + 1)
    while (filled < sequence).any():
        drawn = _lengths(documents, rng, shape)
        end = np.minimum(filled + drawn, sequence)
        start = filled[..., None]
        inside = np.clip(edges, start, end[..., None]) - start
        squares += np.diff(np.square(inside), axis=-1)
        filled = end
    return squares / float(sequence) ** 2


def _lengths(documents: Documents, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Lengths of documents: whole tokens, at least one."""
    if documents.lengths:
        return rng.choice(np.array(documents.lengths, dtype=np.float64), shape)
    return np.maximum(1.0, np.round(sample(documents.length, rng, shape)))
