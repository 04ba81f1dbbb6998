"""`--options` of a shell script as people paste them: continued lines, comments, quotes, arrays, variables.

No shell runs: assignments of the file are followed in order, `${NAME:-default}` and whole-number arithmetic
too; what comes from outside the file (an environment variable, a command's output) stays as it is written,
so that whoever needs a number refuses it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulator.errors import Finding, SpecError


@dataclass(slots=True)
class Option:
    """An option's words (none for a flag) and the line it stands on."""

    words: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class _Word:
    """`end`: a word that ends a command (a new line, a pipe)."""

    text: str
    line: int
    end: bool = False


_ASSIGNED: Final = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*|\d+)(?::?-([^{}]*))?\})")
_ARITHMETIC: Final = re.compile(r"\$\(\((.*?)\)\)")


def shell_options(path: Path, text: str) -> dict[str, Option]:
    """Options by name, without the dashes. Raises SpecError where one is given two values."""
    scope = _Scope()
    found: dict[str, Option] = {}
    findings: list[Finding] = []
    for name, option in _options(list(_words(text, 1)), scope):
        before = found.setdefault(name, option)
        if before.words != option.words:
            both = f"{' '.join(before.words)!r} on line {before.line}, {' '.join(option.words)!r} here"
            findings.append(
                Finding(f"--{name}", f"{both}: expected one value", file=str(path), line=option.line)
            )
    for name, option in found.items():
        for word in option.words:
            if scope.ambiguous(word):
                message = f"{word!r}: expected variables that are given one value in the file"
                findings.append(Finding(f"--{name}", message, file=str(path), line=option.line))
    if findings:
        raise SpecError(findings)
    return {
        name: Option(tuple(scope.expand(word) for word in option.words), option.line)
        for name, option in found.items()
    }


@dataclass(slots=True)
class _Scope:
    """Values of variables; all that a variable was given."""

    values: dict[str, str] = field(default_factory=dict)
    given: dict[str, set[str]] = field(default_factory=dict)

    def assign(self, name: str, value: str) -> None:
        if _mentions(value, name):  # NAME=${NAME:-8}: the default, where nobody outside says otherwise
            value = self.expand(value)
        self.values[name] = value
        self.given.setdefault(name, set()).add(value)

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


def _options(words: list[_Word], scope: _Scope) -> Iterator[tuple[str, Option]]:
    """Options in order; assignments on the way go into the scope."""
    name, line, values = "", 0, list[str]()
    for word in [*words, _Word("", 0, end=True)]:
        starts = word.text.startswith("--") and len(word.text) > 2
        script = word.text.endswith(".py")  # what a launcher's options end with
        if name and (word.end or starts or script):
            yield name, Option(tuple(values), line)
            name = ""
        if word.end or script:
            continue
        assigned = _ASSIGNED.match(word.text)
        if starts:
            name, equals, value = word.text[2:].partition("=")
            line, values = word.line, [value] if equals else []
        elif re.search(r"(^|\s)--[A-Za-z]", word.text):  # a quoted line of options
            inner = assigned[3] if assigned else word.text
            first = word.line - inner.count("\n")
            yield from _options(list(_words(inner, first)), scope)
        elif name:
            values.append(word.text)
        elif assigned:
            scope.assign(assigned[1], assigned[3])


_PIECE: Final = re.compile(
    r"""(?P<continued>\\[ \t]*\r?\n)   # blanks after the backslash are a slip of pasting
      | (?P<blank>[ \t\r]+) | (?P<newline>\n) | (?P<operator>[()|;&<>])
      | (?P<single>'[^']*'?) | (?P<double>"(?:\\.|[^"\\])*"?)
      | (?P<escaped>\\.?) | (?P<bracket>\$[({])
      | (?P<plain>\$|[^\\ \t\r\n()|;&<>'"$]+)""",
    re.DOTALL | re.VERBOSE,
)


def _words(text: str, line: int) -> Iterator[_Word]:
    """Words without their quotes; the line is where a word ends."""
    word: str | None = None
    depth, place = 0, 0  # depth: of open parentheses of an array
    while place < len(text):
        if text[place] == "#" and word is None:
            place = (text.find("\n", place) + len(text) + 1) % (len(text) + 1)
            continue
        match = _PIECE.match(text, place)
        assert match is not None
        kind, piece = str(match.lastgroup), match[0]
        if kind == "bracket":
            piece = text[place : _closing(text, place + 1)]
        place += len(piece)
        line += piece.count("\n")
        if kind in _UNQUOTED:
            word = (word or "") + _UNQUOTED[kind](piece)
            continue
        array = piece == "(" and word is not None and word.endswith("=")
        descriptor = piece in ("<", ">") and word is not None and word.isdecimal()  # 2>&1
        if word is not None and not array and not descriptor:
            yield _Word(word, line - (kind in ("newline", "continued")))
        word = None
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        if kind == "operator" or (kind == "newline" and not depth):
            yield _Word("", line, end=True)
    if word is not None:
        yield _Word(word, line)


_UNQUOTED: Final[Mapping[str, Callable[[str], str]]] = {
    "single": lambda piece: piece.strip("'"),
    "double": lambda piece: re.sub(
        r"\\([\\\"$`])", r"\1", re.sub(r"\\[ \t]*\r?\n", "\n", piece[1:].removesuffix('"'))
    ),
    "escaped": lambda piece: piece[1:],
    "bracket": lambda piece: piece,
    "plain": lambda piece: piece,
}


def _closing(text: str, place: int) -> int:
    """Past the bracket that closes the one at `place`."""
    opening, closing, depth = text[place], {"(": ")", "{": "}"}[text[place]], 0
    for end in range(place, len(text)):
        depth += (text[end] == opening) - (text[end] == closing)
        if not depth:
            return end + 1
    return len(text)
