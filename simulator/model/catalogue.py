"""The bundled models: TOML files in data/, each entry with its source and its published parameters."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from simulator.errors import SpecError, nearest
from simulator.spec import Experts, LatentAttention, LayerList, Model, PlainLayer, Transformer


@cache
def _transformers() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    folder = files("simulator.model") / "data"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            found.update(tomllib.loads(file.read_text(encoding="utf-8")))
    return found


@cache
def _lists() -> Mapping[str, Mapping[str, Any]]:
    folder = files("simulator.model") / "data" / "lists"
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".toml")
    }


def models() -> tuple[str, ...]:
    """Names of all bundled models."""
    return tuple(sorted((*_transformers(), *_lists())))


def published_parameters(name: str) -> int:
    """Parameters as the authors or the checkpoint give them; 0 where no exact figure is published."""
    entry = _transformers().get(name) or _lists()[name]
    return int(entry.get("parameters", 0))


@cache
def model(name: str) -> Model:
    """The bundled model of that name; SpecError with the nearest name if there is none."""
    if name in _lists():
        return layer_list(_lists()[name])
    if name not in _transformers():
        raise SpecError.of("model", f"'{name}': no such model{nearest(name, models())}")
    return transformer({"name": name, **_transformers()[name]})


def transformer(entry: Mapping[str, Any]) -> Transformer:
    """A transformer from plain fields; unknown fields are left to the caller to refuse."""
    known = {field.name for field in fields(Transformer)}
    values = {key: value for key, value in entry.items() if key in known}
    if isinstance(values.get("experts"), Mapping):
        experts = dict(values["experts"])
        experts["dense_layers"] = tuple(experts.get("dense_layers", ()))
        values["experts"] = Experts(**experts)
    if isinstance(values.get("latent_attention"), Mapping):
        values["latent_attention"] = LatentAttention(**values["latent_attention"])
    return Transformer(**values)


def layer_list(entry: Mapping[str, Any]) -> LayerList:
    """A plain list of layers from its file."""
    layers = tuple(
        PlainLayer(
            name=layer["name"],
            parameters=sum(layer.get("tensors", ())) or layer.get("parameters", 0),
            forward_flops=float(layer.get("forward_flops", 0.0)),
            forward_bytes=float(layer.get("forward_bytes", 0.0)),
            activation_bytes=float(layer.get("activation_bytes", 0.0)),
            repeat=layer.get("repeat", 1),
            tensors=tuple(layer.get("tensors", ())),
        )
        for layer in entry["layers"]
    )
    return LayerList(
        name=entry["name"],
        layers=layers,
        kernels_per_layer=entry.get("kernels_per_layer", 4),
        sample=entry.get("sample", "sample"),
        source=entry.get("source", ""),
    )
