"""Families of fabrics: one file each, registered by name.

A family is a frozen dataclass of its parameters (see parameters.py) with a method `build`. Other
packages add theirs through the entry-point group `trainsim.fabrics`, whose objects are such classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, TypeVar

from simulator.errors import SpecError, nearest
from simulator.network.families.parameters import Family

_FAMILIES: Final[dict[str, type[Family]]] = {}
_MODULES: Final = ("rail_optimised", "leaf_spine", "clos", "cloud", "torus", "dragonfly", "explicit")
_T = TypeVar("_T", bound=type[Family])


def family(name: str) -> Callable[[_T], _T]:
    """Register a parameter dataclass as the family `name`."""

    def register(cls: _T) -> _T:
        _FAMILIES[name] = cls
        return cls

    return register


@cache
def _load() -> None:
    for module in _MODULES:
        import_module(f"{__name__}.{module}")
    for entry in entry_points(group="trainsim.fabrics"):
        _FAMILIES.setdefault(entry.name, entry.load())


def families() -> tuple[str, ...]:
    """Names of all families."""
    _load()
    return tuple(sorted(_FAMILIES))


def family_of(name: str) -> type[Family]:
    """The family registered as `name`; SpecError with the nearest name if there is none."""
    _load()
    if name not in _FAMILIES:
        raise SpecError.of("family", f"'{name}': no such family of fabrics{nearest(name, _FAMILIES)}")
    return _FAMILIES[name]
