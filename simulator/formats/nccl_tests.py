"""Output of nccl-tests: the table of text, or the JSON of `-J`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import FileFormatError


@dataclass(frozen=True, slots=True)
class Measured:
    """One size, out of place."""

    size_bytes: float
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class NcclTests:
    """`ranks`: as the header lists them, 0 if it does not."""

    ranks: int
    rows: tuple[Measured, ...]


def read_nccl_tests(path: Path) -> NcclTests:
    """Read a result file. Raises FileFormatError for what is none, and for rows with wrong results."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8 text") from error
    found = _json(path, text) if text.lstrip().startswith("{") else _text(path, text)
    if not found.rows:
        raise FileFormatError(f"{path}: no rows of results: expected the output of nccl-tests")
    return found


def _text(path: Path, text: str) -> NcclTests:
    rows, ranks = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if re.match(r"#\s+Rank\s+\d+", stripped):
            ranks += 1
        if not stripped or stripped.startswith("#") or not stripped[0].isdigit():
            continue
        parts = stripped.split()
        numbers = [part for part in parts[2:] if _is_number(part) or part == "N/A"]
        if len(parts) < 7 or not _is_number(parts[1]):
            continue
        row = _row(path, number, parts, numbers)
        if row is not None:
            rows.append(row)
    return NcclTests(ranks, tuple(rows))


def _row(path: Path, number: int, parts: list[str], numbers: list[str]) -> Measured | None:
    """time, algbw, busbw and the count of wrong values follow size, count, type, redop and, mostly, root."""
    if len(parts) > 5 and re.fullmatch(r"-?\d+", parts[4]) and len(parts) >= 12:
        figures = parts[5:9]
    else:
        figures = numbers[-8:-4] if len(numbers) >= 8 else numbers[-4:]
    if len(figures) < 3 or not all(_is_number(figure) for figure in figures[:3]):
        raise FileFormatError(f"{path}:{number}: expected time, algbw and busbw after the type")
    wrong = figures[3] if len(figures) > 3 else "0"
    if _is_number(wrong) and float(wrong) > 0:
        raise FileFormatError(
            f"{path}:{number}: {wrong} wrong values: the run failed, its times mean nothing"
        )
    time, algbw, busbw = (float(figure) for figure in figures[:3])
    if time <= 0:
        raise FileFormatError(f"{path}:{number}: a time of {time} us: expected more than 0")
    return Measured(float(parts[0]), time * 1e-6, algbw * 1e9, busbw * 1e9)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _json(path: Path, text: str) -> NcclTests:
    try:
        data: Any = json.loads(text)
        rows = []
        for entry in data["results"]:
            out = entry["out_of_place"]
            if out.get("nwrong"):
                raise FileFormatError(f"{path}: size {entry['size']}: {out['nwrong']} wrong values")
            rows.append(
                Measured(
                    float(entry["size"]), float(out["time"]) * 1e-6, float(out["alg_bw"]) * 1e9,
                    float(out["bus_bw"]) * 1e9,
                )
            )  # fmt: skip
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: not a result of nccl-tests -J: {error!r}") from error
    return NcclTests(len(data.get("ranks", ())), tuple(rows))
