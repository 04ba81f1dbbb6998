"""Mixture of experts: router, dispatch, grouped products, combine (Fedus et al. 2022, arXiv:2101.03961).

With sequence parallelism each TP rank routes its own tokens; ranks that split an expert gather them after
the all-to-all and reduce-scatter the partial sums before the way back, as Megatron-LM's all-to-all token
dispatcher does. Without, every TP rank has all tokens: each set of ranks that holds whole experts
dispatches its part of them, and an all-reduce over TP puts the layer's output together.

Imbalance: `batch.expert_imbalance` is the load of an EP group's fullest rank over the mean. The loads
themselves are in engine/loads.py; an all-to-all takes as long as the fullest rank's part of it.
"""

from __future__ import annotations

from simulator.model.blocks import Exchange, Kernel, Piece, Run
from simulator.model.context import Context
from simulator.spec import Experts


def routed_tokens(context: Context) -> float:
    """Tokens times experts that a rank's experts work on, if balanced.

    Ranks that split an expert over TP all work on the same tokens; sets of them that hold the whole expert
    share the tokens out. With a capacity factor, what the experts' buffers hold.
    """
    experts = _experts(context)
    factor = experts.capacity_factor or 1.0
    return context.tokens * experts.top_k * factor * context.expert_tp / context.tp


def sent_tokens(context: Context) -> float:
    """Tokens times experts that a rank dispatches."""
    if context.parallelism.sequence_parallel:
        return context.sharded_tokens * _experts(context).top_k
    return context.tokens * _experts(context).top_k * context.expert_tp / context.tp


def _experts(context: Context) -> Experts:
    experts = context.model.experts
    assert experts is not None
    return experts


def _grouped(context: Context, name: str, n: float, k: float, way: str) -> Kernel:
    """All local experts' products in one launch."""
    groups = max(1, _experts(context).count // context.parallelism.ep)
    rows = max(1, round(routed_tokens(context) / groups))
    m, n, k = rows, max(1, round(n)), max(1, round(k))
    if way == "wgrad":
        m, n, k = n, k, rows
    flops = 2.0 * groups * m * n * k
    padding = max(1.0, _experts(context).capacity_factor or 1.0)  # rows of no token
    element = 1 if context.precision.startswith("fp8") else context.bytes
    moved = groups * (element * (m * k + n * k) + context.bytes * m * n)
    label = name if way == "forward" else f"{name} {way}"
    layout = {"forward": "TN", "dgrad": "NN"}.get(way, "NT")
    if layout == "NT" and context.recipe.accumulates_fp32:
        layout = "NT-accumulate"
    return Kernel(
        label, "grouped-gemm", flops=flops, bytes=float(moved), shape=(groups, m, n, k),
        precision=context.precision, layout=layout, model_flops=flops / padding, varies="experts",
    )  # fmt: skip


def _products(context: Context, way: str) -> tuple[Kernel, ...]:
    model, width = context.model, _experts(context).ffn / context.expert_tp
    first = width * (2 if model.gated_mlp else 1)
    if way == "forward":
        return (
            _grouped(context, "experts up", first, model.hidden, way),
            _activation(context, 1.0),
            _grouped(context, "experts down", model.hidden, width, way),
        )
    if way == "dgrad":
        return (
            _grouped(context, "experts down", width, model.hidden, way),
            _activation(context, context.recipe.backward),
            _grouped(context, "experts up", model.hidden, first, way),
        )
    return (
        _grouped(context, "experts down", model.hidden, width, way),
        _grouped(context, "experts up", first, model.hidden, way),
    )


def _activation(context: Context, times: float) -> Kernel:
    width = _experts(context).ffn / context.expert_tp * (3 if context.model.gated_mlp else 2)
    elements = routed_tokens(context) * width * times
    return Kernel(
        "experts activation", "elementwise", flops=elements, bytes=2.0 * elements,
        precision=context.precision, varies="experts",
    )  # fmt: skip


def _router(context: Context, way: str) -> tuple[Kernel, ...]:
    experts, hidden = _experts(context), context.model.hidden
    tokens = context.sharded_tokens
    n, k = (experts.count, hidden) if way == "forward" else (hidden, experts.count)
    gate = context.gemm(f"router {way}", tokens, n, k, counted=context.own_part)
    choice = Kernel(
        "top-k and sort", "router", bytes=8.0 * tokens * experts.count, launches=6,
        precision=context.precision,
    )  # fmt: skip
    return (gate, choice)


def _permute(context: Context, name: str) -> Kernel:
    moved = 2.0 * context.bytes * sent_tokens(context) * context.model.hidden
    return Kernel(name, "permute", bytes=moved, launches=2, precision=context.precision)


def _all_to_all(context: Context, part: str) -> list[Piece]:
    if context.parallelism.ep == 1:
        return []
    element = 1 if context.precision.startswith("fp8") and part == "forward" else context.bytes
    size = element * sent_tokens(context) * context.model.hidden * context.expert_imbalance
    return [Exchange("all-to-all", "ep", size, False, part)]  # type: ignore[arg-type]


def _over_experts(context: Context, kind: str, part: str) -> list[Piece]:
    """Between ranks that split an expert, where each has other tokens."""
    if context.expert_tp == 1 or not context.parallelism.sequence_parallel:
        return []
    size = context.bytes * sent_tokens(context) * context.expert_tp * context.model.hidden
    return [Exchange(kind, "expert-tp", size * context.expert_imbalance, False, part)]  # type: ignore[arg-type]


def _summed(context: Context, part: str) -> list[Piece]:
    """The layer's output (backward: its input's gradient) where TP ranks share out the same tokens."""
    if context.tp == 1 or context.parallelism.sequence_parallel:
        return []
    return [Exchange("all-reduce", "tp", context.hidden_bytes, False, part)]  # type: ignore[arg-type]


def forward_pieces(context: Context) -> list[Piece]:
    """Route, send out, work, bring back, add up."""
    products = _products(context, "forward")
    return [
        Run((*_router(context, "forward"), _permute(context, "permute"))),
        *_all_to_all(context, "forward"),
        *_over_experts(context, "all-gather", "forward"),
        Run((_permute(context, "sort by expert"), *products)),
        *_over_experts(context, "reduce-scatter", "forward"),
        *_all_to_all(context, "forward"),
        Run((_permute(context, "unpermute and weigh"),)),
        *_summed(context, "forward"),
    ]


def backward_pieces(context: Context, expert_parameters: tuple[int, ...], router: int) -> list[Piece]:
    """The same the other way round."""
    router_wgrad = context.gemm(
        "router wgrad",
        _experts(context).count,
        context.model.hidden,
        context.sharded_tokens,
        counted=context.own_part,
    )
    return [
        Run((_permute(context, "unpermute grad"),), "input"),
        *_all_to_all(context, "input"),
        *_over_experts(context, "all-gather", "input"),
        Run(_products(context, "dgrad"), "input"),
        Run(_products(context, "wgrad"), "weight", expert_parameters),
        Run((_permute(context, "sort grad"),), "input"),
        *_over_experts(context, "reduce-scatter", "input"),
        *_all_to_all(context, "input"),
        Run((_permute(context, "permute grad"), *_router(context, "dgrad")), "input"),
        *_summed(context, "input"),
        Run((router_wgrad,), "weight", (router,)),
    ]
