"""Rows, sets of rows, and what a set adds up to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeAlias

import numpy as np

from simulator.errors import SpecError, TrainsimError, nearest
from simulator.scenario import bundled


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `error`: ours over the published one, less 1; `ok`: within the row's tolerance.

    `metric`: what the figure is ("step time", "memory", ...); `note`: what was assumed, or why it failed.
    """

    name: str
    published: float
    ours: float
    unit: str = ""
    metric: str = ""
    tolerance: float | None = None
    note: str = ""

    @property
    def error(self) -> float:
        return self.ours / self.published - 1 if self.published else float("nan")

    @property
    def ok(self) -> bool:
        return self.tolerance is None or abs(self.error) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain: dict[str, Any] = {
            name: getattr(self, name) for name in ("name", "published", "ours", "unit", "metric", "note")
        }
        error = self.error
        return plain | {"error": error if np.isfinite(error) else None, "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Summary:
    """A set's errors: mean signed, mean and 90th percentile of absolute ones, the worst."""

    name: str
    metric: str
    count: int
    bias: float
    mean: float
    p90: float
    worst: float
    worst_row: str


Task: TypeAlias = Callable[[], Row]
ValidationSet: TypeAlias = Callable[[], Iterable[Task]]
_SETS: Final[dict[str, ValidationSet]] = {}


def validation_set(name: str) -> Callable[[ValidationSet], ValidationSet]:
    """Register a function that yields a set's rows as tasks, each of which works out one row."""

    def register(function: ValidationSet) -> ValidationSet:
        _SETS[name] = function
        return function

    return register


@cache
def validation_sets() -> Mapping[str, ValidationSet]:
    """All sets by name."""
    import simulator.study.validation as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _SETS


def find_set(name: str) -> ValidationSet:
    """The set `name`; SpecError with the nearest name."""
    known = validation_sets()
    if name not in known:
        raise SpecError.of("set", f"'{name}': no such set{nearest(name, known)}")
    return known[name]


def run_set(name: str) -> Iterator[Row]:
    """Every row of a set. A row that cannot be worked out stands with NaN and why."""
    for task in find_set(name)():
        yield task()


def guarded(
    name: str, published: float, unit: str, metric: str, work: Callable[[], float], note: str = ""
) -> Task:
    """A task that turns an error into a row that says so."""

    def task() -> Row:
        try:
            return Row(name, published, work(), unit, metric, note=note)
        except TrainsimError as error:
            return Row(name, published, float("nan"), unit, metric, note=str(error).partition("\n")[0])

    return task


def summary(name: str, rows: Iterable[Row]) -> list[Summary]:
    """One Summary for each metric; rows that failed are left out."""
    by_metric: dict[str, list[Row]] = {}
    for row in rows:
        if np.isfinite(row.error):
            by_metric.setdefault(row.metric, []).append(row)
    found = []
    for metric, members in by_metric.items():
        errors = np.array([row.error for row in members])
        worst = int(np.abs(errors).argmax())
        found.append(
            Summary(
                name,
                metric,
                len(members),
                float(errors.mean()),
                float(np.abs(errors).mean()),
                float(np.percentile(np.abs(errors), 90)),
                float(errors[worst]),
                members[worst].name,
            )
        )
    return found


def table(kind: str, name: str) -> list[dict[str, str]]:
    """The rows of a bundled CSV file (validation/KIND/NAME.csv)."""
    path: Path = bundled("validation") / kind / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
