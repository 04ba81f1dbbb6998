"""One scenario at every point of a grid of fields, in several processes, the same bytes with any number."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from simulator.errors import Finding, ScenarioError, SpecError, TrainsimError


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid and what came of it; `error`: why there is no result."""

    settings: Mapping[str, str]
    step_time_s: float | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: float | None = None
    exposed_s: float | None = None
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "settings"}
        return {"settings": dict(self.settings), **plain}


def read_vary(texts: Sequence[str]) -> dict[str, list[str]]:
    """Fields and their values of "a.b=1,2,3" texts. Raises ScenarioError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not path.strip() or not values.strip():
            raise ScenarioError(Finding("--vary", f"'{text}': expected a.b=1,2,3"))
        found[path.strip()] = [value.strip() for value in values.split(",")]
    return found


def sweep(
    scenario: str,
    fixed: Mapping[str, str],
    vary: Mapping[str, Sequence[str]],
    *,
    processes: int = 1,
    allow_oom: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[Point]:
    """Every point of the grid, in order. Raises ScenarioError if the scenario itself is wrong."""
    from simulator.study.simulate import load

    load(scenario, dict(fixed))
    grid = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    tasks = [(scenario, dict(fixed), settings, allow_oom) for settings in grid]
    points: list[Point] = []
    for point in _map(tasks, processes):
        points.append(point)
        if progress is not None:
            progress(len(points))
    return points


def to_csv(points: Sequence[Point]) -> str:
    """A line a point under a line of names; what is not known is empty. Units are in the names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [name for name in Point.__slots__ if name != "settings"]
    writer.writerow([*points[0].settings, *names])
    for point in points:
        writer.writerow([*point.settings.values(), *(getattr(point, name) for name in names)])
    return text.getvalue()


def _map(
    tasks: Sequence[tuple[str, dict[str, str], dict[str, str], bool]], processes: int
) -> Iterator[Point]:
    if processes <= 1 or len(tasks) == 1:
        yield from map(_point, tasks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(_point, tasks)


def _point(task: tuple[str, dict[str, str], dict[str, str], bool]) -> Point:
    from simulator.study.simulate import simulate

    scenario, fixed, settings, allow_oom = task
    try:
        changes: dict[str, Any] = {**fixed, **settings}
        result = simulate(scenario, allow_oom=allow_oom, **changes)
    except TrainsimError as error:
        return Point(settings, error=_reason(error))
    exposed = sum(item.seconds for item in result.waterfall if item.name.startswith("exposed"))
    peak = None if result.memory is None else result.memory.peak_bytes
    return Point(settings, result.step_time_s, result.mfu, result.tokens_per_s, peak, exposed)


def _reason(error: TrainsimError) -> str:
    """The first finding; its place in the scenario's file, the same for all points, is left out."""
    if isinstance(error, SpecError):
        first, *more = error.findings
        return str(Finding(first.path, first.message)) + (f" (and {len(more)} more)" if more else "")
    return str(error).partition("\n")[0]
