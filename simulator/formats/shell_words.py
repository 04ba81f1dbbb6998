"""Words of a shell script without their quotes, with the lines on which they end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Word:
    """`end`: what ends a command, a new line or an operator, which is the text."""

    text: str
    line: int
    end: bool = False


_PIECE: Final = re.compile(
    r"""(?P<continued>\\[ \t]*\r?\n)   # blanks after the backslash are a slip of pasting
      | (?P<blank>[ \t\r]+) | (?P<newline>\n) | (?P<operator>[()|;&<>])
      | (?P<single>'[^']*'?) | (?P<double>"(?:\\.|[^"\\])*"?)
      | (?P<escaped>\\.?) | (?P<bracket>\$[({])
      | (?P<plain>\$|[^\\ \t\r\n()|;&<>'"$]+)""",
    re.DOTALL | re.VERBOSE,
)


def shell_words(text: str, line: int = 1) -> Iterator[Word]:
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
            yield Word(word, line - (kind in ("newline", "continued")))
        word = None
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        if kind == "operator" or (kind == "newline" and not depth):
            yield Word(piece, line, end=True)
    if word is not None:
        yield Word(word, line)


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
