"""Two engines with one meaning: `events` (SimPy, the reference) and `lanes` (NumPy)."""

from __future__ import annotations

from simulator.engine.choice import Choice, choose_engine, run
from simulator.engine.setting import Setting, build_setting

__all__ = ["Choice", "Setting", "build_setting", "choose_engine", "run"]
