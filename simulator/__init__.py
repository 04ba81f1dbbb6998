"""trainsim: a discrete-event simulator of distributed training.

`simulate(scenario)` runs a scenario (a path, a bundled name, a mapping or a Scenario) and gives a Result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.analysis.result import Result
    from simulator.scenario.load import load
    from simulator.spec import Scenario
    from simulator.study.simulate import simulate

__version__ = "0.1.0"
__all__ = ["Result", "Scenario", "__version__", "load", "simulate"]

_HOMES = {
    "Result": "simulator.analysis.result",
    "Scenario": "simulator.spec",
    "load": "simulator.scenario",
    "simulate": "simulator.study.simulate",
}


def __getattr__(name: str) -> Any:
    """The front door's names are imported when first used: start-up counts."""
    if name not in _HOMES:
        raise AttributeError(f"module 'simulator' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
