"""Arrays over the mesh: one number a rank of a stage, shared along the axes on which nothing differs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.parallel.mesh import GROUPS, Mesh

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Axes:
    """The axes of a stage's arrays: samples first, then the mesh's from the slowest on, without `pp`."""

    def __init__(self, mesh: Mesh):
        self.names = tuple(axis for axis in mesh.axes[::-1] if axis != "pp")
        self.sizes = tuple(mesh.sizes[mesh.axes.index(axis)] for axis in self.names)

    @property
    def ones(self) -> tuple[int, ...]:
        """Shape of what is the same everywhere."""
        return (1,) * (1 + len(self.sizes))

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values by rank of the stage, shape (ranks,) or (samples, ranks), over the axes they vary on."""
        array = values.reshape(-1, *self.sizes)
        for axis in range(array.ndim):
            if array.shape[axis] > 1:
                first = array.take([0], axis=axis)
                if (array == first).all():
                    array = first
        return array

    def of_group(self, group: str) -> tuple[int, ...]:
        """Axes of an array over which a group's members stand."""
        members = GROUPS.get(group, (group,))
        return tuple(1 + i for i, axis in enumerate(self.names) if axis in members)

    def index(self, ranks: Ints, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Where the stage's ranks (numbered within it) stand in an array of `shape`, first sample."""
        places = np.unravel_index(ranks, self.sizes)
        return (0, *(place if size > 1 else 0 for place, size in zip(places, shape[1:], strict=True)))


def greatest(array: Floats, axes: tuple[int, ...]) -> Floats:
    """The maximum along axes, kept with length 1."""
    real = tuple(axis for axis in axes if array.shape[axis] > 1)
    return np.asarray(array.max(axis=real, keepdims=True)) if real else array
