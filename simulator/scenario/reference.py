"""The reference of scenario fields, made from the code."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from simulator.faults import kinds
from simulator.scenario.fields import ScenarioFields
from simulator.scenario.validate import section_of


def reference() -> str:
    """docs/reference/scenario.md as text."""
    lines = ["# Scenario fields", "", "Made from the code; quantities carry units.", ""]
    lines += _section("", ScenarioFields)
    for name, field in ScenarioFields.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None and name != "recompute":
            lines += _section(name, inner)
    lines += ["## Kinds of faults", "", "| kind | size | what it does |", "| --- | --- | --- |"]
    for name, cls in sorted(kinds().items()):
        about = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| {name} | {', '.join(cls.__dataclass_fields__)} | {about} |")
    return "\n".join(lines) + "\n"


def _section(name: str, section: type[BaseModel]) -> list[str]:
    title = f"## {name}" if name else "## The file"
    lines = [
        title,
        "",
        (section.__doc__ or "").strip(),
        "",
        "| field | default | about |",
        "| --- | --- | --- |",
    ]
    for field, info in section.model_fields.items():
        needed = info.is_required()
        default: Any = "needed" if needed else info.default
        if isinstance(default, BaseModel):
            default = "see below"
        elif not needed:
            default = f"`{json.dumps(default)}`"
        lines.append(f"| `{field}` | {default} | {info.description or ''} |")
    return [*lines, ""]
