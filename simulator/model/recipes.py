"""Recipes: which kernels a framework launches for the parts of a layer that are not matrix products.

Elementwise work is counted in elements of tokens x hidden read or written (`moved`), two bytes each, and
in launches. Eager PyTorch launches each operation; fused stacks and compilers merge neighbours, so they
launch fewer kernels and move fewer bytes. Backward moves about twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simulator.spec import Software


@dataclass(frozen=True, slots=True)
class Recipe:
    """Elements of tokens x hidden moved and kernels launched a layer, forward.

    `norm`, `residual` (with dropout and bias), `layout` (bias, split and transposes around attention,
    rotary): moved, launches. `activation`: moved for each element of the MLP's width (the gate counts
    twice), launches. `casts`: bytes moved for each weight of a layer and micro-batch (autocast).
    `accumulates_fp32`: weight gradients are added to an fp32 buffer. `split_launches`: further small
    kernels (masks, views that copy, bookkeeping).
    `loss`: bytes moved for each logit by a cross-entropy that is not fused, forward and backward.
    `stops_early`: a recomputed forward ends with the last tensor that its backward needs (PyTorch's
    non-reentrant checkpoint since 2.0, `set_checkpoint_early_stop`): the last product is not repeated.
    Of memory: `fused_gate`: gate and activation are one operation, so the activated gate is not kept;
    `placeholders`: TransformerEngine's modules, which keep a tensor of each weight's shape; `frees_logits`:
    the training loop lets go of the logits before the backward; `contiguous`: gradients lie in one buffer,
    which is reduced in place (PyTorch's buckets are copies, unless `gradient_as_bucket_view` is set).
    """

    norm: tuple[float, int]
    residual: tuple[float, int]
    layout: tuple[float, int]
    activation: tuple[float, int]
    casts: float = 0.0
    accumulates_fp32: bool = False
    split_launches: int = 0
    backward: float = 2.0
    loss: tuple[float, float] = (18.0, 22.0)
    stops_early: bool = False
    fused_gate: bool = False
    placeholders: bool = False
    frees_logits: bool = False
    contiguous: bool = False


#: Megatron's vocabulary-parallel cross-entropy, a kernel an operation on fp32 logits: cast 6 bytes, maximum 4,
#: subtract 8, exponential 8, sum 4, divide 8; backward: scale 8, cast 6. PyTorch's: cast 6, log-softmax 12;
#: backward: a gradient of zeros 4, log-softmax 12, cast 6. Compiled: two passes of the logits each.
_MEGATRON_LOSS: Final = (38.0, 14.0)

_EAGER: Final = Recipe(
    norm=(4.0, 2), residual=(5.5, 2), layout=(9.0, 4), activation=(2.0, 1), split_launches=6
)
_FUSED: Final = Recipe(
    norm=(2.0, 1), residual=(3.5, 1), layout=(4.0, 2), activation=(2.0, 1), accumulates_fp32=True,
    fused_gate=True, placeholders=True, contiguous=True,
    loss=_MEGATRON_LOSS,
)  # fmt: skip
_COMPILED: Final = Recipe(
    norm=(2.0, 1), residual=(3.0, 1), layout=(4.0, 1), activation=(2.0, 1), fused_gate=True,
    loss=(6.0, 6.0),
)  # fmt: skip

#: llm-foundry's eager MPT.
_MPT: Final = replace(_EAGER, norm=(5.0, 3), layout=(9.5, 5))

RECIPES: Final = {
    "pytorch": replace(_EAGER, stops_early=True),
    "llm-foundry": replace(_MPT, stops_early=True),
    "llm-foundry-2022": _MPT,
    "torchtitan": replace(_EAGER, split_launches=4, frees_logits=True, stops_early=True),
    "megatron": _FUSED,
    "nemo": _FUSED,
    "megatron-2021": replace(_FUSED, layout=(4.0, 4), split_launches=4, placeholders=False),
    "megatron-deepspeed": replace(_FUSED, layout=(4.0, 6), split_launches=14, placeholders=False),
    "compile": _COMPILED,
}


def recipe(software: Software) -> Recipe:
    """The recipe of a software stack; compilation replaces an eager one."""
    found = RECIPES.get(software.framework, _EAGER)
    if software.compile:
        return replace(
            _COMPILED,
            accumulates_fp32=found.accumulates_fp32,
            contiguous=found.contiguous,
            frees_logits=found.frees_logits,
            stops_early=found.stops_early,
        )
    return found
