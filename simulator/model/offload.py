"""Activations that wait in host memory between forward and backward (vDNN, Rhu et al. 2016, arXiv:1602.08124;
TransformerEngine's `CPUOffload`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.model.blocks import Block
from simulator.spec import Scenario

#: Layers whose activations are on the GPU beside those that stay: one in use, one on its way.
BUFFERS: Final = 2


def offloaded(scenario: Scenario, blocks: Sequence[Block]) -> frozenset[int]:
    """Places in a chunk of the layers that are offloaded: its first ones, whose backward comes last."""
    layers = [place for place, block in enumerate(blocks) if block.kind == "layer"]
    return frozenset(layers[: scenario.offload.layers])


def kept_bytes(scenario: Scenario, blocks: Sequence[Block]) -> list[float]:
    """Of each block, what one micro-batch in flight keeps on the GPU."""
    away = offloaded(scenario, blocks)
    return [0.0 if place in away else block.activation_bytes for place, block in enumerate(blocks)]


def buffer_bytes(scenario: Scenario, chunks: Sequence[Sequence[Block]]) -> float:
    """What the layers under way take on the GPU."""
    away = [
        blocks[place].activation_bytes for blocks in chunks for place in offloaded(scenario, blocks)
    ]  # fmt: skip
    return BUFFERS * max(away, default=0.0)


def host_bytes(scenario: Scenario, chunks: Sequence[Sequence[Block]], in_flight: Sequence[int]) -> float:
    """Pinned host memory of a rank."""
    return float(
        sum(
            held * sum(blocks[place].activation_bytes for place in offloaded(scenario, blocks))
            for blocks, held in zip(chunks, in_flight, strict=True)
        )
    )
