"""What faults are to the engines: timed factors on resources, noise, and traffic of others.

A fault's own file says what it does in these terms; engines never see its kind. The effective speed
of a resource is the product of the factors that act at the moment; 0 is a stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.timeline import HostKind


class Resource(StrEnum):
    HOST = "host"  # the main thread: launches and Python
    SM = "sm"  # clock of the SMs
    HBM = "hbm"
    LINK = "link"
    LOADER = "loader"  # one worker of a rank's dataloader


@dataclass(frozen=True, slots=True)
class Window:
    """An interval in seconds [from_s, to_s) or in steps [from_step, to_step); open where inf."""

    start: float
    end: float
    in_steps: bool = False


@dataclass(frozen=True, slots=True)
class Factor:
    """`resource` of the targets runs at `factor` of its speed within the windows.

    `targets`: ranks (HOST, SM, HBM, LOADER) or directed links of the fabric (LINK).
    `worker`: of a LOADER factor, the one worker meant; -1 all.
    """

    resource: Resource
    targets: tuple[int, ...]
    windows: tuple[Window, ...]
    factor: float
    worker: int = -1


@dataclass(frozen=True, slots=True)
class Pause:
    """The host of a rank stands still for `duration_s` in a step, at `position` (0 to 1) of its instructions."""

    rank: int
    step: int
    duration_s: float
    position: float
    kind: HostKind
    name: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Work on a resource varies at random: each kernel (SM), each launch run (HOST) or each load (LOADER).

    A segment of n kernels is drawn once, with the spread that the sum of n independent kernels has.
    `stream` keys the random numbers: the same fault draws the same figures whatever else is there.
    """

    resource: Resource
    targets: tuple[int, ...]
    cv: float
    stream: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Somebody else's flow over `links`, wanting `demand_bytes_per_s`, for the windows."""

    links: tuple[int, ...]
    demand_bytes_per_s: float
    windows: tuple[Window, ...]


Effect: TypeAlias = Factor | Pause | Noise | Traffic


def kernel_noise(cv: float | NDArray[Any], draw: NDArray[Any]) -> NDArray[Any]:
    """Log-normal factors with mean 1 and coefficient of variation `cv`, in place of standard normal draws.

    n independent kernels of one size add up to a spread of cv / sqrt(n): callers divide.
    """
    variance = np.log1p(np.square(cv))
    draw *= np.sqrt(variance)
    draw -= variance / 2
    np.exp(draw, out=draw)
    return draw
