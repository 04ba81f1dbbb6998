"""Kernels that stream through HBM: elementwise, norms, softmax, embeddings, optimizers, copies.

Time is a ramp of `kernel_floor_s` a launch plus the bytes at the bandwidth that such kernels reach, or
the arithmetic on the CUDA cores where that is longer.
"""

from __future__ import annotations

from simulator.hardware.kernels.base import KernelCost, floor_s, kernel_model
from simulator.model.blocks import Kernel
from simulator.spec import Gpu


@kernel_model(
    "elementwise",
    "norm",
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
    memory = kernel.launches * floor_s(gpu) + kernel.bytes / reached
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
