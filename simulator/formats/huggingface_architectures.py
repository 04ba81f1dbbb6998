"""Architectures of Hugging Face's transformers: which fields of a config shape a model, and how.

Defaults are those of the configuration classes (huggingface/transformers, src/transformers/models/*/
configuration_*.py); shapes are those of the modelling files beside them. A new architecture is one function
with one registration, in any module here whose name begins with huggingface_.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from simulator.formats.foreign import Fields

Values = dict[str, Any]
Architecture = Callable[[Fields], Values]

_ARCHITECTURES: Final[dict[str, Architecture]] = {}
ACTIVATIONS: Final = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def architecture(*names: str) -> Callable[[Architecture], Architecture]:
    """Register what reads the configs of these model types."""

    def register(read: Architecture) -> Architecture:
        for name in names:
            _ARCHITECTURES[name] = read
        return read

    return register


def architectures() -> Mapping[str, Architecture]:
    """Model type -> the fields of a Transformer from those of a config."""
    import simulator.formats as package

    for module in iter_modules(package.__path__):
        if module.name.startswith("huggingface_"):
            import_module(f"{package.__name__}.{module.name}")
    return _ARCHITECTURES


# ------------------------------------------------------------------------------------------ shared


def needed(fields: Fields, *names: str) -> int:
    """A size under the first of its names that is there; 1 if none is, which is refused."""
    for name in names:
        if fields.given(name):
            return fields.whole(name) or 1
    fields.refuse(names[0], None, "a whole number of 1 or more")
    return 1


def tied(fields: Fields, default: bool) -> bool:
    """Whether embedding and head are one table."""
    tied = fields.flag("tie_word_embeddings")
    return default if tied is None else tied


def dropout_of(fields: Fields, *names: str, default: float = 0.0) -> float:
    """The largest: a Transformer has one."""
    found = [fields.number(name, 0, 1) for name in names]
    return max(default if one is None else one for one in found)
