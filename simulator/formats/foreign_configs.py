"""Training configurations of others as scenarios: Megatron-LM's arguments, torchtitan's TOML, DeepSpeed's JSON.

What an option means is taken over; options that say nothing about time or memory are passed over; the rest is
listed, so that nobody believes it was understood.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.errors import FileFormatError
from simulator.formats.topology_text import read_text


@dataclass(slots=True)
class Foreign:
    """A scenario's fields; `unknown`: options that nobody here knows; `missing`: what the user must add."""

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def set(self, path: str, value: Any) -> None:
        """Set a dotted field."""
        here = self.values
        *way, last = path.split(".")
        for part in way:
            here = here.setdefault(part, {})
        here[last] = value


def _whole(text: str) -> int:
    return int(float(text.replace("_", "").replace(",", "")))


#: option -> (field, how its value is read)
_MEGATRON: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "num-layers": ("model.layers", _whole),
    "hidden-size": ("model.hidden", _whole),
    "ffn-hidden-size": ("model.ffn", _whole),
    "num-attention-heads": ("model.heads", _whole),
    "num-query-groups": ("model.kv_heads", _whole),
    "kv-channels": ("model.head_dim", _whole),
    "vocab-size": ("model.vocab", _whole),
    "max-position-embeddings": ("model.max_positions", _whole),
    "seq-length": ("batch.sequence_length", _whole),
    "micro-batch-size": ("batch.micro_batch", _whole),
    "global-batch-size": ("batch.global_batch", _whole),
    "tensor-model-parallel-size": ("parallelism.tp", _whole),
    "pipeline-model-parallel-size": ("parallelism.pp", _whole),
    "context-parallel-size": ("parallelism.cp", _whole),
    "expert-model-parallel-size": ("parallelism.ep", _whole),
    "num-experts": ("model.experts.count", _whole),
    "moe-router-topk": ("model.experts.top_k", _whole),
    "moe-ffn-hidden-size": ("model.experts.ffn", _whole),
}
_FLAGS: Final[Mapping[str, tuple[str, Any]]] = {
    "sequence-parallel": ("parallelism.sequence_parallel", True),
    "swiglu": ("model.gated_mlp", True),
    "disable-bias-linear": ("model.linear_bias", False),
    "bf16": ("precision", "bf16"),
    "fp16": ("precision", "fp16"),
    "use-distributed-optimizer": ("parallelism.sharding", "zero-1"),
    "overlap-grad-reduce": ("overlap.grad_reduce", True),
    "overlap-param-gather": ("overlap.param_gather", True),
    "tp-comm-overlap": ("overlap.tp", True),
    "recompute-activations": ("recompute", "selective"),
    "use-flash-attn": ("software.attention", "flash"),
}
_SILENT: Final = frozenset(
    [
        "lr",
        "min-lr",
        "lr-decay-style",
        "lr-warmup-iters",
        "lr-warmup-fraction",
        "lr-decay-iters",
        "weight-decay",
        "adam-beta1",
        "adam-beta2",
        "adam-eps",
        "clip-grad",
        "train-iters",
        "train-samples",
        "eval-iters",
        "eval-interval",
        "log-interval",
        "save",
        "save-interval",
        "load",
        "data-path",
        "tokenizer-type",
        "tokenizer-model",
        "vocab-file",
        "merge-file",
        "split",
        "seed",
        "init-method-std",
        "distributed-backend",
        "tensorboard-dir",
        "wandb-project",
        "exit-interval",
        "num-workers",
        "no-load-optim",
        "no-load-rng",
        "use-mcore-models",
        "transformer-impl",
        "attention-softmax-in-fp32",
        "hidden-dropout",
        "attention-dropout",
        "override-opt_param-scheduler",
        "log-throughput",
        "use-rotary-position-embeddings",
        "rotary-base",
        "rotary-percent",
        "ckpt-format",
    ]
)


#: options that others already say
_IMPLIED: Final = (
    *("group-query-attention", "make-vocab-size-divisible-by"),
    *("recompute-method", "recompute-num-layers"),
)


