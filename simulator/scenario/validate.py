"""Running pydantic over plain values, and saying what it found in plain words."""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simulator.errors import Finding, nearest

_Fields = TypeVar("_Fields", bound=BaseModel)


def validate(fields: type[_Fields], values: Any) -> tuple[_Fields | None, list[Finding]]:
    """(the section, nothing) or (None, all findings with paths below the section)."""
    try:
        return fields.model_validate(values), []
    except ValidationError as error:
        findings: dict[str, Finding] = {}
        for one in error.errors():
            finding = _finding(fields, one)
            findings.setdefault(finding.path, finding)
        return None, list(findings.values())


def _finding(fields: type[BaseModel], error: Any) -> Finding:
    path, owner = _path(fields, error["loc"])
    value = error.get("input")
    kind = error["type"]
    if kind == "extra_forbidden":
        known = owner.model_fields if owner is not None else {}
        return Finding(path, f"unknown key{nearest(str(error['loc'][-1]), known)}")
    if kind == "missing":
        return Finding(path, "missing")
    if kind == "value_error":
        return Finding(path, str(error["ctx"]["error"]))
    text = error["msg"][:1].lower() + error["msg"][1:]
    text = text.replace("input should be ", "expected ").replace("a valid ", "a ")
    text = text.replace("expected a integer", "expected a whole number")
    text = text.replace("expected a dictionary", "expected fields (name: value)")
    text = text.replace("expected a boolean", "expected true or false")
    text = text.replace("expected a string", "expected text")
    shown = repr(value)
    return Finding(path, f"{shown if len(shown) < 60 else shown[:57] + '...'}: {text}")


def _path(fields: type[BaseModel], loc: tuple[Any, ...]) -> tuple[str, type[BaseModel] | None]:
    """The dotted path of a location, union branches left out, and the section that it is in."""
    path = ""
    owner: type[BaseModel] | None = fields
    here: type[BaseModel] | None = fields
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        if _is_branch(part, path, here):
            continue
        path = f"{path}.{part}" if path else part
        owner = here
        field = here.model_fields.get(part) if here is not None else None
        here = section_of(field.annotation) if field is not None else None
    return path, owner


def _is_branch(part: str, path: str, here: type[BaseModel] | None) -> bool:
    """pydantic names the branch of a union in a location ("EveryFields", "float", "function-before[...]")."""
    if here is not None and part in here.model_fields:
        return False
    return (
        part in ("str", "int", "float", "list[constrained-int]", "literal", "none")
        or part.endswith("Fields")
        or "[" in part
    ) and bool(path)


def section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        for one in get_args(annotation):
            found = section_of(one)
            if found is not None:
                return found
    return None
