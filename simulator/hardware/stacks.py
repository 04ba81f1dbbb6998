"""Software stacks: what the host spends to issue work, by framework.

One TOML file, data/stacks.toml: each figure with its source.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from simulator.errors import SpecError, nearest
from simulator.model.blocks import Block


@dataclass(frozen=True, slots=True)
class Stack:
    """Times of one framework on a host thread, in seconds.

    `launch_time_s`: one kernel launch, with the eager framework's dispatch. `collective_host_s`: issuing
    a collective. `layer_forward_s`, `layer_backward_s`: Python and autograd of a layer beside its
    launches. `optimizer_s` and `optimizer_tensor_s`: a step, and for each tensor of it. `p2p_syncs_host`:
    transfers between stages are followed by `torch.cuda.synchronize()` (Megatron-LM's p2p_communication.py,
    against a race in batched transfers; Megatron-Core's `batch_p2p_sync`), those of schedules that overlap
    them too unless `overlaps_p2p`. `micro_batch_s`: getting and broadcasting a batch, masks, averaged losses.
    """

    name: str
    launch_time_s: float
    collective_host_s: float
    layer_forward_s: float
    layer_backward_s: float
    optimizer_s: float
    optimizer_tensor_s: float
    overlaps_p2p: bool = True
    p2p_syncs_host: bool = False
    micro_batch_s: float = 0.0
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def forward_host_s(self, block: Block) -> float:
        """Python time of a block's forward beside the launches."""
        if block.kind == "layer":
            return self.layer_forward_s
        return 0.5 * self.layer_forward_s + (self.micro_batch_s if block.kind == "head" else 0.0)

    def backward_host_s(self, block: Block) -> float:
        """The same of its backward."""
        return self.layer_backward_s if block.kind == "layer" else 0.5 * self.layer_backward_s

    def optimizer_host_s(self, tensors: int) -> float:
        """Python time of an optimizer step over so many tensors."""
        return self.optimizer_s + self.optimizer_tensor_s * tensors


@cache
def _catalogue() -> Mapping[str, Stack]:
    text = (files("simulator.hardware") / "data" / "stacks.toml").read_text(encoding="utf-8")
    return {name: Stack(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def stacks() -> tuple[str, ...]:
    """Names of all stacks."""
    return tuple(sorted(_catalogue()))


def stack(name: str) -> Stack:
    """The stack of that name; SpecError with the nearest name if there is none."""
    known = _catalogue()
    if name not in known:
        raise SpecError.of("software.framework", f"'{name}': no such stack{nearest(name, known)}")
    return known[name]
