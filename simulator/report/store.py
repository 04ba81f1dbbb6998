"""A timeline saved as one file, and read back: columns in NumPy's npz, the rest as JSON inside it.

The file holds no pickles, so that reading one runs nobody's code. The same timeline gives the same
bytes.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.intervals import Floats
from simulator.errors import FileFormatError
from simulator.timeline import Collectives, DeviceSpans, HostSpans, Lane, LoaderSpans, Timeline

#: grows when a reader of an older version would misread the file
VERSION: Final = 1

_TABLES: Final[Mapping[str, type]] = {
    "device": DeviceSpans,
    "host": HostSpans,
    "collectives": Collectives,
    "loader": LoaderSpans,
}


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds.

    `peak_flops_per_s`: each lane's GPU, shape (lanes,), which the waterfall is counted against;
    `warmup`: steps that do not count; `result`: `Result.to_dict()` of the run.
    """

    timeline: Timeline
    peak_flops_per_s: Floats
    warmup: int
    result: Mapping[str, Any]


def save(saved: Saved, stream: IO[bytes]) -> None:
    """Write to a binary stream."""
    timeline = saved.timeline
    arrays: dict[str, NDArray[Any]] = {
        f"{table}.{column.name}": getattr(getattr(timeline, table), column.name)
        for table, kind in _TABLES.items()
        for column in fields(kind)
    }
    arrays |= {"steps": timeline.steps, "peak_flops_per_s": saved.peak_flops_per_s}
    for number, (times, utilisation) in enumerate(timeline.links.values()):
        arrays |= {f"links.{number}.time_s": times, f"links.{number}.utilisation": utilisation}
    head = {
        "format": "trainsim timeline",
        "version": VERSION,
        "ranks": [_lane(lane) for lane in timeline.ranks],
        "streams": timeline.streams,
        "names": timeline.names,
        "links": list(timeline.links),
        "meta": timeline.meta,
        "warmup": saved.warmup,
        "result": saved.result,
    }
    text = json.dumps(head, allow_nan=False, default=_number)
    arrays["head"] = np.frombuffer(text.encode(), dtype=np.uint8)
    save_arrays: Any = np.savez_compressed  # its stub takes the arrays for other parameters
    save_arrays(stream, **arrays)


def load(path: Path) -> Saved:
    """Read a file. Raises FileFormatError for what is no saved timeline or is damaged."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile) or "head" not in arrays:
                raise _foreign(path)
            return _read(path, arrays)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise FileFormatError(f"{path}: a saved timeline that lacks {error}") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise _foreign(path) from error


def is_saved(path: Path) -> bool:
    """Whether a file looks like a saved timeline, by its first bytes and its name."""
    if path.suffix != ".npz" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _foreign(path: Path) -> FileFormatError:
    return FileFormatError(
        f"{path}: no timeline, or a damaged one: expected a file that `trainsim simulate --save` wrote"
    )


def _read(path: Path, arrays: Any) -> Saved:
    head = json.loads(arrays["head"].tobytes())
    if head.get("format") != "trainsim timeline":
        raise _foreign(path)
    if head["version"] != VERSION:
        raise FileFormatError(f"{path}: version {head['version']} of a timeline: expected {VERSION}")
    tables = {
        table: kind(**{column.name: arrays[f"{table}.{column.name}"] for column in fields(kind)})
        for table, kind in _TABLES.items()
    }
    links = {
        name: (arrays[f"links.{number}.time_s"], arrays[f"links.{number}.utilisation"])
        for number, name in enumerate(head["links"])
    }
    timeline = Timeline(
        ranks=tuple(Lane(**lane) for lane in head["ranks"]),
        streams=tuple(head["streams"]),
        names=tuple(head["names"]),
        steps=arrays["steps"],
        links=links,
        meta=head["meta"],
        **tables,
    )
    _check(path, timeline)
    return Saved(timeline, arrays["peak_flops_per_s"], head["warmup"], head["result"])


def _check(path: Path, timeline: Timeline) -> None:
    """Columns of a table are of one length, and numbers that point at rows have a row."""
    for table, kind in _TABLES.items():
        lengths = {getattr(getattr(timeline, table), column.name).shape for column in fields(kind)}
        if len(lengths) != 1:
            raise FileFormatError(f"{path}: columns of {table} differ in length")
    bounds = (
        ("device.rank", timeline.device.rank, 0, len(timeline.ranks)),
        ("device.stream", timeline.device.stream, 0, len(timeline.streams)),
        ("device.name", timeline.device.name, 0, len(timeline.names)),
        ("device.collective", timeline.device.collective, -1, len(timeline.collectives)),
        ("host.rank", timeline.host.rank, 0, len(timeline.ranks)),
        ("host.name", timeline.host.name, 0, len(timeline.names)),
        ("loader.rank", timeline.loader.rank, 0, len(timeline.ranks)),
    )
    for name, column, low, high in bounds:
        if len(column) and not (low <= column.min() and column.max() < high):
            raise FileFormatError(f"{path}: {name} points outside of its table")
    if timeline.steps.shape[0] != len(timeline.ranks) or timeline.steps.ndim != 3:
        raise FileFormatError(
            f"{path}: steps of shape {timeline.steps.shape} for {len(timeline.ranks)} ranks"
        )


def _lane(lane: Lane) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(lane, name) for name in lane.__slots__}
    plain["coordinates"] = dict(lane.coordinates)
    return plain


def _number(value: Any) -> Any:
    """NumPy's scalars and mappings as JSON; anything else as its text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
