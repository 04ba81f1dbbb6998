"""Arrays over the mesh: one number a rank of a stage, shared along the axes on which nothing differs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine.script import Item
from simulator.parallel.mesh import GROUPS, Mesh

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Axes:
    """The axes of a stage's arrays: samples first, then the mesh's that are longer than 1, without `pp`.

    The longest comes last, since NumPy's inner loop runs along it.
    """

    def __init__(self, mesh: Mesh):
        size = dict(zip(mesh.axes, mesh.sizes, strict=True))
        slow_first = [axis for axis in mesh.axes[::-1] if axis != "pp" and size[axis] > 1]
        self.names = tuple(sorted(slow_first, key=lambda axis: size[axis]))
        self.sizes = tuple(size[axis] for axis in self.names)
        self._slow_first = tuple(size[axis] for axis in slow_first)
        self._order = tuple(slow_first.index(axis) for axis in self.names)
        self._of_group: dict[str, tuple[int, ...]] = {}

    @property
    def ones(self) -> tuple[int, ...]:
        """Shape of what is the same everywhere."""
        return (1,) * (1 + len(self.sizes))

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values by rank of the stage, shape (ranks,) or (samples, ranks), over the axes they vary on."""
        array = self.arrange(values.reshape(-1, values.shape[-1]))
        for axis in range(array.ndim):
            if array.shape[axis] > 1:
                first = array.take([0], axis=axis)
                if (array == first).all():
                    array = first
        return array

    def arrange(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values by rank of the stage, shape (n, ranks), over all axes, shape (n, *sizes)."""
        array = values.reshape(len(values), *self._slow_first)
        return np.ascontiguousarray(array.transpose(0, *(1 + axis for axis in self._order)))

    def of_group(self, group: str) -> tuple[int, ...]:
        """Axes of an array over which a group's members stand."""
        if group not in self._of_group:
            members = GROUPS.get(group, (group,))
            found = tuple(1 + i for i, axis in enumerate(self.names) if axis in members)
            self._of_group[group] = found
        return self._of_group[group]

    def of_item(self, item: Item) -> tuple[int, ...]:
        """Axes along which those that do the item together stand."""
        group = getattr(item.work, "group", None)
        return () if group is None else self.of_group(group)

    def index(self, ranks: Ints, shape: tuple[int, ...]) -> Ints:
        """Flat places of the stage's ranks (numbered within it) in an array of `shape`, first sample."""
        places = np.unravel_index(ranks, self._slow_first) if self._slow_first else ()
        flat = np.zeros(len(ranks), dtype=np.int64)
        for axis, size in zip(self._order, shape[1:], strict=True):
            flat = flat * size + (places[axis] if size > 1 else 0)
        return flat


def greatest(array: Floats, axes: tuple[int, ...]) -> Floats:
    """The maximum along axes, kept with length 1."""
    if len(axes) == 1:
        axis = axes[0]
        return array if array.shape[axis] == 1 else np.maximum.reduce(array, axis=axis, keepdims=True)
    real = tuple(axis for axis in axes if array.shape[axis] > 1)
    return np.maximum.reduce(array, axis=real, keepdims=True) if real else array
