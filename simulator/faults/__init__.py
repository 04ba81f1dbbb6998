"""What goes wrong: kinds of faults, and what each does to the resources of a cluster."""

from __future__ import annotations

from simulator.faults.effects import Effect, Factor, Noise, Pause, Resource, Traffic, Window
from simulator.faults.registry import Context, fault_kind, kinds, resolve
from simulator.spec import Fault

__all__ = [
    "Context", "Effect", "Factor", "Noise", "Pause", "Resource", "Traffic", "Window",
    "effects", "fault_kind", "kinds", "resolve",
]  # fmt: skip


def effects(fault: Fault, context: Context) -> tuple[Effect, ...]:
    """What a fault does in a given cluster and run."""
    return tuple(resolve(fault).effects(context, fault))
