"""Which branches of a shell script's conditions are taken, as far as the script itself says."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from simulator.formats.shell_words import Word

KEYWORDS: Final = frozenset(("if", "elif", "then", "else", "fi", "case", "esac", "do", "done"))
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt,
    "-le": operator.le,
}  # fmt: skip


class Values(Protocol):
    """What the script's variables are."""

    def expand(self, word: str, depth: int = 0) -> str: ...

    def ambiguous(self, word: str) -> bool: ...


@dataclass(slots=True)
class Branches:
    """Conditions that stand open, outermost first: [whether the branch runs, whether one before it did].

    None: the script does not decide it.
    """

    open: list[list[bool | None]] = field(default_factory=list)

    @property
    def active(self) -> bool | None:
        """Whether what stands here runs."""
        states = [branch[0] for branch in self.open]
        return False if False in states else None if None in states else True

    def keyword(self, word: str, rest: Iterator[Word], values: Values) -> None:
        """A word of the shell's at the start of a command; a condition is taken from `rest`."""
        if word == "if":
            found = decide(_condition(rest), values)
            self.open.append([found, found])
        elif word == "case":
            self.open.append([None, None])
        elif word in ("fi", "esac") and self.open:
            self.open.pop()
        elif word in ("elif", "else") and self.open:
            found = decide(_condition(rest), values) if word == "elif" else True
            before = self.open[-1][1]
            runs = False if before or found is False else None if before is None or found is None else True
            self.open[-1] = [runs, True if before or runs else None if None in (before, runs) else False]


def _condition(rest: Iterator[Word]) -> list[Word]:
    words = []
    for word in rest:
        if word.text == "then" and not word.end:
            break
        words.append(word)
    return words


def decide(words: list[Word], values: Values) -> bool | None:
    """Whether a condition holds; None where the script does not say."""
    tests: list[list[str]] = [[]]
    joined: list[str] = []
    for word in words:
        if not word.end:
            tests[-1].append(word.text)
        elif word.text in ("&", "|") and tests[-1]:
            joined.append(word.text)
            tests.append([])
    found = [_test(test, values) for test in tests if test]
    if len(set(joined)) > 1 or not found:
        return None
    strong = "|" in joined  # what decides it alone
    return strong if strong in found else None if None in found else not strong


def _test(words: list[str], values: Values) -> bool | None:
    inner = [word for word in words if word not in ("[", "[[", "]", "]]", "test")]
    if len(inner) == len(words) or any(values.ambiguous(word) for word in inner):
        return None
    if inner[:1] == ["!"]:
        found = _test(["[", *inner[1:]], values)
        return None if found is None else not found
    known = [values.expand(word) for word in inner]
    if any("$" in word or "`" in word for word in known):
        return None
    if len(known) == 2 and known[0] in ("-z", "-n"):
        return (known[1] == "") == (known[0] == "-z")
    if len(known) != 3:
        return None
    left, sign, right = known
    if sign in ("=", "==", "!="):
        return None if "*" in right else (left == right) == (sign != "!=")
    if sign in _COMPARED and left.isdecimal() and right.isdecimal():
        return _COMPARED[sign](int(left), int(right))
    return None
