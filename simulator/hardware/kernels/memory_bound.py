"""Kernels that stream through HBM: elementwise, norms, softmax, embeddings, optimizers, copies.

Time is a ramp of `kernel_floor_s` a launch plus the bytes at the bandwidth that such kernels reach, or
the arithmetic on the CUDA cores where that is longer.

Some kernels never fill HBM: their SMs have too few bytes under way, or too many instructions an element.
Each is bound by bytes an SM moves in a clock, whatever the GPU (`SM_BYTES_PER_CLOCK`):

- `norm-torch`: PyTorch's layer norm, a block of 128 threads a row that reads it twice;
- `norm-scalar`, `gate-scalar`: vLLM's RMSNorm and SwiGLU of 2023, two bytes a load and thread.

Fitted on half of Vidur's profiling data of both GPUs together: A100 and H100 lie 10 to 15% on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.hardware.kernels.base import KernelCost, floor_s, kernel_model
from simulator.model.blocks import Kernel
from simulator.spec import Gpu

#: Bytes that one SM reads and writes in a clock, for kernels bound by it.
SM_BYTES_PER_CLOCK: Final[Mapping[str, float]] = {"norm-torch": 7.4, "norm-scalar": 4.6, "gate-scalar": 7.5}


@kernel_model(
    "elementwise",
    "norm",
    "norm-torch",
    "norm-scalar",
    "gate-scalar",
    "softmax",
    "cross-entropy",
    "embedding",
    "optimizer",
    "copy",
    "permute",
    "router",
    "roofline",
)
def streaming(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """`roofline` is the same with its FLOPs on the tensor cores."""
    reached = gpu.memory_bandwidth_bytes_per_s * gpu.constants["hbm_efficiency"]
    ramp = kernel.launches * floor_s(gpu)
    memory = ramp + kernel.bytes / reached
    if kernel.op in SM_BYTES_PER_CLOCK:
        rate = SM_BYTES_PER_CLOCK[kernel.op] * gpu.sms * gpu.clock_hz
        return KernelCost(ramp + kernel.bytes / rate, memory)
    if kernel.op == "roofline":
        flops = gpu.peak_flops_per_s[kernel.precision.partition("-")[0]]
        flops *= gpu.constants["gemm_efficiency"] * gpu.constants.get("sustained_clock", 1.0)
    else:
        flops = gpu.vector_flops_per_s or gpu.peak_flops_per_s["fp32"]
    return KernelCost(kernel.flops / flops, memory)


@kernel_model("timed")
def timed(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """Measured: taken as it is."""
    del gpu
    return KernelCost(kernel.time_s, 0.0)
