"""The exceptions of the simulator.

TrainsimError
├── SpecError        one or more findings in what the user gave (exit code 2)
│   └── ScenarioError  the same, with file and line of each finding
├── FileFormatError  somebody else's file that cannot be read (exit code 2)
└── EngineError      the simulation itself cannot go on: a deadlock (exit code 2)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with an input.

    `path` is the dotted way to the field ("parallelism.tp", "faults[2].node"), empty for the whole
    file. `file`, `line` and `column` (from 1) are known where the input was a file.
    """

    path: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = ": ".join(part for part in (where, self.path, self.message) if part)
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)  # one line

    def under(self, prefix: str) -> Finding:
        """The same finding, its path below `prefix`."""
        if not self.path:
            return replace(self, path=prefix)
        dot = "" if self.path.startswith("[") else "."
        return replace(self, path=f"{prefix}{dot}{self.path}")


class TrainsimError(Exception):
    """Base of all errors that the simulator raises on purpose."""


class SpecError(TrainsimError):
    """What the user asked for cannot be; carries every finding, not only the first."""

    def __init__(self, findings: Finding | Iterable[Finding]):
        self.findings = (findings,) if isinstance(findings, Finding) else tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))

    @classmethod
    def of(cls, path: str, message: str) -> SpecError:
        return cls(Finding(path, message))


class ScenarioError(SpecError):
    """A scenario file, dict or override that is refused."""


class FileFormatError(TrainsimError):
    """A foreign file (trace, dump, table) that cannot be read; names the file and the place."""


class EngineError(TrainsimError):
    """The simulation cannot go on, for example because ranks wait for each other for ever."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A tail for a message: "; did you mean 'x'?" or, with no near name, the known ones."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    if not known:
        return ""
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; known: {shown}"
