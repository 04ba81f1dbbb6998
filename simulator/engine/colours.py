"""Colours as hashes: what colour refinement needs, on arrays of 64-bit words.

The colour of a multiset is the sum of its members' hashes, so order does not matter and counts do.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def key(*parts: Any) -> np.uint64:
    """A hash of plain values, the same in every process."""
    return np.uint64(int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little"))


def keys(values: Ints | Words) -> Words:
    """A hash of each whole number (the finaliser of splitmix64; Steele, Lea and Flood 2014)."""
    words = np.asarray(values).astype(np.uint64) + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    return np.asarray(words ^ (words >> np.uint64(31)))


def combine(*words: Words) -> Words:
    """A hash of several words in order."""
    result = np.zeros_like(words[0])
    for word in words:
        result = keys(result * _GOLDEN + word)
    return result


def rounded(values: Floats) -> Words:
    """Floats as words; those that differ in their last bits only (sums in another order) are equal."""
    return np.asarray(values, dtype=np.float64).astype(np.float32).view(np.uint32).astype(np.uint64)


def classes(words: Words) -> Ints:
    """Numbers from 0 for the different words, by rising word."""
    return np.unique(words, return_inverse=True)[1].astype(np.int64)


def distinct(words: Words) -> int:
    """How many different words there are."""
    return 1 + int(np.count_nonzero(np.diff(np.sort(words)))) if len(words) else 0


class Sums:
    """Sums of words by an index that stays the same, modulo 2^64; `length` results."""

    def __init__(self, index: Ints, length: int):
        self._length = length
        self._order = np.argsort(index, kind="stable")
        ordered = index[self._order]
        self._starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        self._at = ordered[self._starts]

    def __call__(self, words: Words) -> Words:
        result = np.zeros(self._length, dtype=np.uint64)
        if len(self._starts):
            result[self._at] = np.add.reduceat(words[self._order], self._starts)
        return result
