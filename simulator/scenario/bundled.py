"""Where the bundled scenarios and topologies are: in the wheel, or at the top of a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import simulator


@cache
def bundled(kind: str) -> Path:
    """The folder of bundled "scenarios", "topologies" or "validation"."""
    package = Path(simulator.__file__).parent
    inside = package / "bundled" / kind
    return inside if inside.is_dir() else package.parent / kind


def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in bundled(kind).glob("*.yaml")))


def scenarios() -> tuple[str, ...]:
    """Names of the bundled scenarios."""
    return _names("scenarios")


def topologies() -> tuple[str, ...]:
    """Names of the bundled topologies."""
    return _names("topologies")
