"""Validation: published figures against ours. A set is a function that yields rows, registered by name."""

from __future__ import annotations

from simulator.study.validation.base import (
    Row,
    Summary,
    find_set,
    run_set,
    summary,
    validation_set,
    validation_sets,
)

__all__ = ["Row", "Summary", "find_set", "run_set", "summary", "validation_set", "validation_sets"]
