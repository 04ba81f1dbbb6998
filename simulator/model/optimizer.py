"""The optimizer's kernels: Adam(W) fused, foreach or a tensor at a time, and gradient clipping.

Adam reads parameter, gradient and two moments in fp32 and writes parameter and moments, and the two-byte
copy that the model computes with: 16 + 12 + 2 bytes an element. `foreach` makes a pass for each of its
operations over lists of tensors (PyTorch's `_multi_tensor_adamw`: about 12 reads and writes more), a
`per-tensor` loop launches each operation on each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from simulator.errors import SpecError, nearest
from simulator.model.blocks import Kernel, Parameter
from simulator.spec import Scenario

#: name -> (bytes an element, launches of a step, launches a tensor)
FORMS: Final = {
    "fused-adamw": (30.0, 1, 0),
    "fused-adam": (30.0, 1, 0),
    "foreach-adamw": (76.0, 14, 0),
    "adamw": (76.0, 0, 14),
    "sgd": (14.0, 1, 0),
    "fused-sgd": (14.0, 1, 0),
}

#: Tensors that one multi-tensor launch takes (PyTorch's chunks of metadata).
_TENSORS_A_LAUNCH: Final = 320
_CLIP_BYTES: Final = 12.0  # norm reads, scaling reads and writes


def optimizer_kernels(
    parameters: Sequence[Parameter], kind: str, share: float, scenario: Scenario
) -> tuple[Kernel, ...]:
    """The update of `share` of every tensor's elements. Raises SpecError for an unknown optimizer."""
    del scenario
    if kind not in FORMS:
        raise SpecError.of("software.optimizer", f"'{kind}': no such optimizer{nearest(kind, FORMS)}")
    moved, launches, each = FORMS[kind]
    elements = share * sum(parameter.numel for parameter in parameters)
    count = len(parameters)
    total = launches * max(1, math.ceil(count / _TENSORS_A_LAUNCH)) + each * count
    return (
        Kernel(
            kind, "optimizer", flops=12.0 * elements, bytes=moved * elements, launches=max(1, total),
            precision="fp32",
        ),
    )  # fmt: skip


def clip_kernels(
    parameters: Sequence[Parameter], kind: str, share: float, scenario: Scenario
) -> tuple[Kernel, ...]:
    """The norm of the gradients and their scaling."""
    del scenario
    elements = share * sum(parameter.numel for parameter in parameters)
    count = len(parameters)
    launches = 2 * count if kind == "adamw" else 2 * max(1, math.ceil(count / _TENSORS_A_LAUNCH))
    return (
        Kernel(
            "gradient norm and clip", "optimizer", flops=3.0 * elements, bytes=_CLIP_BYTES * elements,
            launches=launches, precision="fp32",
        ),
    )  # fmt: skip
