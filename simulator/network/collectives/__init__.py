"""Collectives as activities: which links they load, and how long they take alone.

An algorithm is one module: a function from groups to the bytes on each link, and its latency, registered
by name. `plan` makes one group's activity, `wire` loads the links for many groups at once.
"""

from __future__ import annotations

from simulator.network.activity import BUS_FACTORS, Activity
from simulator.network.collectives.base import algorithms
from simulator.network.collectives.planner import KINDS, plan, wire

__all__ = ["BUS_FACTORS", "KINDS", "Activity", "algorithms", "plan", "wire"]
