"""What an answer is, how a question is registered, and how an answer moves with an input."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, TypeAlias

from simulator.errors import SpecError, nearest


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the reckoning."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`inputs` as given or defaulted; `steps` in order; `notes`: sentences that belong to the figure."""

    question: str
    formula: str
    inputs: Mapping[str, Any]
    steps: tuple[Step, ...]
    value: float
    unit: str
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "question": self.question,
            "formula": self.formula,
            "inputs": dict(self.inputs),
            "steps": [{"name": s.name, "value": s.value, "unit": s.unit} for s in self.steps],
            "answer": {"value": self.value, "unit": self.unit},
            "notes": list(self.notes),
        }


Question: TypeAlias = Callable[..., Answer]
_QUESTIONS: Final[dict[str, Question]] = {}


def question(name: str) -> Callable[[Question], Question]:
    """Register a function as the question `name`; its parameters are the inputs."""

    def register(function: Question) -> Question:
        _QUESTIONS[name] = function
        return function

    return register


@cache
def questions() -> Mapping[str, Question]:
    """All questions by name."""
    import simulator.planning as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _QUESTIONS


def ask(name: str, **inputs: Any) -> Answer:
    """Answer a question. Raises SpecError for an unknown question or input, and for values that cannot be."""
    known = questions()
    if name not in known:
        raise SpecError.of("question", f"'{name}': no such question{nearest(name, known)}")
    parameters = inspect.signature(known[name]).parameters
    for key, value in inputs.items():
        if key not in parameters:
            raise SpecError.of(key, f"no input of '{name}'{nearest(key, parameters)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise SpecError.of(key, f"{value!r}: expected a finite number")
    return known[name](**inputs)


def swing(
    name: str, key: str, low: float, high: float, count: int = 5, **inputs: Any
) -> list[tuple[float, Answer]]:
    """The answer at `count` values of one input from `low` to `high`."""
    step = (high - low) / (count - 1)
    values = [low + i * step for i in range(count)]
    return [(value, ask(name, **{**inputs, key: value})) for value in values]


def positive(value: float, name: str) -> float:
    """The value; SpecError unless it is finite and above 0."""
    if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
        raise SpecError.of(name, f"{value!r}: expected a finite number above 0")
    return float(value)


def part(value: float, name: str) -> float:
    """The value; SpecError unless it is above 0 and at most 1."""
    if not math.isfinite(value) or not 0 < value <= 1:
        raise SpecError.of(name, f"{value!r}: expected more than 0 and at most 1")
    return float(value)
