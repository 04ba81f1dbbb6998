"""Random numbers that do not depend on who asks first.

Every draw comes from the scenario's seed through a named stream: the same name and numbers give the
same values on every machine, with one process or many, whatever else is drawn.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

from simulator.spec import Distribution


def generator(seed: int, name: str, *keys: int) -> np.random.Generator:
    """The generator of the stream `name` with integer `keys` (a step, a fault's number)."""
    entropy = [seed, zlib.crc32(name.encode()), *keys]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def sample(
    distribution: Distribution, rng: np.random.Generator, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Draw from a non-negative distribution given by mean and coefficient of variation.

    A normal distribution is cut off at 0 (what is below counts as 0).
    """
    mean, cv = distribution.mean, distribution.cv
    if cv == 0 or mean == 0 or distribution.kind == "constant":
        if distribution.kind == "exponential":
            return rng.exponential(mean, shape)
        return np.full(shape, mean)
    match distribution.kind:
        case "normal":
            return np.maximum(0.0, rng.normal(mean, mean * cv, shape))
        case "lognormal":
            variance = math.log1p(cv * cv)
            return rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), shape)
        case "uniform":
            half = mean * cv * math.sqrt(3.0)
            return np.maximum(0.0, rng.uniform(mean - half, mean + half, shape))
        case "exponential":
            return rng.exponential(mean, shape)
        case "gamma":
            return rng.gamma(1 / cv**2, mean * cv**2, shape)
    raise AssertionError(distribution.kind)
