"""Parameters of a family: a frozen dataclass whose fields say how their text is read.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Ring(Family):
        bandwidth: float = quantity("bytes_per_s", about="of each link, one direction")
        hops: int = whole(1, about="...")

`resolve` reads a mapping of raw values (from YAML) into it and reports everything wrong at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from simulator.errors import Finding, SpecError, nearest
from simulator.spec import Gpu, Topology
from simulator.units import UnitError, parse

if TYPE_CHECKING:
    from simulator.network.fabric import Fabric

Reader: TypeAlias = Callable[[Any], Any]


def _field(read: Reader, default: Any, about: str, **metadata: Any) -> Any:
    made = {"read": read, "about": about, **metadata}
    return field(metadata=made) if default is MISSING else field(default=default, metadata=made)


def quantity(dimension: str, default: Any = MISSING, *, about: str = "", zero: bool = False) -> Any:
    """A quantity with a unit, above 0 (or 0 where `zero`)."""

    def read(value: Any) -> float:
        result = parse(value, dimension)
        if result < 0 or (result == 0 and not zero):
            raise UnitError(f"'{value}': expected {'0 or more' if zero else 'more than 0'}")
        return result

    return _field(read, default, about, dimension=dimension)


def whole(default: Any = MISSING, *, least: int = 1, about: str = "") -> Any:
    """A whole number of `least` or more."""
    return _field(lambda value: _whole(value, least), default, about)


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UnitError(f"{value!r}: expected a whole number of {least} or more")
    return value


def ratio(default: Any = MISSING, *, least: float = 0.0, about: str = "") -> Any:
    """A plain number, finite, `least` or more; "1:7" and "7:1" both mean 7."""

    def read(value: Any) -> float:
        number = _from_colon(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UnitError(f"{value!r}: expected a number like 2 or '2:1'")
        if not math.isfinite(number) or number < least:
            raise UnitError(f"{value!r}: expected {least:g} or more")
        return float(number)

    return _field(read, default, about)


def _from_colon(text: str) -> float | str:
    left, colon, right = text.partition(":")
    try:
        first, second = float(left), float(right) if colon else 1.0
    except ValueError:
        return text
    return max(first, second) / min(first, second) if colon and min(first, second) > 0 else first


def choice(default: str, options: tuple[str, ...], *, about: str = "") -> Any:
    """One of `options`."""

    def read(value: Any) -> str:
        if value not in options:
            raise UnitError(f"{value!r}: expected one of {', '.join(options)}{nearest(str(value), options)}")
        return str(value)

    return _field(read, default, about, options=options)


def text(default: Any = MISSING, *, about: str = "") -> Any:
    """Any text."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise UnitError(f"{value!r}: expected text")
        return value

    return _field(read, default, about)


def flag(default: bool, *, about: str = "") -> Any:
    """true or false."""

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise UnitError(f"{value!r}: expected true or false")
        return value

    return _field(read, default, about)


def wholes(default: tuple[int, ...] = (), *, least: int = 0, about: str = "") -> Any:
    """A list of whole numbers."""

    def read(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            raise UnitError(f"{value!r}: expected a list of whole numbers")
        return tuple(_whole(item, least) for item in value)

    return _field(read, default, about)


def raw(default: Any = MISSING, *, about: str = "") -> Any:
    """A structure that the family reads itself."""
    return _field(lambda value: value, default, about)


class Family:
    """Base of the parameter dataclasses. `build` makes the fabric."""

    __slots__ = ()

    def build(self, topology: Topology, gpus: int, gpu: Gpu, seed: int) -> Fabric:
        raise NotImplementedError

    @classmethod
    def parameters(cls) -> dict[str, Field[Any]]:
        return {f.name: f for f in fields(cls) if "read" in f.metadata}  # type: ignore[arg-type]

    @classmethod
    def resolve(cls, raw_values: Mapping[str, Any]) -> Self:
        """Read raw values; raises SpecError with every finding, paths below the topology."""
        known = cls.parameters()
        findings = [
            Finding(str(key), f"unknown key{nearest(str(key), known)}")
            for key in raw_values
            if key not in known
        ]
        values: dict[str, Any] = {}
        for name, declared in known.items():
            if name in raw_values:
                try:
                    values[name] = declared.metadata["read"](raw_values[name])
                except UnitError as error:
                    findings.append(Finding(name, str(error)))
                except SpecError as error:
                    findings.extend(finding.under(name) for finding in error.findings)
            elif declared.default is MISSING and declared.default_factory is MISSING:
                findings.append(Finding(name, f"missing: {declared.metadata['about'] or 'required'}"))
        if findings:
            raise SpecError(findings)
        return cls(**values)


def checked(*conditions: tuple[bool, str, str]) -> None:
    """Raise SpecError with the path and message of every condition that does not hold."""
    findings = [Finding(path, message) for ok, path, message in conditions if not ok]
    if findings:
        raise SpecError(findings)
