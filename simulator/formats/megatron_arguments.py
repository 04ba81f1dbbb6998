"""Megatron-LM's arguments as a scenario, with Megatron-LM's defaults for what is not given.

Options and defaults: Megatron-LM, megatron/training/arguments.py.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

from simulator.errors import FileFormatError
from simulator.formats.foreign import Fields, Foreign, foreign_format
from simulator.formats.megatron_effectless import EFFECTLESS
from simulator.formats.shell_options import Option, shell_options
from simulator.formats.topology_text import read_text

#: options that Megatron-LM reads as several words
_MANY: Final = frozenset(("recompute-modules", "cp-comm-type", "moe-layer-freq", "window-size"))

#: position embeddings that differ only in how angles are computed
_POSITIONS: Final = {
    "learned_absolute": "learned", "rope": "rope", "rotary": "rope", "yarn": "rope", "mrope": "rope",
    "alibi": "alibi", "none": "none",
}  # fmt: skip
_RECOMPUTED: Final = ("core_attn", "mla_up_proj", "mlp", "moe", "moe_act", "layernorm", "shared_experts")
_ACTIVATIONS: Final = (
    ("swiglu", True, "silu"), ("quick-geglu", True, "gelu"), ("squared-relu", False, "relu2"),
)  # fmt: skip


@foreign_format("Megatron-LM arguments", lambda path, text: True, order=9)
def megatron(path: Path) -> Foreign:
    """Megatron-LM's arguments, from a shell script or a file of arguments.

    Raises FileFormatError where there are none, SpecError for values that make no sense.
    """
    options, uncertain = shell_options(read_text(path))
    if not options and not uncertain:
        raise FileFormatError(f"{path}: no --option: expected Megatron-LM's arguments")
    found = translate(path, options)
    found.unknown += [
        f"--{name}: line {option.line} stands behind a condition that the file does not decide"
        for name, option in uncertain
        if name not in EFFECTLESS
    ]
    return found


def translate(path: Path, options: dict[str, Option]) -> Foreign:
    """A scenario's fields from options. Raises SpecError."""
    values = {name: " ".join(option.words) for name, option in options.items()}
    fields = Fields(
        path, values, lambda name: options[name].line if name in options else None, prefix="--", text=True
    )
    found = Foreign({"software": {"framework": "megatron"}})
    for name, option in options.items():
        known = name not in EFFECTLESS and name not in _MANY
        if known and len(option.words) > 1:
            fields.refuse(name, values[name], "at most one value")
    _model(fields, found)
    _experts(fields, found)
    _latent(fields, found)
    _parallelism(fields, found)
    _placement(fields, found)
    _batch(fields, found)
    _recompute(fields, found)
    _precision(fields, found)
    _overlap(fields, found)
    _software(fields, found)
    for name, option in options.items():
        if option.problem and name in fields.known:
            fields.note(name, option.problem)
    fields.check()
    found.unknown, found.effectless = fields.rest(EFFECTLESS)
    for section in ("cluster", "model", "batch"):
        if section not in found.values:
            found.missing.append(f"{section}: not in the file")
    return found


