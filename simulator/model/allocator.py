"""How PyTorch's caching allocator rounds (c10/cuda/CUDACachingAllocator.cpp, c10/core/AllocatorConfig.h).

A tensor takes a multiple of 512 bytes (`kMinBlockSize`). Those of at most 1 MiB (`kSmallSize`) are packed in
segments of 2 MiB (`kSmallBuffer`), those below 10 MiB (`kMinLargeAlloc`) in segments of 20 MiB
(`kLargeBuffer`), larger ones get segments of their own, rounded up to 2 MiB (`kRoundLarge`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

_BLOCK: Final = 512
_MIB: Final = 2**20
_SMALL, _SMALL_SEGMENT = _MIB, 2 * _MIB
_LARGE, _LARGE_SEGMENT, _ROUND_LARGE = 10 * _MIB, 20 * _MIB, 2 * _MIB


def allocated(size_bytes: float) -> int:
    """Bytes that a tensor takes.

    >>> allocated(1), allocated(1025)
    (512, 1536)
    """
    return max(_BLOCK, math.ceil(size_bytes / _BLOCK) * _BLOCK) if size_bytes else 0


def reserved(sizes_bytes: Iterable[float]) -> int:
    """Bytes of the segments that hold tensors which are allocated one after the other and never freed.

    >>> reserved([100.0, 3 * 2**20, 11 * 2**20]) // 2**20
    34
    """
    total = 0
    room = {_SMALL_SEGMENT: 0, _LARGE_SEGMENT: 0}
    for one in sizes_bytes:
        size = allocated(one)
        if size >= _LARGE:
            total += math.ceil(size / _ROUND_LARGE) * _ROUND_LARGE
            continue
        segment = _SMALL_SEGMENT if size <= _SMALL else _LARGE_SEGMENT
        if size > room[segment]:
            total += segment
            room[segment] = segment
        room[segment] -= size
    return total
