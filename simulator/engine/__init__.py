"""Two engines with one meaning: `events` (SimPy, the reference) and `lanes` (NumPy)."""

from __future__ import annotations

from simulator.engine.cast import unfolded
from simulator.engine.setting import Setting, build_setting
from simulator.timeline import Timeline

__all__ = ["Setting", "build_setting", "run"]


def run(setting: Setting, *, links: bool = False) -> Timeline:
    """Simulate all steps of a setting with the engine that the scenario asks for."""
    from simulator.engine import events  # noqa: PLC0415

    return events.run(unfolded(setting), links=links)