def _model(fields: Fields, found: Foreign) -> None:
    whole = (
        ("num-layers", "layers"), ("hidden-size", "hidden"), ("num-attention-heads", "heads"),
        ("kv-channels", "head_dim"),
    )  # fmt: skip
    for option, name in whole:
        found.set(f"model.{name}", fields.whole(option))
    grouped, groups = fields.flag("group-query-attention"), fields.whole("num-query-groups")
    if grouped:
        found.set("model.kv_heads", groups or 1)
    ffn = fields.whole("ffn-hidden-size")
    gated, activation = _activation(fields)
    flags = {
        "linear_bias": fields.flag("disable-bias-linear"),
        "qkv_bias": fields.flag("add-qkv-bias"),
        "qk_norm": fields.flag("qk-layernorm"),
        "tied_embeddings": fields.flag("untie-embeddings-and-output-weights"),
    }
    norm = fields.choice("normalization", {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"})
    position = fields.choice("position-embedding-type", _POSITIONS)
    if fields.flag("use-rotary-position-embeddings"):
        position = "rope"
    if fields.flag("no-position-embedding"):
        position = position or "none"
    positions = fields.whole("max-position-embeddings")
    dropouts = [fields.number(f"{place}-dropout", 0, 1) for place in ("hidden", "attention")]
    vocab, padding = fields.whole("vocab-size"), fields.whole("make-vocab-size-divisible-by") or 128
    tp = fields.whole("tensor-model-parallel-size") or 1
    if fields.given("window-size"):
        fields.cannot("window-size", "sliding windows of Megatron-LM are not translated")
    hidden = found.get("model.hidden")
    if not hidden:
        return
    wide = int(4 * hidden * 2 / 3 / 64) * 64 if activation == "silu" and gated else 4 * hidden
    found.set("model.ffn", ffn or wide)
    found.set("model.gated_mlp", gated)
    found.set("model.activation", activation)
    found.set("model.norm", norm or "layernorm")
    found.set("model.position", position or "learned")
    if (position or "learned") == "learned":
        found.set("model.max_positions", positions)
        if positions is None:
            found.missing.append("model.max_positions: not in the file (--max-position-embeddings)")
    found.set("model.linear_bias", not flags["linear_bias"])
    found.set("model.qkv_bias", not flags["linear_bias"] or bool(flags["qkv_bias"]))
    found.set("model.qk_norm", bool(flags["qk_norm"]))
    found.set("model.tied_embeddings", not flags["tied_embeddings"])
    hidden_dropout, attention_dropout = (0.1 if one is None else one for one in dropouts)
    found.set("model.dropout", max(hidden_dropout, attention_dropout))
    if (hidden_dropout > 0) != (attention_dropout > 0):
        found.assumed.append("model.dropout: a model has one: of both the larger")
    if vocab is None:
        vocab = 50257
        found.assumed.append("model.vocab: 50257; the tokenizer decides")
    elif padding != 128:
        vocab = math.ceil(vocab / (padding * tp)) * padding * tp
    found.set("model.vocab", vocab)


def _activation(fields: Fields) -> tuple[bool, str]:
    """(gated, activation); two that exclude each other are refused, as Megatron-LM does."""
    given = [(name, gated, kind) for name, gated, kind in _ACTIVATIONS if fields.flag(name)]
    if len(given) > 1:
        fields.refuse(given[1][0], "", f"not with --{given[0][0]}")
    return given[0][1:] if given else (False, "gelu")


def _experts(fields: Fields, found: Foreign) -> None:
    count, top_k = fields.whole("num-experts"), fields.whole("moe-router-topk")
    ffn, shared = fields.whole("moe-ffn-hidden-size"), fields.whole("moe-shared-expert-intermediate-size")
    capacity = fields.number("moe-expert-capacity-factor")
    pad = fields.flag("moe-pad-expert-input-to-capacity")
    dispatcher = fields.choice(
        "moe-token-dispatcher-type",
        {"alltoall": "", "alltoall_seq": "", "flex": "", "allgather": "all-gather"},
    )
    frequency = fields.raw("moe-layer-freq")
    ep = fields.whole("expert-model-parallel-size")
    found.set("parallelism.ep", ep)
    found.set("parallelism.expert_tp", fields.whole("expert-tensor-parallel-size"))
    dense = _dense_layers(fields, str(frequency), found.get("model.layers")) if frequency else []
    if dispatcher and (ep or 1) > 1:
        fields.cannot("moe-token-dispatcher-type", "allgather: all-to-all is simulated")
    if capacity is not None and not pad:
        found.assumed.append("model.experts.capacity_factor: experts' buffers are full, as if padded")
    grouped = fields.flag("moe-grouped-gemm")
    if count is None or not found.get("model.hidden"):
        return
    if not grouped:
        found.assumed.append(
            "model.experts: products of a rank's experts are one launch, as with grouped GEMM"
        )
    experts = {"count": count, "top_k": top_k or 2, "ffn": ffn or found.get("model.ffn")}
    if shared:
        experts |= {"shared": 1, "shared_ffn": shared}
    if capacity:
        experts["capacity_factor"] = capacity
    if dense:
        experts["dense_layers"] = dense
    found.set("model.experts", experts)


def _dense_layers(fields: Fields, text: str, layers: int | None) -> list[int]:
    """Layers without experts: every n-th has them, or a list of 0 and 1 such as ([0]*3+[1]*58)."""
    name, expected = "moe-layer-freq", "a whole number of 1 or more, or a list of 0 and 1 for every layer"
    compact = re.sub(r"\s", "", text)
    if compact.isdecimal() and int(compact) >= 1:
        return [layer for layer in range(layers or 0) if layer % int(compact)]
    pattern: list[int] = []
    for part in compact.strip("()").split("+"):
        match = re.fullmatch(r"\(?\[([01](?:,[01])*),?\](?:\*(\d{1,5}))?\)?(?:\*(\d{1,5}))?", part)
        if match is None:
            fields.refuse(name, text, expected)
            return []
        pattern += [int(one) for one in match[1].split(",")] * int(match[2] or 1) * int(match[3] or 1)
    if layers is not None and len(pattern) != layers:
        fields.refuse(name, text, f"{expected} (it has {len(pattern)}, the model {layers})")
    return [layer for layer, routed in enumerate(pattern) if not routed]


def _latent(fields: Fields, found: Foreign) -> None:
    """Multi-latent attention, with Megatron-LM's default sizes."""
    sizes = {
        "kv_lora_rank": fields.whole("kv-lora-rank") or 32,
        "qk_nope_head_dim": fields.whole("qk-head-dim") or 128,
        "qk_rope_head_dim": fields.whole("qk-pos-emb-head-dim") or 64,
        "v_head_dim": fields.whole("v-head-dim") or 128,
        "q_lora_rank": fields.whole("q-lora-rank") or 0,
    }
    if fields.flag("multi-latent-attention") and found.get("model.hidden"):
        found.set("model.latent_attention", sizes)
        found.set("model.qk_norm", False)  # of the latents instead, which always have norms
        found.set("model.head_dim", sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"])
    if fields.whole("mtp-num-layers", 0):
        fields.cannot("mtp-num-layers", "layers that predict further tokens are not simulated")


def _parallelism(fields: Fields, found: Foreign) -> None:
    pp = fields.whole("pipeline-model-parallel-size") or 1
    found.set("parallelism.tp", fields.whole("tensor-model-parallel-size"))
    found.set("parallelism.pp", pp)
    found.set("parallelism.cp", fields.whole("context-parallel-size"))
    found.set("parallelism.sequence_parallel", fields.flag("sequence-parallel"))
    per_stage = fields.whole("num-layers-per-virtual-pipeline-stage")
    virtual = fields.whole("num-virtual-stages-per-pipeline-rank")
    ends = [fields.whole(f"decoder-{end}-pipeline-num-layers", 0) for end in ("first", "last")]
    layers = found.get("model.layers")
    if per_stage and layers:
        if layers % (pp * per_stage):
            fields.refuse(
                "num-layers-per-virtual-pipeline-stage", str(per_stage),
                f"layers of a pipeline stage ({layers} over {pp}) to be a multiple of it",
            )  # fmt: skip
        virtual = layers // pp // per_stage
    if virtual and virtual > 1:
        found.set("parallelism.virtual_stages", virtual)
        found.set("parallelism.schedule", "interleaved-1f1b")
    _uneven(fields, found, ends, pp * (virtual or 1))
    kinds = {"p2p": "ring", "a2a": "all-to-all", "allgather": "all-gather"}
    found.set("parallelism.cp_kind", fields.choice("cp-comm-type", kinds))
    if fields.flag("use-tp-pp-dp-mapping"):
        found.set("parallelism.order", ["tp", "cp", "ep", "pp", "dp"])
    sharding = fields.choice(
        "data-parallel-sharding-strategy",
        {"no_shard": "ddp", "optim": "zero-1", "optim_grads": "zero-2", "optim_grads_params": "zero-3"},
    )
    fsdp = fields.flag("use-megatron-fsdp"), fields.flag("use-custom-fsdp")
    distributed, torch = fields.flag("use-distributed-optimizer"), fields.flag("use-torch-fsdp2")
    kind = "fsdp" if torch else (sharding or "ddp") if any(fsdp) else "zero-1" if distributed else "ddp"
    found.set("parallelism.sharding", kind)
    if (fields.whole("num-distributed-optimizer-instances") or 1) > 1:
        fields.cannot("num-distributed-optimizer-instances", "one instance is simulated")
    if fields.given("pipeline-model-parallel-layout"):
        fields.cannot("pipeline-model-parallel-layout", "give parallelism.layers_per_stage")
    for end in ("embedding", "loss"):
        if fields.flag(f"account-for-{end}-in-pipeline-split"):
            fields.cannot(f"account-for-{end}-in-pipeline-split", "give parallelism.layers_per_stage")


def _uneven(fields: Fields, found: Foreign, ends: list[int | None], parts: int) -> None:
    """First and last stage as given, what is left evenly over the others."""
    layers, (first, last) = found.get("model.layers"), ends
    if not layers or (first is None and last is None):
        return
    if parts > found.get("parallelism.pp", 1):
        fields.cannot("decoder-first-pipeline-num-layers", "with virtual stages: give layers_per_stage")
        return
    given = (first or 0) + (last or 0)
    inner = parts - (first is not None) - (last is not None)
    if inner < 0 or given > layers or (inner and (layers - given) % inner) or (not inner and given != layers):
        fields.refuse(
            "decoder-first-pipeline-num-layers", str(first),
            f"{layers} layers less those of the ends to split over {inner} stages",
        )  # fmt: skip
        return
    middle = [(layers - given) // inner] * inner if inner else []
    sizes = [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]
    found.set("parallelism.layers_per_stage", sizes)


def _placement(fields: Fields, found: Foreign) -> None:
    """GPUs, where torchrun's arguments say how many."""
    counts = []
    for name in ("nproc_per_node", "nproc-per-node", "nnodes"):
        text = fields.raw(name)
        if text is None:
            continue
        counts.append(int(text) if text.isascii() and text.isdecimal() else 0)
        if not counts[-1]:
            found.missing.append(f"cluster.gpus: --{name} is {text!r}")
    if len(counts) == 2 and all(counts):
        found.set("cluster.gpus", counts[0] * counts[1])
        found.missing.append("cluster.topology: not in the file")


def _batch(fields: Fields, found: Foreign) -> None:
    sequence = fields.whole("seq-length") or fields.whole("encoder-seq-length")
    micro, batch = fields.whole("micro-batch-size"), fields.whole("global-batch-size")
    found.set("batch.sequence_length", sequence)
    found.set("batch.micro_batch", micro)
    found.set("batch.global_batch", batch)
    if fields.given("rampup-batch-size"):
        fields.cannot("rampup-batch-size", "the full batch is simulated")
    if "batch" in found.values:
        needed = (("sequence_length", sequence), ("global_batch", batch))
        found.missing += [f"batch.{name}: not in the file" for name, value in needed if value is None]


def _recompute(fields: Fields, found: Foreign) -> None:
    selective = fields.flag("recompute-activations")
    old = fields.flag("checkpoint-activations"), fields.whole("checkpoint-num-layers")
    old_method = fields.choice("activations-checkpoint-method", {"uniform": "uniform", "block": "block"})
    old_layers = fields.whole("activations-checkpoint-num-layers")
    kind = fields.choice("recompute-granularity", {"full": "full", "selective": "selective"})
    method = fields.choice("recompute-method", {"uniform": "uniform", "block": "block"})
    layers, modules = fields.whole("recompute-num-layers"), fields.raw("recompute-modules")
    for module in str(modules or "").split():
        if module not in _RECOMPUTED:
            fields.refuse("recompute-modules", module, f"some of {', '.join(_RECOMPUTED)}")
    if old[0] or old_method:  # the names of 2021
        kind, method = "full", old_method or "uniform"
        layers = layers or old[1] or old_layers
    if kind == "full" and method is None:
        fields.refuse("recompute-granularity", "full", "--recompute-method uniform or block with it")
    if kind != "full" and method is not None:
        fields.refuse("recompute-method", method, "--recompute-granularity full with it")
    if kind == "full" and method == "block":
        found.set("recompute", {"first": layers or 1})  # of each (virtual) stage, so many layers
    elif kind == "full" and method == "uniform":
        found.set("recompute", "full")
        if (layers or 1) > 1:
            fields.cannot("recompute-num-layers", "every layer's input is kept, not every n-th's")
    elif kind == "selective" or selective:
        others = [one for one in str(modules or "core_attn").split() if one != "core_attn"]
        if modules is None or "core_attn" in str(modules).split():
            found.set("recompute", "selective")
        if others:
            fields.cannot("recompute-modules", f"{' '.join(others)}: only core_attn is recomputed")
    if fields.flag("distribute-saved-activations"):
        fields.cannot("distribute-saved-activations", "inputs of layers are kept whole")


def _precision(fields: Fields, found: Foreign) -> None:
    half = {kind: fields.flag(kind) for kind in ("bf16", "fp16")}
    if all(half.values()):
        fields.refuse("fp16", "", "not with --bf16")
    kind = next((name for name, on in half.items() if on), "fp32")
    fp8 = fields.choice("fp8-format", {"e4m3": "fp8", "hybrid": "fp8"}) or fields.choice(
        "fp8", {"e4m3": "fp8", "hybrid": "fp8"}
    )
    recipe = fields.choice(
        "fp8-recipe",
        {"delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"},
    )
    if fp8 and recipe == "mxfp8":
        fields.cannot("fp8-recipe", "mxfp8: blockwise is simulated")
        recipe = "fp8-blockwise"
    found.set("precision", (recipe or "fp8") if fp8 else kind)
    in_fp32 = fields.flag("accumulate-allreduce-grads-in-fp32")
    in_bf16 = fields.flag("grad-reduce-in-bf16")
    gradient = "fp32" if in_fp32 or (kind == "bf16" and not in_bf16) or kind == "fp32" else kind
    found.set("software.gradient_dtype", gradient)


def _overlap(fields: Fields, found: Foreign) -> None:
    reduce = bool(fields.flag("overlap-grad-reduce"))
    found.set("overlap.grad_reduce", reduce)
    found.set("overlap.param_gather", bool(fields.flag("overlap-param-gather")))
    found.set("overlap.tp", fields.flag("tp-comm-overlap"))
    elements = fields.whole("ddp-bucket-size")
    if not reduce:
        return
    if elements is None:
        elements = 40_000_000
        found.assumed.append("overlap.bucket_size: 40 million gradients, as for up to 40 data-parallel ranks")
    size = elements * (4 if found.get("software.gradient_dtype") == "fp32" else 2)
    for name in ("bucket_size", "first_bucket"):
        found.set(f"overlap.{name}", f"{size} B")


def _software(fields: Fields, found: Foreign) -> None:
    flash = fields.flag("use-flash-attn")
    kinds = {"flash": "flash", "fused": "cudnn", "unfused": "unfused", "local": "unfused", "auto": None}
    backend = fields.choice("attention-backend", kinds)
    local = fields.choice("transformer-impl", {"local": True, "transformer_engine": False})
    attention = "flash" if flash else backend or ("unfused" if local else None)
    found.set("software.attention", attention)
    clip = fields.number("clip-grad")
    found.set("software.gradient_clipping", clip is None or clip > 0)
    optimizer = fields.choice("optimizer", {"adam": "fused-adamw", "sgd": "sgd"})
    found.set("software.optimizer", optimizer)
    interval = fields.whole("log-interval", 1)
    found.set("software.log_every", 100 if interval is None else interval)
    found.set("dataloader.workers", fields.whole("num-workers", 0))
    found.set("offload.layers", fields.whole("cpu-offloading-num-layers", 0))
    graphs = [fields.flag(name) for name in ("enable-cuda-graph", "external-cuda-graph")]
    if any(graphs):
        found.set("software.cuda_graphs", True)
