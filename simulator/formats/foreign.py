"""Training configurations of others: what every reader of one shares, and where the readers are kept.

An option is translated, listed as having no effect on time or memory, or listed as unknown; a value that
makes no sense is refused with file, line, option, value and what was expected. `Fields` sees to it: what a
reader never asked for, and does not name as having no effect, is unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeVar

from simulator.errors import FileFormatError, Finding, SpecError
from simulator.formats.topology_text import read_text

T = TypeVar("T")


@dataclass(slots=True)
class Foreign:
    """A scenario's fields, and what became of the options that are not in them.

    `unknown`: options that nobody here knows, or that no field of a scenario can say; `effectless`: say
    nothing about time or memory; `missing`: what the user must add; `assumed`: what was filled in.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    effectless: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def set(self, path: str, value: Any) -> None:
        """Set a dotted field; None leaves it as it is."""
        if value is None:
            return
        here = self.values
        *way, last = path.split(".")
        for part in way:
            here = here.setdefault(part, {})
        here[last] = value

    def get(self, path: str, default: Any = None) -> Any:
        """A dotted field's value."""
        here: Any = self.values
        for part in path.split("."):
            if not isinstance(here, Mapping) or part not in here:
                return default
            here = here[part]
        return here


class Fields:
    """The options of a file. Asking for one makes it known; findings are gathered until `check`.

    `values` may nest; names are dotted. `text`: all values are text, as on a command line. `later`: a value
    that stands for one which somebody else fills in (DeepSpeed's "auto"); it reads as None.
    """

    def __init__(
        self,
        file: Path,
        values: Mapping[str, Any],
        line_of: Callable[[str], int | None],
        *,
        prefix: str = "",
        text: bool = False,
        later: str | None = None,
    ):
        self._file, self._values, self._line_of = file, values, line_of
        self._prefix, self._text, self._later = prefix, text, later
        self._asked: set[str] = set()
        self.findings: list[Finding] = []
        self.left_open: list[str] = []
        self.inexpressible: list[str] = []

    def refuse(self, name: str, value: object, expected: str) -> None:
        """Note that a value makes no sense."""
        message = f"{value!r}: expected {expected}"
        self.findings.append(
            Finding(self._prefix + name, message, file=str(self._file), line=self._line_of(name))
        )

    def note(self, name: str, message: str) -> None:
        """Note what is wrong with an option in words of one's own."""
        self.findings = [one for one in self.findings if one.path != self._prefix + name]
        self.findings.append(
            Finding(self._prefix + name, message, file=str(self._file), line=self._line_of(name))
        )

    def cannot(self, name: str, why: str) -> None:
        """Note that a scenario has no way to say what the option says."""
        self.inexpressible.append(f"{self._prefix}{name}: {why}")

    def check(self) -> None:
        """Raise SpecError with everything that was refused."""
        if self.findings:
            raise SpecError(self.findings)

    # -------------------------------------------------------------------------------------- reading

    def given(self, name: str) -> bool:
        """Whether the option is there."""
        return self.raw(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it stands; None if there is none or somebody else fills it in."""
        self._asked.add(name)
        here: Any = self._values
        parts = name.split(".")
        for depth, part in enumerate(parts):
            if not isinstance(here, Mapping):
                self._refuse_once(".".join(parts[:depth]), here, "a section")
                return None
            if part not in here:
                return None
            here = here[part]
        if self._later is not None and here == self._later:
            if name not in self.left_open:
                self.left_open.append(name)
            return None
        return here

    def _refuse_once(self, name: str, value: object, expected: str) -> None:
        if all(finding.path != self._prefix + name for finding in self.findings):
            self.refuse(name, value, expected)

    def _read(self, name: str, read: Callable[[Any], T], expected: str) -> T | None:
        value = self.raw(name)
        if value is None:
            return None
        try:
            return read(value)
        except (ValueError, TypeError, OverflowError, KeyError):
            self._refuse_once(name, value, expected)
            return None

    def whole(self, name: str, least: int = 1) -> int | None:
        """A whole number."""

        def read(value: Any) -> int:
            if self._text:
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
                raise ValueError
            if value < least:
                raise ValueError
            return int(value)

        return self._read(name, read, f"a whole number of {least} or more")

    def number(self, name: str, least: float = 0.0, most: float = math.inf) -> float | None:
        """A finite number."""

        def read(value: Any) -> float:
            if self._text:
                value = float(value)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError
            if not math.isfinite(value) or not least <= value <= most:
                raise ValueError
            return float(value)

        upper = f" to {most:g}" if math.isfinite(most) else " or more"
        return self._read(name, read, f"a number of {least:g}{upper}")

    def flag(self, name: str) -> bool | None:
        """True or false; on a command line, an option without a value."""

        def read(value: Any) -> bool:
            if value is True or value is False or (self._text and value == ""):
                return value is not False
            raise ValueError

        return self._read(name, read, "no value" if self._text else "true or false")

    def choice(self, name: str, known: Mapping[Any, T]) -> T | None:
        """What a name stands for."""

        def read(value: Any) -> T:
            if isinstance(value, bool) and not any(key is value for key in known):
                raise ValueError  # True would find 1
            return known[value]

        return self._read(name, read, f"one of {', '.join(map(str, known))}")

    def word(self, name: str) -> str | None:
        """Some text."""

        def read(value: Any) -> str:
            if not isinstance(value, str) or not value:
                raise ValueError
            return value

        return self._read(name, read, "text")

    def wholes(self, name: str, least: int = 0) -> list[int] | None:
        """A list of whole numbers."""

        def read(value: Any) -> list[int]:
            if not isinstance(value, list) or any(
                isinstance(one, bool) or not isinstance(one, int) or one < least for one in value
            ):
                raise ValueError
            return value

        return self._read(name, read, f"a list of whole numbers of {least} or more")

    # ------------------------------------------------------------------------------------- the rest

    @property
    def known(self) -> frozenset[str]:
        """Every option that was asked for."""
        return frozenset(self._asked)

    def rest(self, effectless: Iterable[str]) -> tuple[list[str], list[str]]:
        """(unknown, without effect): options nobody asked for. "section.*" names a whole section."""
        names = frozenset(effectless)
        sections = tuple(name[:-1] for name in names if name.endswith(".*"))
        unknown: list[str] = []
        none: list[str] = []
        for name in _leaves(self._values, ""):
            if name in self._asked:
                continue
            silent = name in names or name.startswith(sections) if sections else name in names
            (none if silent else unknown).append(self._prefix + name)
        return [*self.inexpressible, *unknown], none


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


# ------------------------------------------------------------------------------------------ registry


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of configuration: whether a file is one, and how it is read."""

    name: str
    accepts: Callable[[Path, str], bool]
    read: Callable[[Path], Foreign]
    order: int  # the first that accepts a file reads it


_FORMATS: Final[dict[str, Format]] = {}


def foreign_format(
    name: str, accepts: Callable[[Path, str], bool], order: int = 0
) -> Callable[[Callable[[Path], Foreign]], Callable[[Path], Foreign]]:
    """Register a reader of configurations."""

    def register(read: Callable[[Path], Foreign]) -> Callable[[Path], Foreign]:
        _FORMATS[name] = Format(name, accepts, read, order)
        return read

    return register


def foreign_formats() -> Mapping[str, Format]:
    """All readers by name: every module of this package registers its own."""
    import simulator.formats as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_FORMATS.items(), key=lambda entry: entry[1].order))


def read_foreign(path: Path) -> Foreign:
    """The scenario that a configuration describes. Raises FileFormatError or SpecError."""
    text = read_text(path)
    for one in foreign_formats().values():
        if one.accepts(path, text):
            return one.read(path)
    raise FileFormatError(f"{path}: expected one of {', '.join(foreign_formats())}")


# ---------------------------------------------------------------------------------------------- JSON


def read_json(path: Path) -> tuple[Mapping[str, Any], Callable[[str], int | None]]:
    """(the object, the line of a dotted name). Refuses NaN and names that stand twice."""
    text = read_text(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise FileFormatError(f"{path}:{_line(text, name)}: {name}: stands twice")
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise FileFormatError(f"{path}: not JSON: nested too deeply") from error
    if not isinstance(data, Mapping):
        raise FileFormatError(f"{path}: expected a JSON object")
    return data, lambda name: _line(text, name)


def _line(text: str, dotted: str) -> int | None:
    """The line of a name; of nested ones, the first after its section's name."""
    place = 0
    for part in dotted.split("."):
        found = re.compile(rf'"{re.escape(part)}"\s*:').search(text, place)
        if found is None:
            return None
        place = found.start()
    return text.count("\n", 0, place) + 1
