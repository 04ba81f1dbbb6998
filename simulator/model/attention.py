"""The attention core: scores, softmax and context, fused or not."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.model.blocks import Kernel
from simulator.model.context import Context
from simulator.model.flops import keys_of_layer

#: Implementations that work through the whole square of a causal mask.
_WHOLE_SQUARE = ("flash1", "triton")

#: Backward of fused attention: five products for the forward's two (Dao 2023, arXiv:2307.08691).
_BACKWARD_PRODUCTS = 2.5


@dataclass(frozen=True, slots=True)
class Core:
    """Sizes of one layer's core on one rank."""

    heads: int
    kv_heads: int
    query: int  # queries of a sequence on this rank
    keys: int  # keys that each sees, before the causal mask
    width: int  # of queries and keys
    value_width: int


def core(context: Context, layer: int) -> Core:
    """The core of a layer."""
    model, parallelism = context.model, context.parallelism
    heads = model.heads // parallelism.tp
    kv_heads = max(1, model.kv_heads // parallelism.tp)
    query = context.sequence // parallelism.cp
    if parallelism.cp > 1 and parallelism.cp_kind == "all-to-all":
        heads, kv_heads = max(1, heads // parallelism.cp), max(1, kv_heads // parallelism.cp)
        query = context.sequence
    latent = model.latent_attention
    value = latent.v_head_dim if latent else model.head_dim
    keys = keys_of_layer(model, layer, context.sequence)
    return Core(heads, kv_heads, query, keys, model.head_dim, value)


def fused(context: Context, sizes: Core, way: str, *, causal: bool | None = None) -> tuple[Kernel, ...]:
    """Fused kernels of these sizes; `causal`: the mask hides half of the scores (None: unless a window does)."""
    name = context.attention
    products = 1.0 if way == "forward" else _BACKWARD_PRODUCTS
    whole = 2.0 * context.batch * sizes.heads * sizes.query * sizes.keys * (sizes.width + sizes.value_width)
    halved = sizes.keys >= context.sequence if causal is None else causal
    skips = halved and name not in _WHOLE_SQUARE
    executed = whole * (0.5 if skips else 1.0)
    rows = sizes.heads * sizes.query + sizes.kv_heads * max(sizes.query, sizes.keys)
    operands = context.batch * rows * (sizes.width + sizes.value_width)
    precision = "bf16" if context.precision.startswith("fp8") else context.precision
    counted = whole * (1.0 if way == "forward" else 2.0)
    return (
        Kernel(
            f"attention {way}",
            f"{name}-{way}",
            flops=executed * products,
            bytes=2.0 * operands * (1.0 if way == "forward" else 2.5),
            shape=(
                *(context.batch, sizes.heads, sizes.kv_heads),
                *(sizes.query, sizes.keys, sizes.width, sizes.value_width),
            ),
            precision=precision,
            layout="causal" if skips else "full",
            launches=1 if way == "forward" else 3,
            model_flops=counted,
            varies="attention" if context.packed else "",
        ),
    )


def _unfused(context: Context, sizes: Core, way: str) -> tuple[Kernel, ...]:
    """Batched products, and a softmax and a dropout over all scores."""
    batch = context.batch * sizes.heads
    q, k, d = sizes.query, sizes.keys, sizes.width
    scores = float(batch * q * k)
    dropout = context.model.dropout > 0

    def product(name: str, m: int, n: int, inner: int) -> Kernel:
        return context.gemm(name, m, n, inner, batch=batch)

    def over_scores(name: str, op: str, moved: float, launches: int = 1) -> Kernel:
        return Kernel(
            name, op, flops=4 * scores, bytes=moved * scores, launches=launches,
            precision=context.precision,
        )  # fmt: skip

    if way == "forward":
        kernels = [
            product("scores", q, k, d),
            over_scores("scale, mask, softmax", "softmax", 4.0),
        ]
        if dropout:
            kernels.append(over_scores("attention dropout", "elementwise", 5.0))
        return (*kernels, product("context", q, sizes.value_width, k))
    kernels = [
        product("context dgrad", q, k, sizes.value_width),
        product("values grad", k, sizes.value_width, q),
    ]
    if dropout:
        kernels.append(over_scores("attention dropout grad", "elementwise", 5.0))
    return (
        *kernels,
        over_scores("softmax grad", "softmax", 6.0),
        product("queries grad", q, d, k),
        product("keys grad", k, d, q),
    )


def kernels(context: Context, layer: int, way: str) -> tuple[Kernel, ...]:
    """The core's kernels, "forward" or "backward"."""
    sizes = core(context, layer)
    return fused(context, sizes, way) if context.attention else _unfused(context, sizes, way)


def recomputed(context: Context, layer: int) -> tuple[Kernel, ...]:
    """The forward again for selective recomputation; fused kernels recompute the scores themselves."""
    return () if context.attention else without_count(kernels(context, layer, "forward"))


def without_count(kernels_: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The same kernels, their FLOPs no longer the model's."""
    return tuple(
        Kernel(
            one.name, one.op, one.flops, one.bytes, one.shape, one.precision, one.layout, one.launches,
            0.0, one.varies, one.time_s,
        )
        for one in kernels_
    )  # fmt: skip
