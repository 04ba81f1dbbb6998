"""Operation tables of production jobs: one row an operation, in the columns of the OSDI'25 straggler study"""

from __future__ import annotations

import csv
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import SpecError

_INTEGERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
_SECONDS = ("start_ts", "duration")
COLUMNS = (*_INTEGERS, *_SECONDS, "optype")


@dataclass(frozen=True)
class OpTable:
    """Columns of equal length. `start_ts` and `duration` are in seconds; -1 where an index does not apply."""

    columns: dict[str, np.ndarray[Any, Any]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def step_seconds(self) -> dict[int, float]:
        """Each step as traced, in seconds: from its first start to its last end."""
        step, start = self.columns["step"], self.columns["start_ts"]
        end = start + self.columns["duration"]
        found: dict[int, float] = {}
        for one in np.unique(step):
            rows = step == one
            found[int(one)] = float(end[rows].max() - start[rows].min())
        return found


def read_op_table(path: Path) -> OpTable:
    """Read CSV, or Parquet with the extra `parquet`. Raises SpecError for what is not such a table."""
    try:
        raw = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError.of(str(path), f"cannot be read: {error}") from error
    missing = [name for name in COLUMNS if name not in raw]
    if missing:
        raise SpecError.of(str(path), f"columns missing: {', '.join(missing)}")
    if not raw["step"]:
        raise SpecError.of(str(path), "no rows: expected one row an operation")
    columns = {name: _numbers(path, name, raw[name]) for name in (*_INTEGERS, *_SECONDS)}
    columns["optype"] = np.array(raw["optype"], dtype=str)
    return OpTable(columns)


def _numbers(path: Path, name: str, values: list[Any]) -> np.ndarray[Any, Any]:
    """A column as numbers; the first value that is not one is named with its row."""
    for row, value in enumerate(values, 1):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        whole = name in _SECONDS or number.is_integer()
        if not np.isfinite(number) or not whole or (name == "duration" and number < 0):
            kind = "seconds, 0 or more" if name == "duration" else "a number" if whole else "a whole number"
            raise SpecError.of(f"{path}: row {row}: {name}", f"{value!r}: expected {kind}")
    return np.array(values, dtype=float).astype(np.float64 if name in _SECONDS else np.int64)


def _csv(path: Path) -> dict[str, list[Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return {name: [row[name] for row in rows] for name in reader.fieldnames or ()}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise SpecError.of(str(path), "Parquet needs the extra: pip install 'trainsim[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except ValueError as error:  # what pyarrow raises for damaged files
        raise SpecError.of(str(path), f"not a Parquet file: {error}") from error
    found: dict[str, list[Any]] = table.to_pydict()
    return found
