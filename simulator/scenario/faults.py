"""The faults of a scenario file: flat fields to place, time and size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simulator.errors import Finding, SpecError, nearest
from simulator.faults import kinds, resolve
from simulator.spec import Fault, Place, When
from simulator.units import UnitError, parse

_PLACE: Final = (
    *("rank", "ranks", "node", "nodes", "nic", "nics", "link", "links"),
    *("fraction", "of"),
)
_WHEN: Final = (*("at_step", "from_step", "to_step", "from", "to", "every_steps", "phase", "rate"),)


def read_faults(values: list[Any]) -> tuple[tuple[Fault, ...], list[Finding]]:
    """All faults, and all that is wrong with them (paths from "faults[0]")."""
    faults, findings = [], []
    for number, value in enumerate(values):
        reader = _Reader(f"faults[{number}]", value)
        fault = reader.fault()
        findings += reader.findings
        if fault is not None and not reader.findings:
            faults.append(fault)
    return tuple(faults), findings


class _Reader:
    """Reads one fault, gathering findings."""

    def __init__(self, path: str, value: Mapping[str, Any]):
        self.path = path
        self.value = value
        self.findings: list[Finding] = []

    def fault(self) -> Fault | None:
        kind = self.value.get("kind")
        if not isinstance(kind, str):
            self._refuse("kind", f"missing: expected one of {', '.join(sorted(kinds()))}")
            return None
        if kind not in kinds():
            self._refuse("kind", f"'{kind}': unknown fault{nearest(kind, kinds())}")
            return None
        known = (*_PLACE, *_WHEN, "kind")
        size = {name: value for name, value in self.value.items() if name not in known}
        place, when = self._place(), self._when()
        if self.findings:
            return None
        try:
            fault = Fault(kind, place, when, size)
            resolve(fault)
        except SpecError as error:
            for finding in error.findings:
                name = finding.path
                message = finding.message
                if message.startswith("unknown key"):
                    message = f"unknown key{nearest(name, (*_PLACE, *_WHEN, *_sizes(kind)))}"
                self._refuse(name, message)
            return None
        return fault

    def _refuse(self, name: str, message: str) -> None:
        self.findings.append(Finding(f"{self.path}.{name}" if name else self.path, message))

    # ---------------------------------------------------------------------------------------- place

    def _place(self) -> Place:
        numbers = {
            "ranks": self._many("rank", "ranks", int, "a whole number of 0 or more"),
            "nodes": self._many("node", "nodes", int, "a whole number of 0 or more"),
            "nics": self._many("nic", "nics", str, "text like '3:0' (node and NIC)"),
            "links": self._many("link", "links", str, "the name of a link, such as 'node3/nic0/up'"),
        }
        fraction = self.value.get("fraction")
        if fraction is not None and not (_is_number(fraction) and 0 <= fraction <= 1):
            self._refuse("fraction", f"{fraction!r}: expected 0 to 1")
            fraction = None
        of = self.value.get("of", "node")
        if of not in ("rank", "node"):
            self._refuse("of", f"{of!r}: expected rank or node")
            of = "node"
        given = [name for name, found in numbers.items() if found]
        given += ["fraction"] if fraction is not None else []
        if len(given) > 1:
            self._refuse("", f"{' and '.join(given)}: expected one way to say where")
        return Place(**numbers, fraction=fraction, of=of)

    def _many(self, one: str, many: str, kind: type, expected: str) -> tuple[Any, ...]:
        if one in self.value and many in self.value:
            self._refuse(many, f"given beside {one}: expected one of them")
        name = one if one in self.value else many
        if name not in self.value:
            return ()
        value = self.value[name]
        values = value if isinstance(value, list) else [value]
        for entry in values:
            wrong = isinstance(entry, bool) or not isinstance(entry, kind)
            if wrong or (kind is int and entry < 0):
                self._refuse(name, f"{entry!r}: expected {expected}")
                return ()
        if not values:
            self._refuse(name, "[]: expected one or more")
        return tuple(values)

    # ----------------------------------------------------------------------------------------- time

    def _when(self) -> When:
        at = self._step("at_step")
        start, end = self._step("from_step"), self._step("to_step")
        if at is not None:
            if start is not None or end is not None:
                self._refuse("at_step", "given beside from_step or to_step: expected one of them")
            start, end = at, at + 1
        if start is not None and end is not None and end <= start:
            self._refuse("to_step", f"{end}: expected more than from_step ({start})")
        begin, until = self._quantity("from", "s"), self._quantity("to", "s")
        if begin is not None and until is not None and until <= begin:
            self._refuse("to", f"{self.value['to']!r}: expected later than from")
        every = self._step("every_steps")
        if every == 0:
            self._refuse("every_steps", "0: expected 1 or more")
        phase = self.value.get("phase", "common")
        if phase not in ("common", "private"):
            self._refuse("phase", f"{phase!r}: expected common or private")
            phase = "common"
        return When(
            from_step=start,
            to_step=end,
            from_s=begin,
            to_s=until,
            every_steps=every,
            phase=phase,
            per_s=self._quantity("rate", "per_s"),
        )

    def _step(self, name: str) -> int | None:
        value = self.value.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._refuse(name, f"{value!r}: expected a whole number of 0 or more")
            return None
        return value

    def _quantity(self, name: str, dimension: str) -> float | None:
        if name not in self.value:
            return None
        try:
            result = parse(self.value[name], dimension)
        except UnitError as error:
            self._refuse(name, str(error))
            return None
        if result < 0:
            self._refuse(name, f"{self.value[name]!r}: expected 0 or more")
            return None
        return result


def _sizes(kind: str) -> tuple[str, ...]:
    return tuple(kinds()[kind].__dataclass_fields__)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
