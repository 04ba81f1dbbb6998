"""Time of one kernel on one GPU: a model an op, each in its own file, registered by the op's name."""

from __future__ import annotations

from simulator.hardware.kernels.base import KernelCost, kernel_cost, kernel_model

__all__ = ["KernelCost", "kernel_cost", "kernel_model"]
