"""Conditions that a user asks to fail on: "mfu<0.38"."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.errors import SpecError, nearest

_SIGNS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NAMES: Final = ("mfu", "step_s", "step_predicted_s", "to_explain_s", "optimizer_s")


def read_condition(text: str) -> tuple[str, str, float]:
    """(name, sign, value). Raises SpecError."""
    found = re.fullmatch(r"\s*([a-z_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*", text)
    if not found:
        raise SpecError.of("--fail-if", f"'{text}': expected a figure, a sign and a number, as in mfu<0.38")
    if found[1] not in _NAMES:
        raise SpecError.of("--fail-if", f"'{found[1]}': no such figure{nearest(found[1], _NAMES)}")
    try:
        return found[1], found[2], float(found[3])
    except ValueError as error:
        raise SpecError.of("--fail-if", f"'{found[3]}': expected a number") from error


def holds(condition: tuple[str, str, float], figures: Mapping[str, Any]) -> bool:
    """Whether a condition holds for the figures."""
    name, sign, value = condition
    if figures[name] is None:
        raise SpecError.of("--fail-if", f"{name}: not known of these traces without model, GPU and tokens")
    return bool(_SIGNS[sign](figures[name], value))
