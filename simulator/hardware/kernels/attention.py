"""Fused attention by implementation: FlashAttention 1, 2 and 3, Triton's, cuDNN's.

Blocks of B queries are handed to the SMs as these come free; a block works through its keys. Time is
the work of all blocks over all SMs, and a part of one longest block's time for the tail, in which SMs
run dry; no less than the longest block:

    max(longest, work / SMs + tail x longest).

The FLOPs of the two products run at peak x e d / (d + d_0): the softmax between them takes what d_0 more
elements of the head would (the special-function units do one exponential for 4 d FLOPs; Shah et al.
2024, arXiv:2407.08608, section 3.1). A block has a prologue and an epilogue, as if each sequence were
s_0 longer, and a causal mask leaves half-masked blocks on the diagonal, s_d more. Where values are
narrower than keys (latent attention) the kernel runs at the wider. Backward: five products for two.

FlashAttention 1 and Triton's kernel of that time work through all s x s scores of a causal mask, the
others skip blocks above the diagonal (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691).
The kernel's `flops` are what it executes; the model fills them.
"""

from __future__ import annotations

from typing import Final

from simulator.hardware.kernels.base import KernelCost, floor_s, kernel_model, peak
from simulator.model.blocks import Kernel
from simulator.spec import Gpu

IMPLEMENTATIONS: Final = ("flash1", "flash2", "flash3", "triton", "cudnn")


@kernel_model(*(f"{name}-{way}" for name in IMPLEMENTATIONS for way in ("forward", "backward")))
def attention(kernel: Kernel, gpu: Gpu) -> KernelCost:
    """Shape (batch, heads, kv_heads, query_length, key_length, head_dim, v_head_dim).

    Layout "causal": half of the scores are skipped.
    """
    _, _, _, queries, keys, head_dim, value_dim = kernel.shape
    name, _, way = kernel.op.partition("-")
    constants = gpu.constants
    if f"{name}_{way}" not in constants:
        name = "flash2"
    width = max(head_dim, value_dim)
    reached = constants[f"{name}_{way}"] * width / (width + constants[f"{name}_softmax"])
    rate = peak(gpu, kernel.precision) * reached
    ramp = 1.0 + constants[f"{name}_ramp"] / max(1, keys)
    diagonal = constants[f"{name}_diagonal"] / max(1, keys) if kernel.layout == "causal" else 0.0
    padded = 2.0 * width / (head_dim + value_dim)
    work = kernel.flops * padded * (ramp + diagonal) / rate
    products = 1.0 if way == "forward" else 2.5
    block = min(constants["attention_block"], queries)
    longest = products * 4.0 * block * keys * width * ramp / rate * gpu.sms
    compute = max(longest, work + constants["attention_tail"] * longest)
    memory = kernel.bytes / (gpu.memory_bandwidth_bytes_per_s * constants["hbm_efficiency"])
    launch = kernel.launches * floor_s(gpu)
    return KernelCost(compute + launch, memory + launch)
