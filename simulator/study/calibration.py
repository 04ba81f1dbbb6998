"""Fitting a transport's constants to nccl-tests output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.errors import SpecError
from simulator.formats.nccl_tests import Measured
from simulator.network.collectives import plan
from simulator.network.collectives.planner import generation
from simulator.network.fabric import Fabric
from simulator.network.protocols import Transport, transport


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted constants, and the error of each row: (size, measured, fitted, error)."""

    constants: Transport
    kind: str  # of links that bind: "nvlink" or "net"
    rows: tuple[tuple[float, float, float, float], ...]

    @property
    def median_error(self) -> float:
        return float(np.median([abs(row[3]) for row in self.rows]))

    def to_toml(self, source: str) -> str:
        """The overlay file."""
        one = self.constants
        tables = {"reached": one.reached, "sms": one.sms, "ramp_bytes": one.ramp_bytes}
        lines = [
            f"# Fitted by trainsim calibrate to {source}; median error {100 * self.median_error:.1f}%.",
            "",
        ]
        lines += ["[transport]", f"nvls_reached = {one.nvls_reached!r}", f"launch_s = {one.launch_s!r}"]
        lines.append(f"lone_reached = {one.lone_reached!r}")
        for name, table in tables.items():
            lines.append(
                f"{name} = {{ {', '.join(f'{key} = {float(value)!r}' for key, value in table.items())} }}"
            )
        return "\n".join(lines) + "\n"


def fit(fabric: Fabric, kind: str, measured: Sequence[Measured], algorithm: str = "ring") -> Fit:
    """Fit the part of the line rate reached, the launch and the ramp; least squares of log errors.

    Raises SpecError for fewer than three sizes.
    """
    from scipy.optimize import minimize

    if len(measured) < 3:
        raise SpecError.of(
            "measured", f"{len(measured)} sizes: expected three or more to fit three constants"
        )
    base = transport(generation(fabric))
    binding = "net" if fabric.n_nodes > 1 else "nvlink"
    group = range(fabric.n_gpus)
    capacity = fabric.capacity_bytes_per_s

    def constants(values: np.ndarray) -> Transport:
        reached, launch, ramp = np.exp(values)
        return replace(
            base,
            reached={**base.reached, binding: float(min(reached, 1.0))},
            launch_s=float(launch),
            ramp_bytes={**base.ramp_bytes, binding: float(ramp)},
        )

    def times(one: Transport) -> np.ndarray:
        return np.array(
            [
                plan(fabric, kind, group, row.size_bytes, algorithm=algorithm, constants=one).alone_s(
                    capacity
                )
                for row in measured
            ]
        )

    seen = np.array([row.time_s for row in measured])

    def cost(values: np.ndarray) -> float:
        return float(np.square(np.log(times(constants(values)) / seen)).sum())

    start = np.log([base.reached[binding], max(base.launch_s, 1e-6), max(base.ramp_bytes[binding], 1e4)])
    found = minimize(
        cost, start, method="Nelder-Mead", options={"maxiter": 300, "xatol": 1e-3, "fatol": 1e-6}
    )
    best = constants(np.asarray(found.x))
    fitted = times(best)
    rows = tuple(
        (row.size_bytes, row.time_s, float(ours), float(ours / row.time_s - 1))
        for row, ours in zip(measured, fitted, strict=True)
    )
    return Fit(best, binding, rows)