def megatron(path: Path) -> Foreign:
    """Megatron-LM's arguments, from a shell script or a file of arguments. Raises FileFormatError."""
    text = read_text(path).replace("\\\n", " ")
    lines = [line.partition(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        words = shlex.split(" ".join(lines).replace("(", " ").replace(")", " "))
    except ValueError as error:
        raise FileFormatError(f"{path}: not arguments: {error}") from error
    options: dict[str, str] = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else ""
            options[name] = value if equals else following
    if not options:
        raise FileFormatError(f"{path}: no --option: expected Megatron-LM's arguments")
    return _from_megatron(path, options)


def _from_megatron(path: Path, options: Mapping[str, str]) -> Foreign:
    found = Foreign({"software": {"framework": "megatron"}})
    for name, value in options.items():
        if name in _MEGATRON:
            where, read = _MEGATRON[name]
            try:
                found.set(where, read(value))
            except ValueError as error:
                raise FileFormatError(f"{path}: --{name} {value!r}: expected a number") from error
        elif name in _FLAGS:
            found.set(*_FLAGS[name])
        elif not _special(found, name, value, options) and name not in _SILENT:
            found.unknown.append(f"--{name}")
    return _completed(found)


def _special(found: Foreign, name: str, value: str, options: Mapping[str, str]) -> bool:
    """Options that need more than a name for a name."""
    if name == "normalization":
        found.set("model.norm", value.lower())
    elif name == "position-embedding-type":
        kinds = {"rope": "rope", "learned_absolute": "learned", "none": "none"}
        found.set("model.position", kinds.get(value, "rope"))
    elif name == "recompute-granularity":
        found.set("recompute", value)
    elif name == "num-layers-per-virtual-pipeline-stage":
        layers, pp = (
            _whole(options.get("num-layers", "0")),
            _whole(options.get("pipeline-model-parallel-size", "1")),
        )
        virtual = layers // pp // max(1, _whole(value))
        found.set("parallelism.virtual_stages", virtual)
        found.set("parallelism.schedule", "interleaved-1f1b")
    elif name == "untie-embeddings-and-output-weights":
        found.set("model.tied_embeddings", False)
    else:
        return name in _IMPLIED
    return True


def _completed(found: Foreign) -> Foreign:
    model = found.values.get("model", {})
    if isinstance(model, dict) and model:
        model.setdefault("ffn", 4 * model.get("hidden", 0))
        model.setdefault("tied_embeddings", True)
        if "vocab" not in model:
            model["vocab"] = 50257
            found.missing.append("model.vocab: 50257 assumed; the tokenizer decides")
    for path in ("cluster", "model", "batch"):
        if path not in found.values:
            found.missing.append(f"{path}: not in the file")
    return found


def torchtitan(path: Path) -> Foreign:
    """torchtitan's TOML. Raises FileFormatError."""
    try:
        data = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{path}: not TOML: {error}") from error
    found = Foreign(
        {"software": {"framework": "torchtitan", "attention": "cudnn"}, "parallelism": {"sharding": "fsdp"}}
    )
    known = {
        "parallelism.tensor_parallel_degree": "parallelism.tp",
        "parallelism.pipeline_parallel_degree": "parallelism.pp",
        "parallelism.context_parallel_degree": "parallelism.cp",
        "parallelism.expert_parallel_degree": "parallelism.ep",
        "training.seq_len": "batch.sequence_length",
        "training.local_batch_size": "batch.micro_batch",
        "training.global_batch_size": "batch.global_batch",
        "training.compile": "software.compile",
        "compile.enable": "software.compile",
        "parallelism.enable_async_tensor_parallel": "overlap.tp",
    }
    modes = {"full": "full", "selective": {"every": 2}, "none": "none"}
    schedules = {
        "1F1B": "1f1b",
        "Interleaved1F1B": "interleaved-1f1b",
        "GPipe": "gpipe",
        "ZBVZeroBubble": "zb-v",
    }
    for section, options in data.items():
        for name, value in options.items() if isinstance(options, Mapping) else ():
            path_ = f"{section}.{name}"
            if path_ in known:
                found.set(known[path_], value)
            elif path_ == "activation_checkpoint.mode":
                found.set("recompute", modes.get(value, "none"))
            elif path_ == "parallelism.pipeline_parallel_schedule":
                found.set("parallelism.schedule", schedules.get(value, "1f1b"))
            elif path_ == "parallelism.data_parallel_replicate_degree" and value > 1:
                found.set("parallelism.sharding", "hsdp")
            elif path_ == "parallelism.data_parallel_shard_degree" and value > 1:
                found.set("parallelism.shard_group", value)
            elif path_ == "model.flavor":
                found.missing.append(f"model: flavor {value} of {data.get('model', {}).get('name', '?')}")
            elif section in ("parallelism", "activation_checkpoint", "float8", "training"):
                found.unknown.append(path_)
    for key in ("cluster", "model"):
        if key not in found.values:
            found.missing.append(f"{key}: not in the file")
    return found


def deepspeed(path: Path) -> Foreign:
    """DeepSpeed's JSON. Raises FileFormatError."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    if not isinstance(data, Mapping):
        raise FileFormatError(f"{path}: expected a JSON object")
    found = Foreign({"software": {"framework": "megatron-deepspeed"}})
    for name, value in data.items():
        if name == "train_batch_size":
            found.set("batch.global_batch", value)
        elif name == "train_micro_batch_size_per_gpu":
            found.set("batch.micro_batch", value)
        elif name in ("bf16", "fp16") and isinstance(value, Mapping):
            if value.get("enabled"):
                found.set("precision", name)
        elif name == "zero_optimization" and isinstance(value, Mapping):
            _zero(found, value)
        elif name == "gradient_clipping":
            found.set("software.gradient_clipping", bool(value))
        elif name not in (
            "optimizer",
            "scheduler",
            "steps_per_print",
            "wall_clock_breakdown",
            "gradient_accumulation_steps",
        ):
            found.unknown.append(name)
    found.missing += [
        "cluster: not in the file",
        "model: not in the file",
        "batch.sequence_length: not in the file",
    ]
    return found


def _zero(found: Foreign, value: Mapping[str, Any]) -> None:
    stage = value.get("stage", 0)
    found.set("parallelism.sharding", {0: "ddp", 1: "zero-1", 2: "zero-2", 3: "zero-3"}.get(stage, "ddp"))
    found.set("overlap.grad_reduce", bool(value.get("overlap_comm", True)))
    if isinstance(value.get("reduce_bucket_size"), int | float):
        found.set("overlap.bucket_size", f"{2 * float(value['reduce_bucket_size']) / 2**20:g} MiB")
    known = {"stage", "overlap_comm", "reduce_bucket_size", "contiguous_gradients", "reduce_scatter"}
    found.unknown += [f"zero_optimization.{name}" for name in value if name not in known]
