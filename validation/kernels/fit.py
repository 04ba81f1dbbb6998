"""Errors of the kernel models on measured kernels, and the fit of a GPU's GEMM constants.

    python validation/kernels/fit.py                   errors of the catalogue's constants
    python validation/kernels/fit.py --fit h100-sxm    fits the constants and says how well they hold

A microbenchmark of short kernels runs at the boost clock, one of long kernels at the clock under load. So
the fit lets the clock fall from 1 to `CLOCK_UNDER_LOAD` around a kernel time that it fits too:

    clock(t) = 1 - (1 - c) / (1 + exp(-4 log10(t / t_0))).

The loss is the mean square relative error over the rows not held; differential evolution, then
Nelder-Mead, from a fixed seed. Four-fold cross-validation inside the fitted rows is printed beside.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from data import Row, rows
from numpy.typing import NDArray

from simulator.hardware import gpu, kernel_cost
from simulator.hardware.kernels.gemm import compute_s, epilogue_s, memory_bytes
from simulator.spec import Gpu

Floats = NDArray[np.float64]
#: Public statements: H100 about 13 to 15% slower under load; B200 1965 to about 1580 MHz; A100 holds its clock.
CLOCK_UNDER_LOAD = {"a100-sxm": 1.0, "a100-pcie": 1.0, "h100-sxm": 0.87, "b200-sxm": 1580 / 1965}
#: Kernel time at which the clock falls: where --fit finds it.
ONSET_S = {"h100-sxm": 160e-6, "b200-sxm": 270e-6}
BOUNDS = {
    "gemm_efficiency": (0.4, 2.0),
    "gemm_tile_half": (0.0, 300.0),
    "gemm_k_overhead": (0.0, 500.0),
    "gemm_wave_softness": (0.0, 1.0),
    "gemm_hbm_efficiency": (0.3, 1.0),
    "gemm_floor_s": (0.0, 12e-6),
    "gemm_epilogue": (0.0, 1.0),
    "log10_onset_s": (-5.5, -2.0),
}


def predict(measured: Sequence[Row], device: Gpu, constants: dict[str, float]) -> Floats:
    """Times of GEMMs as the simulator's model has them, at the clock of the measurement."""
    sizes = np.array([row.kernel.shape for row in measured], dtype=np.float64).T
    shape = (sizes[0], sizes[1], sizes[2], sizes[3])
    written = np.array([row.written for row in measured])
    compute = compute_s(shape, device.sms, device.peak_flops_per_s["bf16"], constants)
    bandwidth = device.memory_bandwidth_bytes_per_s * constants["gemm_hbm_efficiency"]
    compute = compute + epilogue_s(shape, written, bandwidth, constants)
    busy = np.maximum(compute, memory_bytes(shape, device.l2_bytes, 2.0, written) / bandwidth)
    floor = constants["gemm_floor_s"]
    if "log10_onset_s" in constants:
        busy = slowed(busy, floor, 10 ** constants["log10_onset_s"], CLOCK_UNDER_LOAD[device.name])
    return np.asarray(busy + floor)


def slowed(busy_s: Floats, floor_s: float, onset_s: float, clock: float) -> Floats:
    """Times at the clock of a microbenchmark of kernels that long."""
    late = np.log10(np.maximum(busy_s + floor_s, 1e-9) / onset_s)
    return np.asarray(busy_s / (1 - (1 - clock) / (1 + np.exp(-4 * late))))


def fit(measured: Sequence[Row], device: Gpu, seed: int = 0) -> dict[str, float]:
    """The constants that fit rows of one GPU best."""
    from scipy.optimize import differential_evolution, minimize

    names = [name for name in BOUNDS if name != "log10_onset_s" or CLOCK_UNDER_LOAD[device.name] < 1]
    low, high = np.array([BOUNDS[name] for name in names]).T
    times = np.array([row.time_s for row in measured])

    def constants(unit: Floats) -> dict[str, float]:
        return dict(zip(names, (low + np.clip(unit, 0, 1) * (high - low)).tolist(), strict=True))

    def loss(unit: Floats) -> float:
        return float(((predict(measured, device, constants(unit)) / times - 1) ** 2).mean())

    unit_box = [(0.0, 1.0)] * len(names)
    start = differential_evolution(loss, unit_box, seed=seed, maxiter=60, popsize=8, tol=1e-5, polish=False)
    return constants(minimize(loss, start.x, method="Nelder-Mead", options={"maxiter": 800}).x)


def errors(measured: Sequence[Row], times: Sequence[float] | Floats) -> Floats:
    """Relative errors, model over measured less 1."""
    return np.asarray(times) / np.array([row.time_s for row in measured]) - 1


def show(label: str, found: Floats) -> None:
    size = np.abs(found)
    print(
        f"{label:42} {len(found):4} rows  median {np.median(size):6.1%}"
        f"  90th {np.percentile(size, 90):6.1%}  bias {np.median(found):+7.1%}"
    )


def catalogue_errors(keep: Callable[[Row], bool] = lambda row: True) -> dict[tuple[str, str], Floats]:
    """Errors of the catalogue's constants by (GPU, op), at the clock of the measurement."""
    groups: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in filter(keep, rows()):
        groups[row.gpu, row.op].append(row)
    result = {}
    for key, measured in sorted(groups.items()):
        device = gpu(key[0])
        device = replace(device, constants={**device.constants, "sustained_clock": 1.0})
        if key[1] == "gemm":
            constants = dict(device.constants)
            if device.name in ONSET_S:
                constants["log10_onset_s"] = float(np.log10(ONSET_S[device.name]))
            result[key] = errors(measured, predict(measured, device, constants))
        else:
            result[key] = errors(measured, [_time_s(row, device) for row in measured])
    return result


def _time_s(row: Row, device: Gpu) -> float:
    costs = [kernel_cost(kernel, device) for kernel in row.kernels or (row.kernel,)]
    if device.name not in ONSET_S:
        return sum(cost.duration_s for cost in costs)
    onset, clock = ONSET_S[device.name], CLOCK_UNDER_LOAD[device.name]
    return sum(
        max(float(slowed(np.array(cost.compute_s), 0.0, onset, clock)), cost.memory_s) for cost in costs
    )


def _fold(row: Row) -> int:
    return hashlib.sha256(f"fold:{row.kernel.shape}".encode()).digest()[0] % 4


def _fit_and_show(name: str) -> None:
    device = gpu(name)
    measured = [row for row in rows() if row.gpu == name and row.op == "gemm"]
    fitted, held = ([row for row in measured if row.held is kind] for kind in (False, True))
    crossed = []
    for fold in range(4):
        others, left = ([row for row in fitted if (_fold(row) == fold) is kind] for kind in (False, True))
        crossed.append(errors(left, predict(left, device, fit(others, device))))
    constants = fit(fitted, device)
    for key, value in constants.items():
        at_bound = np.isclose(value, BOUNDS[key], rtol=1e-3, atol=1e-9).any()
        print(f"{key} = {value:.4g}{'  # at its bound' if at_bound else ''}")
    show(f"{name}, fitted", errors(fitted, predict(fitted, device, constants)))
    show(f"{name}, cross-validated", np.concatenate(crossed))
    show(f"{name}, held", errors(held, predict(held, device, constants)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fit", choices=sorted(CLOCK_UNDER_LOAD), help="fit this GPU's GEMM constants")
    name = parser.parse_args().fit
    if name:
        _fit_and_show(name)
        return
    for (device, op), found in catalogue_errors().items():
        show(f"{device} {op}", found)


if __name__ == "__main__":
    main()
