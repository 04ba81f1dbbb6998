"""`--options` of a shell script as people paste them: continued lines, comments, quotes, arrays, variables.

No shell runs: assignments of the file are followed in order, `${NAME:-default}`, whole-number arithmetic and
plain tests of `if` too; what comes from outside the file (an environment variable, a command's output) stays
as it is written, so that whoever needs a number refuses it. Options that stand where a condition has to be
met that the file does not decide are marked as uncertain.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from simulator.formats.shell_conditions import KEYWORDS, Branches
from simulator.formats.shell_words import Word, shell_words


@dataclass(slots=True)
class Option:
    """An option's words (none for a flag) and the line it stands on.

    `problem`: why it has no one value; `certain`: no open condition stands before it.
    """

    words: tuple[str, ...]
    line: int
    problem: str = ""
    certain: bool = True


_ASSIGNED: Final = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*|\d+)(?::?[-=]([^{}]*))?\})")
_ARITHMETIC: Final = re.compile(r"\$\(\((.*?)\)\)")


def shell_options(text: str) -> tuple[dict[str, Option], list[tuple[str, Option]]]:
    """(options by name without the dashes, options that only an open condition would give)."""
    scope = Scope()
    found: dict[str, Option] = {}
    uncertain: list[tuple[str, Option]] = []
    for name, option in _Reader(scope).options(list(shell_words(text))):
        if not option.certain:
            uncertain.append((name, option))
            continue
        before = found.setdefault(name, option)
        if before.words != option.words and not before.problem:
            both = f"{' '.join(before.words)!r}, and {' '.join(option.words)!r} on line {option.line}"
            before.problem = f"{both}: expected one value"
    for option in found.values():
        if any(scope.ambiguous(word) for word in option.words):
            word = " ".join(option.words)
            option.problem = f"{word!r}: expected variables that are given one value in the file"
        option.words = tuple(scope.expand(word) for word in option.words)
    return found, uncertain


@dataclass(slots=True)
class Scope:
    """Values of variables; all that a variable was given."""

    values: dict[str, str] = field(default_factory=dict)
    given: dict[str, set[str]] = field(default_factory=dict)

    def assign(self, name: str, value: str) -> None:
        if _mentions(value, name):  # NAME=${NAME:-8}: the default, where nobody outside says otherwise
            value = self.expand(value)
        self.values[name] = value
        self.given.setdefault(name, set()).add(value)

    def doubt(self, name: str) -> None:
        """Note that a variable may have another value."""
        self.given.setdefault(name, set()).add(f"${name}")

    def ambiguous(self, word: str) -> bool:
        """Whether a variable in the word was given different values."""
        return any(len(self.given.get(name, ())) > 1 for name in _names(word))

    def expand(self, word: str, depth: int = 0) -> str:
        """The word with what the file says of its variables."""
        if depth > 20:
            return word

        def value(match: re.Match[str]) -> str:
            name, default = match[1] or match[2], match[3]
            known = self.values.get(name)
            if known is None or _mentions(known, name):
                known = default
            return match[0] if known is None else self.expand(known, depth + 1)

        expanded = _VARIABLE.sub(value, word)
        return _ARITHMETIC.sub(lambda match: _computed(self._bare(match[1])) or match[0], expanded)

    def _bare(self, expression: str) -> str:
        """In arithmetic a variable needs no dollar."""
        return re.sub(
            r"[A-Za-z_]\w*", lambda match: self.expand(self.values.get(match[0], match[0]), 1), expression
        )


def _names(word: str) -> list[str]:
    inside = [name for match in _ARITHMETIC.findall(word) for name in re.findall(r"[A-Za-z_]\w*", match)]
    return inside + [match[1] or match[2] for match in _VARIABLE.finditer(word)]


def _mentions(word: str, name: str) -> bool:
    return name in _names(word)


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _computed(expression: str) -> str:
    """The value of whole-number arithmetic; empty for anything else."""
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return ""


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError


_QUOTED: Final = re.compile(r"(^|\s)--[A-Za-z][^\s=]*(\s|$)")


@dataclass(slots=True)
class _Reader:
    """Walks over words; assignments on the way go into the scope."""

    scope: Scope
    branches: Branches = field(default_factory=Branches)

    def options(self, words: list[Word]) -> Iterator[tuple[str, Option]]:
        """Options in order."""
        name, line, values, fresh = "", 0, list[str](), True
        rest = iter([*words, Word("", 0, end=True)])
        for word in rest:
            starts = word.text.startswith("--") and len(word.text) > 2 and not word.end
            quoted = not word.end and " " in word.text.strip() and _QUOTED.search(word.text)
            script = word.text.endswith(".py")  # what a launcher's options end with
            if name and (word.end or starts or script):
                yield name, Option(tuple(values), line, certain=self.branches.active is True)
                name = ""
            if word.end or script:
                fresh = True
                continue
            if fresh and word.text in KEYWORDS:
                self.branches.keyword(word.text, rest, self.scope)
                continue
            fresh = False
            if self.branches.active is False:
                continue
            assigned = _ASSIGNED.match(word.text)
            if quoted:
                inner = assigned[3] if assigned else word.text
                first = word.line - inner.count("\n")
                yield from self.options(list(shell_words(inner, first)))
            elif starts:
                name, equals, value = word.text[2:].partition("=")
                line, values = word.line, [value] if equals else []
            elif name:
                values.append(word.text)
            elif assigned:
                self.scope.assign(assigned[1], assigned[3])
                fresh = True
                if self.branches.active is None:
                    self.scope.doubt(assigned[1])
