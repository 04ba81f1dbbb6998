"""Pipeline schedules: one module each."""

from __future__ import annotations

from simulator.parallel.schedules.base import Action, Schedule, find_schedule, schedule, schedules

__all__ = ["Action", "Schedule", "find_schedule", "schedule", "schedules"]
