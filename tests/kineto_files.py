"""Small profiler traces for tests, and where the real ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REAL = Path(__file__).parent.parent.parent / "shared" / "traces"
ELSEWHERE = Path(__file__).parent.parent.parent.parent / "shared" / "traces"


def real(name: str) -> Path | None:
    """A real trace, None where they are not at hand."""
    return next((folder / name for folder in (REAL, ELSEWHERE) if (folder / name).exists()), None)


def kernel(name: str, ts: float, dur: float, stream: int, correlation: int, **about: Any) -> dict[str, Any]:
    category = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.split(maxsplit=1)[0], "kernel")
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"stream": stream, "device": 0, "correlation": correlation, **about},
    }  # fmt: skip


def call(
    name: str, ts: float, dur: float, correlation: int = -1, cat: str = "cuda_runtime"
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur,
        "args": {"correlation": correlation},
    }  # fmt: skip


def write(path: Path, events: list[dict[str, Any]], rank: int | None = 0, world: int = 1) -> Path:
    """A trace file of the events."""
    about = (
        {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    )
    path.write_text(
        json.dumps({"schemaVersion": 1, **about, "traceEvents": events}, indent=1), encoding="utf-8"
    )
    return path
