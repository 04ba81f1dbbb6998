"""Conditions that a user asks to fail on: "mfu<0.38"."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from simulator.errors import SpecError, nearest

_SIGNS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
#: what a path may begin with
_NAMES: Final = ("mfu", "step_s", "step_predicted_s", "to_explain_s", "optimizer_s")
_GROUPS: Final = ("gpu_idle", "gaps", "collectives", "suspects", "spread")


def read_condition(text: str) -> tuple[str, str, float]:
    """(name, sign, value); a name is a figure or a path to one, as in gpu_idle.share. Raises SpecError."""
    found = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*", text)
    if not found:
        raise SpecError.of("--fail-if", f"'{text}': expected a figure, a sign and a number, as in mfu<0.38")
    first, dot, _ = found[1].partition(".")
    if first not in (_GROUPS if dot else _NAMES):
        raise SpecError.of(
            "--fail-if", f"'{found[1]}': no such figure{nearest(found[1], [*_NAMES, *_GROUPS])}"
        )
    try:
        return found[1], found[2], float(found[3])
    except ValueError as error:
        raise SpecError.of("--fail-if", f"'{found[3]}': expected a number") from error


def holds(condition: tuple[str, str, float], figures: Mapping[str, Any]) -> bool:
    """Whether a condition holds for the figures. Raises SpecError for a figure that there is not."""
    name, sign, value = condition
    found = figure(name, figures)
    if found is None:
        raise SpecError.of("--fail-if", f"{name}: not known of what was read")
    return bool(_SIGNS[sign](found, value))


def figure(path: str, figures: Mapping[str, Any]) -> float | None:
    """The figure at a path. Raises SpecError where there is none."""
    known = dict(_flat("", figures))
    if path not in known:
        raise SpecError.of("--fail-if", f"'{path}': no such figure{nearest(path, known)}")
    return known[path]


def _flat(before: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{before}{name}.", value)
        elif value is None or isinstance(value, int | float):
            yield f"{before}{name}", value
