"""The model of a scenario: bundled name, path of a config.json or a list of layers, or fields."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from simulator.errors import Finding, SpecError, nearest
from simulator.model import model as find_model
from simulator.model import models
from simulator.scenario.source import read
from simulator.spec import Experts, LatentAttention, LayerList, Model, PlainLayer, Transformer
from simulator.units import UnitError, parse


def model_of(value: str | Mapping[str, Any], folder: Path | None) -> tuple[Model, tuple[str, ...]]:
    """(the model, notes about fields of a foreign file that nobody knew). Raises SpecError."""
    if isinstance(value, Mapping):
        if "layers" in value and isinstance(value["layers"], list):
            return _layer_list(value, "inline"), ()
        return _transformer(value), ()
    if value in models():
        return find_model(value), ()
    path = Path(value)
    if folder is not None and not path.is_absolute() and (folder / path).exists():
        path = folder / path
    if path.suffix == ".json":
        from simulator.formats.huggingface import read_config

        return read_config(path)
    if path.suffix in (".yaml", ".yml"):
        source = read(path)
        try:
            return model_of(source.values, path.parent)
        except SpecError as error:
            raise source.refuse(error.findings) from error
    raise SpecError.of("", f"'{value}': no such model{nearest(value, models())}")


def _transformer(value: Mapping[str, Any]) -> Transformer:
    given = dict(value)
    given.setdefault("name", "inline")
    findings: list[Finding] = []
    for name, cls in (("experts", Experts), ("latent_attention", LatentAttention)):
        if isinstance(given.get(name), Mapping):
            given[name] = _dataclass(cls, given[name], f"{name}.", findings)
        elif given.get(name) is not None:
            findings.append(Finding(name, f"{given[name]!r}: expected fields (name: value)"))
    made = _dataclass(Transformer, given, "", findings)
    if findings:
        raise SpecError(findings)
    assert isinstance(made, Transformer)
    return made


def _dataclass(cls: Any, given: Mapping[str, Any], prefix: str, findings: list[Finding]) -> Any:
    """An instance from plain fields, checked by their annotations; None with findings."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    before = len(findings)
    values = {}
    for name, value in given.items():
        if name not in known:
            findings.append(Finding(f"{prefix}{name}", f"unknown key{nearest(str(name), known)}"))
        elif not _fits(value, hints[name]):
            findings.append(Finding(f"{prefix}{name}", f"{value!r}: expected {_wanted(hints[name])}"))
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    for name, field in known.items():
        if field.default is MISSING and field.default_factory is MISSING and name not in given:
            findings.append(Finding(f"{prefix}{name}", "missing"))
    if len(findings) > before:
        return None
    try:
        return cls(**values)
    except SpecError as error:
        findings += [
            finding if finding.path.startswith(prefix) else finding.under(prefix.rstrip("."))
            for finding in error.findings
        ]
        return None


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(one, get_args(hint)[0]) for one in value)
    if str(origin).endswith("Literal"):
        return value in get_args(hint)
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _wanted(hint: Any) -> str:
    if str(get_origin(hint)).endswith("Literal"):
        return f"one of {', '.join(map(str, get_args(hint)))}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, "a list of whole numbers" if get_origin(hint) is tuple else str(hint))


def _layer_list(value: Mapping[str, Any], name: str) -> LayerList:
    known = ("name", "layers", "kernels_per_layer", "sample", "source")
    findings = [
        Finding(str(key), f"unknown key{nearest(str(key), known)}") for key in value if key not in known
    ]
    layers = [_layer(entry, f"layers[{i}]", findings) for i, entry in enumerate(value["layers"])]
    if not value["layers"]:
        findings.append(Finding("layers", "[]: expected one or more"))
    if findings:
        raise SpecError(findings)
    return LayerList(
        name=value.get("name", name),
        layers=tuple(layer for layer in layers if layer is not None),
        kernels_per_layer=value.get("kernels_per_layer", 4),
        sample=value.get("sample", "sample"),
        source=value.get("source", ""),
    )


_TIMES = {"forward_time": "forward_time_s", "backward_time": "backward_time_s"}


def _layer(entry: Any, path: str, findings: list[Finding]) -> PlainLayer | None:
    if not isinstance(entry, Mapping):
        findings.append(Finding(path, f"{entry!r}: expected fields (name: value)"))
        return None
    given = dict(entry)
    for name, field in _TIMES.items():
        if name in given:
            try:
                given[field] = parse(given.pop(name), "s")
            except UnitError as error:
                findings.append(Finding(f"{path}.{name}", str(error)))
                return None
    if "tensors" in given and "parameters" not in given and isinstance(given["tensors"], list):
        given["parameters"] = sum(one for one in given["tensors"] if isinstance(one, int))
    made = _dataclass(PlainLayer, given, f"{path}.", findings)
    for name in ("parameters", "forward_flops", "forward_bytes", "activation_bytes"):
        if made is not None and getattr(made, name) < 0:
            findings.append(Finding(f"{path}.{name}", f"{getattr(made, name)}: expected 0 or more"))
    return made if isinstance(made, PlainLayer) else None
