"""A YAML file as plain values that remember where they stood."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import Finding, ScenarioError

#: A scenario is written by people: larger files are something else.
MOST_BYTES: Final = 4_000_000
#: Aliases can make a small file huge ("a YAML bomb").
MOST_VALUES: Final = 200_000

Position = tuple[int, int]


@dataclass(slots=True)
class Source:
    """Plain values, and the line and column (from 1) of every field by its dotted path."""

    name: str | None
    values: Any
    positions: dict[str, Position] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)

    def place(self, finding: Finding) -> Finding:
        """The finding with file, line and column of its field, or of the nearest field around it."""
        path = finding.path
        while path:
            if path in self.overridden:
                return replace(finding, file="--set", line=None, column=None)
            if path in self.positions:
                line, column = self.positions[path]
                return replace(finding, file=self.name, line=line, column=column)
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return replace(finding, file=self.name, line=1 if self.name else None)

    def refuse(self, findings: Iterable[Finding]) -> ScenarioError:
        """An error with all findings in order of their lines."""
        placed = [self.place(finding) for finding in findings]
        return ScenarioError(sorted(placed, key=lambda one: (one.line or 0, one.column or 0)))


def read(path: Path) -> Source:
    """Read a YAML file. Raises ScenarioError, with the line, for what cannot be read."""
    name = str(path)

    def refuse(message: str, line: int | None = None, column: int | None = None) -> ScenarioError:
        return ScenarioError(Finding("", message, name, line, column))

    try:
        size = path.stat().st_size
        if path.is_dir():
            raise refuse("is a folder: expected a YAML file")
        if size > MOST_BYTES:
            raise refuse(f"{size:,} bytes: expected a scenario of at most {MOST_BYTES:,}")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise refuse(f"is not UTF-8 text (byte {error.start})") from error
    return parse(text, name)


def parse(text: str, name: str | None) -> Source:
    """Parse YAML text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="rt")
    try:
        tree = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        problem = " ".join(str(error.problem or error.context or "not YAML").split())
        raise ScenarioError(Finding("", f"not YAML: {problem}", name, line, column)) from error
    except (YAMLError, ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        about = " ".join(str(error).split())[:200] or type(error).__name__
        raise ScenarioError(Finding("", f"not YAML: {about}", name, 1)) from error
    source = Source(name, None)
    try:
        source.values = _plain(tree, "", source, [0])
    except RecursionError as error:
        raise ScenarioError(Finding("", "nested too deeply, or within itself", name, 1)) from error
    if source.values is None:
        raise ScenarioError(Finding("", "is empty: expected a scenario", name, 1))
    if not isinstance(source.values, Mapping):
        raise ScenarioError(Finding("", "expected fields with values (name: value)", name, 1))
    return source


def _plain(node: Any, path: str, source: Source, count: list[int]) -> Any:
    """Plain dicts, lists, strings and numbers; notes the positions of fields on the way."""
    count[0] += 1
    if count[0] > MOST_VALUES:
        finding = Finding(path, f"more than {MOST_VALUES:,} values", source.name, 1)
        raise ScenarioError(finding)
    if isinstance(node, Mapping):
        result = {}
        for key, value in node.items():
            inner = f"{path}.{key}" if path else str(key)
            _mark(node, key, inner, source)
            name = key if isinstance(key, str | int) and not isinstance(key, bool) else str(key)
            result[name] = _plain(value, inner, source, count)
        return result
    if isinstance(node, list):
        values = []
        for index, value in enumerate(node):
            inner = f"{path}[{index}]"
            _mark(node, index, inner, source)
            values.append(_plain(value, inner, source, count))
        return values
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node)


def _mark(node: Any, key: Any, path: str, source: Source) -> None:
    where: Any = getattr(node, "lc", None)
    try:
        line, column = where.key(key) if isinstance(node, Mapping) else where.item(key)
    except (AttributeError, KeyError, TypeError, IndexError):
        return
    source.positions[path] = (line + 1, column + 1)


def override(source: Source, overrides: Mapping[str, Any]) -> None:
    """Set dotted paths ("parallelism.tp", "faults[0].node"); text is read as YAML."""
    source.values = copy.deepcopy(source.values)
    for path, value in overrides.items():
        parts = _parts(path)
        _set(source.values, parts, _value(value), path)
        source.overridden.add(path)


def _parts(path: str) -> list[str | int]:
    parts: list[str | int] = []
    for piece in path.split("."):
        name, *indices = piece.replace("]", "").split("[")
        if name:
            parts.append(name)
        for index in indices:
            if not index.isdecimal():
                raise ScenarioError(Finding(path, "expected a whole number in []", "--set"))
            parts.append(int(index))
    if not parts:
        raise ScenarioError(Finding(path, "expected a field, as in parallelism.tp=4", "--set"))
    return parts


def _set(values: Any, parts: list[str | int], value: Any, path: str) -> None:
    *way, last = parts
    for part in way:
        if isinstance(part, str):
            if not isinstance(values, dict):
                raise ScenarioError(Finding(path, f"'{part}': there are no fields there", "--set"))
            if not isinstance(values.get(part), dict | list):
                values[part] = {}
            values = values[part]
        else:
            values = _item(values, part, path)
    if isinstance(last, int):
        _item(values, last, path)
        values[last] = value
    elif isinstance(values, dict):
        values[last] = value
    else:
        raise ScenarioError(Finding(path, f"'{last}': there are no fields there", "--set"))


def _item(values: Any, index: int, path: str) -> Any:
    if not isinstance(values, list) or index >= len(values):
        raise ScenarioError(Finding(path, f"[{index}]: there is no such entry", "--set"))
    return values[index]


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return _plain(YAML(typ="rt").load(value), "", Source(None, None), [0])
    except (YAMLError, ValueError, TypeError):
        return value
