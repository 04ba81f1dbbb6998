"""Rows, sets of rows, and what a set adds up to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeAlias

import numpy as np

from simulator.errors import SpecError, TrainsimError, nearest
from simulator.scenario import bundled


@dataclass(frozen=True, slots=True)
class About:
    """What a row ran on, for plots of bias. Parameters in 1e9; sequence length in tokens."""

    gpu: str = ""
    gpus: int = 0
    parameters_b: float = 0.0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `error`: ours over the published one, less 1 (of shares, `points`: the difference).

    `ok`: within the row's tolerance. `metric`: what the figure is ("step time", "memory", ...);
    `note`: what was assumed; `skipped`: why there is no figure of ours, "" where there is one.
    """

    name: str
    published: float
    ours: float
    unit: str = ""
    metric: str = ""
    tolerance: float | None = None
    note: str = ""
    skipped: str = ""
    points: bool = False
    about: About = About()

    @property
    def error(self) -> float:
        if self.points:
            return self.ours - self.published
        return self.ours / self.published - 1 if self.published else float("nan")

    @property
    def ok(self) -> bool:
        return self.tolerance is None or abs(self.error) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        plain: dict[str, Any] = {
            name: getattr(self, name) for name in ("name", "published", "unit", "metric", "note", "skipped")
        }
        about = {name: getattr(self.about, name) for name in self.about.__slots__}
        return plain | about | {"ours": _finite(self.ours), "error": _finite(self.error), "ok": self.ok}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Summary:
    """A set's errors: mean signed, mean and 90th percentile of absolute ones, the worst.

    `count`: rows with a figure; `skipped`: rows without one. `points`: errors are differences of shares.
    """

    name: str
    metric: str
    count: int
    bias: float
    mean: float
    p90: float
    worst: float
    worst_row: str
    skipped: int = 0
    points: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A row to be worked out: `row` without our figure, and the function that finds it.

    `cost`: about how long, in any unit, so that long ones start first.
    """

    row: Row
    work: Callable[[], float] | None = None
    cost: float = 0.0

    def __call__(self) -> Row:
        if self.work is None:
            return self.row
        try:
            return replace(self.row, ours=self.work())
        except TrainsimError as error:
            return replace(self.row, skipped=str(error).partition("\n")[0])


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
    """All sets by name: every module of `sets` registers its own."""
    import simulator.study.validation.sets as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_SETS.items()))


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


def run_tasks(
    tasks: Sequence[Task], processes: int = 1, progress: Callable[[int], None] | None = None
) -> list[Row]:
    """All rows in the order of the tasks, however many processes work on them; the longest start first."""
    order = sorted(range(len(tasks)), key=lambda i: -tasks[i].cost)
    rows: dict[int, Row] = {}

    def gather(found: Iterable[Row]) -> None:
        for number, row in enumerate(found):
            rows[order[number]] = row
            if progress is not None:
                progress(number + 1)

    if processes <= 1 or len(tasks) <= processes:
        gather(tasks[i]() for i in order)
    else:
        with ProcessPoolExecutor(processes) as pool:
            gather(pool.map(_call, [tasks[i] for i in order]))
    return [rows[i] for i in range(len(tasks))]


def _call(task: Task) -> Row:
    return task()


def summary(name: str, rows: Iterable[Row]) -> list[Summary]:
    """One Summary for each metric that has rows, worked out or skipped."""
    by_metric: dict[str, list[Row]] = {}
    for row in rows:
        by_metric.setdefault(row.metric, []).append(row)
    return [_summary(name, metric, members) for metric, members in by_metric.items()]


def _summary(name: str, metric: str, rows: Sequence[Row]) -> Summary:
    members = [row for row in rows if np.isfinite(row.error)]
    skipped, points = len(rows) - len(members), rows[0].points
    if not members:
        nan = float("nan")
        return Summary(name, metric, 0, nan, nan, nan, nan, "", skipped, points)
    errors = np.array([row.error for row in members])
    worst = int(np.abs(errors).argmax())
    return Summary(
        name,
        metric,
        len(members),
        float(errors.mean()),
        float(np.abs(errors).mean()),
        float(np.percentile(np.abs(errors), 90)),
        float(errors[worst]),
        members[worst].name,
        skipped,
        points,
    )


def table(kind: str, name: str) -> list[dict[str, str]]:
    """The rows of a bundled CSV file (validation/KIND/NAME.csv)."""
    path: Path = bundled("validation") / kind / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
