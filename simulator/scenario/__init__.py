"""Scenario files: YAML to frozen, validated values with units resolved."""

from __future__ import annotations

from simulator.scenario.bundled import bundled, scenarios, topologies
from simulator.scenario.clusters import load_topology
from simulator.scenario.load import load
from simulator.scenario.schema import schema

__all__ = ["bundled", "load", "load_topology", "scenarios", "schema", "topologies"]
