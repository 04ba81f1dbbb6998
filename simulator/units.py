"""Text with units to plain floats in SI, and back for people.

Bits and bytes are apart (`b`, `B`), decimal and binary prefixes too (`MB`, `MiB`). A bare number where
a unit is due is an error, for nobody can tell 25 ms from 25 s afterwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIXES: Final = {**_DECIMAL, **_BINARY}


def _scaled(unit: str, factor: float, prefixes: Mapping[str, float] = _PREFIXES) -> dict[str, float]:
    return {prefix + unit: scale * factor for prefix, scale in prefixes.items()}


_SIZE: Final = {**_scaled("B", 1.0), **_scaled("b", 0.125), "bytes": 1.0, "byte": 1.0}
_TIME: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0,
    "h": 3600.0, "d": 86400.0, "days": 86400.0, "day": 86400.0, "hours": 3600.0,
}  # fmt: skip
_BANDWIDTH: Final = {
    **{f"{unit}/s": factor for unit, factor in _SIZE.items()},
    **{f"{prefix}bps": scale * 0.125 for prefix, scale in _DECIMAL.items()},
    **{f"{prefix}bit/s": scale * 0.125 for prefix, scale in _DECIMAL.items()},
}
_FLOPS: Final = {**_scaled("FLOP/s", 1.0, _DECIMAL), **_scaled("FLOPS", 1.0, _DECIMAL)}

#: dimension -> unit -> factor to the SI unit that the dimension's floats are in
UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "bytes": _SIZE,
    "bytes_per_s": _BANDWIDTH,
    "s": _TIME,
    "flops_per_s": _FLOPS,
    "flops": {**_scaled("FLOP", 1.0, _DECIMAL), **_scaled("FLOPs", 1.0, _DECIMAL)},
    "usd_per_hour": {"USD/h": 1.0, "$/h": 1.0, "USD/hour": 1.0},
    "watt": {"W": 1.0, "kW": 1e3, "MW": 1e6},
    "hertz": _scaled("Hz", 1.0, _DECIMAL),
    "per_s": {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400},
}

#: one example a dimension, for messages
EXAMPLES: Final[Mapping[str, str]] = {
    "bytes": "25 MiB", "bytes_per_s": "400 Gb/s", "s": "35 ms", "flops_per_s": "989 TFLOP/s",
    "flops": "6.35e24 FLOP", "usd_per_hour": "2.5 USD/h", "watt": "700 W", "hertz": "1.98 GHz",
    "per_s": "2 /h",
}  # fmt: skip

_QUANTITY: Final = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


class UnitError(ValueError):
    """Text that is no quantity of the wanted dimension; the message says what was expected."""


def parse(text: object, dimension: str) -> float:
    """The value of `text` ("400 Gb/s") in the SI unit of `dimension` ("bytes_per_s").

    >>> parse("400 Gb/s", "bytes_per_s")
    50000000000.0
    >>> parse("25 MiB", "bytes")
    26214400.0

    Raises UnitError for a missing or unknown unit, NaN, infinity and what is no text.
    """
    units = UNITS[dimension]
    expected = f"expected a quantity like '{EXAMPLES[dimension]}'"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError(f"{text!r} is not a quantity; {expected}")
    if isinstance(text, int | float):
        if text == 0:
            return 0.0
        raise UnitError(f"{text!r} has no unit; {expected}")
    match = _QUANTITY.match(text)
    if match is None:
        raise UnitError(f"'{text}' is not a quantity; {expected}")
    number, unit = float(match[1].replace("_", "")), match[2].replace(" ", "")
    if not unit and number == 0:
        return 0.0
    if not unit:
        raise UnitError(f"'{text}' has no unit; {expected}")
    if unit not in units:
        raise UnitError(f"'{text}' has the unknown unit '{unit}'; {expected}")
    value = number * units[unit]
    if not math.isfinite(value):
        raise UnitError(f"'{text}' is not finite; {expected}")
    return value


def _shown(value: float, steps: tuple[tuple[float, str], ...], digits: int = 3) -> str:
    if not math.isfinite(value):
        return str(value)
    for scale, unit in steps:
        if abs(value) >= scale * 0.9995:
            return (
                f"{value / scale:.{digits}g} {unit}"
                if abs(value) < scale * 1000
                else f"{value / scale:,.0f} {unit}"
            )
    scale, unit = steps[-1]
    return f"{value / scale:.{digits}g} {unit}"


def show_time(seconds: float) -> str:
    """Seconds for people: 12.3 us, 4.56 ms, 1.23 s, 3.2 h."""
    return _shown(
        seconds, ((86400.0, "d"), (3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    )


def show_bytes(size: float) -> str:
    """Bytes for people, in binary prefixes."""
    return _shown(size, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))


def show_bandwidth(bytes_per_s: float) -> str:
    """Bytes a second for people, in decimal prefixes as data sheets write them."""
    return _shown(bytes_per_s, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")))


def show_flops(flops_per_s: float) -> str:
    """FLOP/s for people."""
    return _shown(
        flops_per_s,
        ((1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s")),
    )
