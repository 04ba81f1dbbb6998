"""DistributedDataParallel's buckets (Li et al. 2020, arXiv:2006.15704, section 4.2.3).

Parameters go into buckets in the reverse of their order of registration, which is about the order in
which their gradients become ready. A bucket is closed once it has reached its cap, so a parameter is
never split and a bucket may exceed the cap by up to one parameter. The first bucket's cap is smaller
(1 MiB), so that communication starts early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.program.gradients.base import Held


def assign_buckets(sizes: Sequence[float], first_bytes: float, cap_bytes: float) -> list[list[int]]:
    """Indices of parameters by bucket, in the order in which the buckets are reduced.

    `sizes`: gradient bytes in order of registration.

    >>> assign_buckets([30.0, 4.0, 4.0, 9.0], first_bytes=8.0, cap_bytes=20.0)
    [[3], [2, 1, 0]]
    """
    buckets: list[list[int]] = [[]]
    filled, cap = 0.0, min(first_bytes, cap_bytes)
    for index in reversed(range(len(sizes))):
        buckets[-1].append(index)
        filled += sizes[index]
        if filled >= cap:
            buckets.append([])
            filled, cap = 0.0, cap_bytes
    if not buckets[-1]:
        buckets.pop()
    return buckets


class Bucket:
    """Gradients reduced together. `missing`: those not yet whole in the backward under way."""

    __slots__ = ("all", "group", "missing", "number", "size_bytes")

    def __init__(self, number: int, group: str, members: Iterable[Held], size_bytes: float):
        self.number = number
        self.group = group
        self.all = frozenset((one.chunk, one.block, one.index) for one in members)
        self.missing = set(self.all)
        self.size_bytes = size_bytes


def build_buckets(
    held: Sequence[Held], element_bytes: int, first_bytes: float, cap_bytes: float, number: int = 0
) -> list[Bucket]:
    """Buckets of a rank's parameters; experts, which other ranks hold copies of, have their own."""
    buckets: list[Bucket] = []
    for group, expert in (("dp", False), ("expert-dp", True)):
        members = [one for one in held if one.parameter.expert is expert]
        sizes = [float(one.parameter.numel * element_bytes) for one in members]
        for indices in assign_buckets(sizes, first_bytes, cap_bytes) if members else []:
            size = sum(sizes[i] for i in indices)
            buckets.append(Bucket(number + len(buckets), group, (members[i] for i in indices), size))
    return buckets
