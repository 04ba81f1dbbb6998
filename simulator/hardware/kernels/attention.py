"""Fused attention by implementation: FlashAttention 1, 2 and 3, Triton's, cuDNN's.

Time is the FLOPs of the scores that the kernel works through, at the part of peak that the
implementation reaches at long sequences, e, less what short ones lose to ramp and to half-filled waves:

    flops / (peak x e) x (1 + s_0 / s) + floor,        waves as for a GEMM over (batch x heads x s / 128)

FlashAttention 1 and Triton's kernel of that time work through all s x s scores of a causal mask, the
others skip blocks above the diagonal (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691;
Shah et al. 2024, arXiv:2407.08608). The kernel's `flops` are what it executes; the model fills them.
"""

from __future__ import annotations

import math
from typing import Final

from simulator.hardware.kernels.base import KernelCost, floor_s, kernel_model, peak
from simulator.model.blocks import Kernel
from simulator.spec import Gpu

#: Rows of queries that one block works on.
BLOCK: Final = 128

IMPLEMENTATIONS: Final = ("flash1", "flash2", "flash3", "triton", "cudnn")


@kernel_model(*(f"{name}-{way}" for name in IMPLEMENTATIONS for way in ("forward", "backward")))
def attention(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """Shape (batch, heads, kv_heads, query_length, key_length, head_dim, v_head_dim)."""
    batch, heads, _, length, _, head_dim, _ = kernel.shape
    name, _, way = kernel.op.partition("-")
    constants = gpu.constants
    reached = constants.get(f"{name}_{way}", constants[f"flash2_{way}"])
    if head_dim <= 64:
        reached *= constants["attention_head_64"]
    blocks = batch * heads * math.ceil(length / BLOCK) / gpu.sms
    soft = constants["attention_wave_softness"]
    waste = ((1 - soft) * math.ceil(blocks) + soft * max(blocks, 1.0)) / blocks
    ramp = 1.0 + constants["attention_half_length"] / max(1, length)
    compute = kernel.flops / (peak(gpu, kernel.precision) * reached) * waste * ramp
    memory = kernel.bytes / (gpu.memory_bandwidth_bytes_per_s * constants["hbm_efficiency"])
    launch = kernel.launches * floor_s(gpu)
    return KernelCost(compute + launch, memory + launch)
