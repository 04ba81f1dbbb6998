"""Models: the catalogue, their FLOPs and bytes, and the kernels that one rank runs."""

from __future__ import annotations

from simulator.model.build import model_blocks
from simulator.model.catalogue import model, models
from simulator.model.optimizer import clip_kernels, optimizer_kernels

__all__ = ["clip_kernels", "model", "model_blocks", "models", "optimizer_kernels"]
