"""The layers import downward only, and few may import what is heavy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "simulator"

#: packages from the bottom up; a package may import those of lower rank
RANKS = {
    "errors": 0, "units": 0, "spec": 1, "timeline": 1, "draws": 2,
    "model": 2, "hardware": 2, "network": 2, "planning": 3, "parallel": 4, "faults": 4,
    "program": 5, "engine": 6, "analysis": 7, "scenario": 8, "study": 9, "report": 9, "cli": 10,
}  # fmt: skip

#: what siblings may take from each other: values only
SIBLINGS = {
    ("hardware", "simulator.model.blocks"),
    ("network", "simulator.hardware.nics"),
    ("report", "simulator.study"),
    ("study", "simulator.report"),
    ("parallel", "simulator.parallel"),
}

ONLY_IN = {"pydantic": {"scenario"}, "ruamel": {"scenario"}, "simpy": {"engine"}}


def imports(file: Path) -> Iterator[str]:
    """Names of modules that a file imports, the late imports too, those for types only left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_from_layers_below(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(file):
        top = name.partition(".")[0]
        assert own in ONLY_IN.get(top, {own}), f"{name} may be imported only in {ONLY_IN[top]}"
        if top != "simulator" or "." not in name:
            continue
        other = name.split(".")[1]
        if own in ("__init__", "formats") or other in ("formats", own):
            continue
        allowed = RANKS[other] < RANKS[own] or any(
            own == package and name.startswith(prefix) for package, prefix in SIBLINGS
        )
        assert allowed, f"{own} imports {name}"


def test_no_module_is_longer_than_two_pages() -> None:
    for file in files():
        lines = len(file.read_text(encoding="utf-8").splitlines())
        assert lines <= 520, f"{file}: {lines} lines"
