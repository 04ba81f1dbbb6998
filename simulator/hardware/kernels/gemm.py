"""Matrix multiplications: tiles in waves over the SMs.

A kernel cuts the output into tiles of m_t x n_t; each SM works through k in steps. A wave of tiles, one
an SM, takes

    2 m_t n_t (k + k_0) / (peak / SMs x e(tile)),

where k_0 is the prologue and epilogue as if k were longer, and e the part of peak that the tile's inner
loop reaches: e = e_0 a / (a + a_0), with a = m_t n_t / (m_t + n_t) the FLOPs an operand byte from
shared memory. A last wave that is not full takes a part of a whole wave's time (stream-K and split-K
kernels spread it over the idle SMs): waves are w = (1 - s) ceil(x) + s max(x, 1). Of all tiles the
library's choice is the fastest. (NVIDIA, "Matrix Multiplication Background User's Guide", on tile and
wave quantisation; Osama et al. 2023, "Stream-K", arXiv:2301.03598.)

Operands are read from HBM once if they fit in L2, else once for every group of tiles that shares them.
An epilogue writes a tile while few others compute: a part of the output's traffic adds to the time, most
where a weight gradient reads and writes an fp32 accumulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.kernels.base import KernelCost, floor_s, kernel_model, peak
from simulator.model.blocks import Kernel
from simulator.spec import Gpu

Floats = NDArray[np.float64]
Shape: TypeAlias = tuple[float | Floats, float | Floats, float | Floats, float | Floats]

#: Tiles that libraries offer.
TILES: Final = np.array(
    [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (64, 32)],
    dtype=np.float64,
)  # fmt: skip

#: Elements that rows of operands have to be a multiple of, and the speed left to products whose are not: loads
#: become narrower (NVIDIA, "Matrix Multiplication Background User's Guide", section 5; GPT-2's 50257 tokens, which
#: Megatron and others pad, are the known case).
ALIGNMENT: Final = 8
UNALIGNED: Final = 0.4

#: HBM bytes for each element of the output by layout: an accumulator is read and written; else bf16.
WRITTEN: Final[Mapping[str, float]] = {"NT-accumulate": 8.0, "NT-accumulate-bf16": 4.0}


def compute_s(
    shape: Shape, sms: int, peak_flops_per_s: float, constants: Mapping[str, float]
) -> Floats | np.float64:
    """Time of the waves of (m, n, k, batch), the fastest tile's; arrays of any one shape, or numbers."""
    m, n, k, batch = (np.asarray(size, dtype=np.float64)[..., None] for size in shape)
    rows, columns = TILES[:, 0], TILES[:, 1]
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    exact = tiles / sms
    soft = constants["gemm_wave_softness"]
    waves = (1 - soft) * np.ceil(exact) + soft * np.maximum(exact, 1.0)
    intensity = rows * columns / (rows + columns)
    reached = constants["gemm_efficiency"] * intensity / (intensity + constants["gemm_tile_half"])
    a_wave = 2 * rows * columns * (k + constants["gemm_k_overhead"]) / (peak_flops_per_s / sms * reached)
    fastest: Floats | np.float64 = (waves * a_wave).min(axis=-1)
    return fastest


def memory_bytes(
    shape: Shape, l2_bytes: float, element: float, written: float | Floats
) -> Floats | np.float64:
    """HBM traffic: operands again for each panel of the output where they overflow L2."""
    m, n, k, batch = (np.asarray(size, dtype=np.float64) for size in shape)
    a, b = m * k * element, n * k * element
    panel = max(256.0, math.sqrt(l2_bytes / element * 0.5))  # square panels that share L2
    overflows = (l2_bytes > 0) & (a + b > l2_bytes)
    again = np.where(overflows, np.maximum(1.0, np.minimum(m, n) / panel / 4), 1.0)
    moved: Floats | np.float64 = batch * (np.maximum(a, b) + np.minimum(a, b) * again + m * n * written)
    return moved


def epilogue_s(
    shape: Shape, written: float | Floats, bandwidth_bytes_per_s: float, constants: Mapping[str, float]
) -> Floats | np.float64:
    """The part of the output's traffic that no computation hides."""
    m, n, _, batch = (np.asarray(size, dtype=np.float64) for size in shape)
    exposed: Floats | np.float64 = (
        constants["gemm_epilogue"] * batch * m * n * written / bandwidth_bytes_per_s
    )
    return exposed


@kernel_model("gemm")
def gemm(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """Shape (m, n, k) or (m, n, k, batch); flops and bytes of the kernel are those of all launches."""
    if not kernel.shape:
        return KernelCost(
            kernel.flops / (peak(gpu, kernel.precision) * gpu.constants["gemm_efficiency"]),
            kernel.launches * floor_s(gpu)
            + kernel.bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.constants["hbm_efficiency"]),
        )
    m, n, k, *rest = kernel.shape
    shape = (float(m), float(n), float(k), float(rest[0] if rest else 1))
    element = 1.0 if kernel.precision.startswith("fp8") else 4.0 if kernel.precision == "fp32" else 2.0
    written = WRITTEN.get(kernel.layout, 2.0)
    moved = float(memory_bytes(shape, gpu.l2_bytes, element, written))
    reached = gpu.memory_bandwidth_bytes_per_s * gpu.constants["gemm_hbm_efficiency"]
    ramp = kernel.launches * gpu.constants["gemm_floor_s"]
    compute = float(compute_s(shape, gpu.sms, peak(gpu, kernel.precision), gpu.constants))
    if any(size % ALIGNMENT for size in (m, n, k) if size > ALIGNMENT):
        compute /= UNALIGNED
    compute += float(epilogue_s(shape, written, reached, gpu.constants))
    return KernelCost(compute + ramp, moved / reached + ramp)


@kernel_model("grouped-gemm")
def grouped_gemm(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """Shape (groups, m, n, k): all experts' products, m rows each on average.

    One product a group on a few streams that share the SMs (TransformerEngine, `multi_stream_cublas_gemm`):
    no less than issuing them one by one takes. Weight gradients stream their accumulator through HBM.
    """
    groups, m, n, k = kernel.shape
    constants = gpu.constants
    element = 1.0 if kernel.precision.startswith("fp8") else 2.0
    one = (float(m), float(n), float(k), 1.0)
    moved = groups * float(memory_bytes(one, gpu.l2_bytes, element, WRITTEN.get(kernel.layout, 2.0)))
    reached = gpu.memory_bandwidth_bytes_per_s * constants["grouped_hbm_efficiency"]
    waves = float(compute_s((*one[:3], float(groups)), gpu.sms, peak(gpu, kernel.precision), constants))
    issued = groups * constants["grouped_issue_s"]
    ramp = kernel.launches * constants["gemm_floor_s"]
    return KernelCost(waves / constants["grouped_gemm"] + ramp, max(moved / reached, issued) + ramp)
