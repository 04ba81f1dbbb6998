"""Validation: published figures against ours. A set is a function that yields rows, registered by name."""

from __future__ import annotations

from simulator.study.validation.base import (
    About,
    Row,
    Summary,
    Task,
    find_set,
    run_set,
    run_tasks,
    summary,
    validation_set,
    validation_sets,
)

__all__ = [
    "About",
    "Row",
    "Summary",
    "Task",
    "find_set",
    "run_set",
    "run_tasks",
    "summary",
    "validation_set",
    "validation_sets",
]
