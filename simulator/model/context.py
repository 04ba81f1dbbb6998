"""Sizes that every part of a layer needs: one rank's share of tokens, heads and widths."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import SpecError
from simulator.model.blocks import Kernel
from simulator.model.recipes import Recipe, recipe
from simulator.spec import Parallelism, Scenario, Transformer

#: software.attention -> implementation of the fused kernels, "" for unfused
ATTENTION = {
    "unfused": "",
    "flash": "flash2",
    "flash1": "flash1",
    "flash2": "flash2",
    "flash3": "flash3",
    "triton": "triton",
    "cudnn": "cudnn",
}


@dataclass(frozen=True, slots=True)
class Context:
    """`tokens`: of a micro-batch on this rank (context parallel share). `bytes`: of an activation element."""

    model: Transformer
    parallelism: Parallelism
    recipe: Recipe
    attention: str
    precision: str
    batch: int
    sequence: int
    bytes: int
    causal: bool = True
    packed: bool = False
    tp_overlap: bool = False
    fused_loss: bool = False
    expert_imbalance: float = 1.0  # fullest rank's load over the mean

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence // self.parallelism.cp

    @property
    def tp(self) -> int:
        return self.parallelism.tp

    @property
    def hidden_bytes(self) -> float:
        """The activations between layers, whole."""
        return float(self.bytes * self.tokens * self.model.hidden)

    @property
    def sharded_tokens(self) -> float:
        """Tokens that norms and residuals work on: the sequence is split over TP if it is parallel."""
        return self.tokens / (self.tp if self.parallelism.sequence_parallel else 1)

    @property
    def own_part(self) -> float:
        """Of work on sharded tokens, a rank's share of what the TP ranks do together, each piece once."""
        return 1.0 if self.parallelism.sequence_parallel else 1.0 / self.tp

    @property
    def expert_tp(self) -> int:
        return self.parallelism.expert_tp or self.tp

    def elementwise(
        self, name: str, moved: float, launches: int, *, op: str = "elementwise", width: float = 0.0
    ) -> Kernel:
        """`moved` elements of sharded tokens x width (hidden if 0) through HBM."""
        elements = moved * self.sharded_tokens * (width or self.model.hidden)
        return Kernel(
            name, op, flops=elements, bytes=elements * self.bytes, launches=max(1, launches),
            precision=self.precision,
        )  # fmt: skip

    def gemm(
        self,
        name: str,
        m: float,
        n: float,
        k: float,
        *,
        layout: str = "TN",
        batch: int = 1,
        counted: float = 1.0,
    ) -> Kernel:
        """A matrix product m x k by k x n; `counted`: the part of its FLOPs that belongs to the model.

        Less than 1 where other ranks do the same product, or rows are padding.
        """
        m, n, k = max(1, round(m)), max(1, round(n)), max(1, round(k))
        flops = 2.0 * m * n * k * batch
        element = 1 if self.precision.startswith("fp8") else self.bytes
        return Kernel(
            name,
            "gemm",
            flops=flops,
            bytes=float(batch * (element * (m * k + n * k) + self.bytes * m * n)),
            shape=(m, n, k, batch),
            precision=self.precision,
            layout=layout,
            model_flops=flops * counted,
        )


def make_context(scenario: Scenario, model: Transformer) -> Context:
    """The sizes of a scenario; raises SpecError where heads or widths do not divide."""
    parallelism, software = scenario.parallelism, scenario.software
    if software.attention not in ATTENTION:
        raise SpecError.of("software.attention", f"'{software.attention}': no such attention")
    for value, path in ((model.heads, "heads"), (model.ffn, "ffn")):
        if value % parallelism.tp:
            raise SpecError.of("parallelism.tp", f"{parallelism.tp}: does not divide {path} ({value})")
    if scenario.batch.sequence_length % parallelism.cp:
        raise SpecError.of(
            "parallelism.cp",
            f"{parallelism.cp}: does not divide batch.sequence_length ({scenario.batch.sequence_length})",
        )
    return Context(
        model=model,
        parallelism=parallelism,
        recipe=recipe(software),
        attention=ATTENTION[software.attention],
        precision=scenario.precision,
        batch=scenario.batch.micro_batch,
        sequence=scenario.batch.sequence_length,
        bytes=4 if scenario.precision in ("fp32", "tf32") else 2,
        packed=scenario.batch.documents is not None,
        tp_overlap=scenario.overlap.tp,
        fused_loss=software.fused_loss,
        expert_imbalance=scenario.batch.expert_imbalance if parallelism.ep > 1 else 1.0,
    )
