"""A collective in flight, as the network sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


#: Messages up to this size take their latency and leave the links alone (the norm of the gradients, a
#: flag): nanoseconds of a link, which would tell ranks apart by their place in a ring.
LATENCY_BOUND_BYTES: Final = 1024.0


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """What a collective of one group puts on the fabric, all of it together.

    `size_bytes` as nccl-tests counts it. `bytes`: on each of `links`, protocol overhead included, shape
    (links,): the activity takes at least bytes / share of the link's capacity. `rate_cap_per_s`: whole
    activities a second that anything but links allows. `latency_s`: of its steps, whatever the size.
    `sms`: held on each member; `hbm_bytes`: moved through each member's HBM.
    """

    kind: str
    algorithm: str
    protocol: str
    size_bytes: float
    latency_s: float
    links: Ints
    bytes: Floats
    rate_cap_per_s: float = math.inf
    sms: float = 0.0
    hbm_bytes: float = 0.0

    def hbm_share(self, rate_bytes_per_s: float, bandwidth_bytes_per_s: float) -> float:
        """Part of a member's HBM bandwidth that goes into it at this rate."""
        if not self.hbm_bytes:
            return 0.0
        per_byte = self.hbm_bytes / max(1.0, self.size_bytes)
        return min(1.0, per_byte * rate_bytes_per_s / bandwidth_bytes_per_s)

    def alone_s(self, capacity_bytes_per_s: Floats) -> float:
        """Time on an idle fabric with these capacities, shape (all links,)."""
        wire = 0.0
        if len(self.links):
            with np.errstate(divide="ignore"):
                wire = float((self.bytes / capacity_bytes_per_s[self.links]).max())
        return self.latency_s + max(wire, 1.0 / self.rate_cap_per_s)


#: what busbw is to algbw for n ranks (nccl-tests, doc/PERFORMANCE.md)
BUS_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send-recv": lambda n: 1.0,
    "ring-shift": lambda n: 1.0,
}
