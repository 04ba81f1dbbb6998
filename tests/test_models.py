"""What the ranks of any layout compute together is the model's work, once."""

from __future__ import annotations

import pytest
from small import scenario

from simulator.model import model_blocks
from simulator.model.blocks import Run

MOE = {
    "layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000,
    "experts": {"count": 8, "top_k": 2, "ffn": 2048},
}  # fmt: skip


def _expert_flops(tp: int, cp: int, ep: int, expert_tp: int, sequence_parallel: bool) -> float:
    """Of all ranks that share a micro-batch."""
    layout = {"tp": tp, "cp": cp, "ep": ep, "expert_tp": expert_tp, "sequence_parallel": sequence_parallel}
    blocks = model_blocks(scenario(model=MOE, parallelism=layout))
    runs = [p for b in blocks for p in (*b.forward, *b.backward) if isinstance(p, Run)]
    return tp * cp * sum(k.flops for run in runs for k in run.kernels if k.op == "grouped-gemm")


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("expert_tp", [0, 1, 2])
@pytest.mark.parametrize(("cp", "ep"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_no_layout_changes_the_experts_flops(
    tp: int, cp: int, ep: int, expert_tp: int, sequence_parallel: bool
) -> None:
    if expert_tp <= tp:
        found = _expert_flops(tp, cp, ep, expert_tp, sequence_parallel)
        assert found == pytest.approx(_expert_flops(1, 1, 1, 0, False), rel=1e-12)
