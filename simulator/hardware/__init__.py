"""GPUs, hosts' software stacks, NICs, and the time of single kernels."""

from __future__ import annotations

from simulator.hardware.gpus import gpu, gpus
from simulator.hardware.kernels import KernelCost, kernel_cost
from simulator.hardware.stacks import Stack, stack, stacks

__all__ = ["KernelCost", "Stack", "gpu", "gpus", "kernel_cost", "stack", "stacks"]
