"""Questions of `trainsim plan` from text: quantities, suffixes, a GPU's and a model's figures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.errors import SpecError
from simulator.hardware import gpu as find_gpu
from simulator.model import model as find_model
from simulator.model.flops import parameters as count_parameters
from simulator.planning import questions
from simulator.spec import Transformer
from simulator.units import UnitError, parse

#: input -> dimension of its unit
DIMENSIONS: Final = {
    "peak": "flops_per_s", "sparse_peak": "flops_per_s", "flops": "flops", "flops_per_token": "flops",
    "price_per_hour": "usd_per_hour", "bandwidth": "bytes_per_s", "memory": "bytes", "step_time_s": "s",
    "cost_s": "s", "mttf_s": "s", "gpu_mttf_s": "s", "restart_s": "s", "checkpoint_s": "s", "days": "s",
}  # fmt: skip
_SUFFIXES: Final = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_DAY_S: Final = 86400.0


def option_name(key: str) -> str:
    """The option of an input: step_time_s is --step-time."""
    name = key.removesuffix("_s") if DIMENSIONS.get(key) == "s" else key
    return "--" + name.replace("_", "-")


def read_input(key: str, text: str) -> Any:
    """The value of an input's text: "30 days", "989 TFLOP/s", "70B", "0.4"; plain numbers are SI (days for days)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    plain = re.fullmatch(r"\s*([+-]?[\d_.]+(?:[eE][+-]?\d+)?)\s*([KkMBT]?)\s*", text)
    try:
        if plain and (key not in DIMENSIONS or not plain[2]):
            return float(plain[1]) * _SUFFIXES[plain[2]]
        if key in DIMENSIONS:
            value = parse(text, DIMENSIONS[key])
            return value / _DAY_S if key == "days" else value
        return float(text)
    except (UnitError, ValueError) as error:
        raise SpecError.of(option_name(key), f"'{text}': expected a number ({error})") from error


def defaults_of(gpu: str | None, precision: str, model: str | None) -> dict[str, Any]:
    """Inputs that a GPU and a model give."""
    found: dict[str, Any] = {}
    if gpu is not None:
        one = find_gpu(gpu)
        if precision not in one.peak_flops_per_s:
            raise SpecError.of("--precision", f"'{precision}': {gpu} has no such units")
        found |= {
            "peak": one.peak_flops_per_s[precision],
            "price_per_hour": one.price_usd_per_hour,
            "bandwidth": one.memory_bandwidth_bytes_per_s,
            "memory": one.memory_bytes,
        }
    if model is not None:
        transformer = find_model(model)
        if not isinstance(transformer, Transformer):
            raise SpecError.of("--model", f"'{model}': a list of layers has no such figures")
        count = count_parameters(transformer)
        found |= {
            "parameters": float(count.active),
            "embedding": float(count.embedding),
            "layers": float(transformer.layers),
            "hidden": float(transformer.heads * transformer.head_dim),
            "heads": float(transformer.heads),
        }
    return found


def complete(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a question: given ones before the GPU's and the model's. Raises SpecError for gaps."""
    parameters = inspect.signature(questions()[name]).parameters
    inputs = {key: value for key, value in {**defaults, **given}.items() if key in parameters}
    if inputs.get("flops") is None and "flops" in parameters and not inputs.get("tokens"):
        inputs.setdefault("flops", None)
    missing = [
        option_name(key)
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and key not in inputs
    ]
    if missing:
        raise SpecError.of(", ".join(missing), f"missing: '{name}' needs it (or --gpu, --model)")
    return inputs


def read_swing(text: str) -> tuple[str, float, float]:
    """("mfu", 0.3, 0.5) of "mfu=0.3..0.5". Raises SpecError."""
    key, equals, span = text.partition("=")
    low, dots, high = span.partition("..")
    if not equals or not dots:
        raise SpecError.of("--swing", f"'{text}': expected input=low..high, as in mfu=0.3..0.5")
    name = key.strip().replace("-", "_")
    ends = [read_input(name, end) for end in (low, high)]
    if not all(isinstance(end, float) for end in ends) or ends[0] == ends[1]:
        raise SpecError.of("--swing", f"'{text}': expected two different numbers")
    return name, ends[0], ends[1]
