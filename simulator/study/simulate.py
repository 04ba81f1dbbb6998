"""The front door: a scenario in, a result out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.analysis.result import Result
from simulator.spec import Scenario

if TYPE_CHECKING:
    from simulator.engine.setting import Setting


def simulate(
    scenario: str | Path | dict[str, Any] | Scenario,
    *,
    allow_oom: bool = False,
    links: bool = False,
    progress: Callable[[int], None] | None = None,
    **overrides: Any,
) -> Result:
    """Run a scenario and say how long a step takes and where the time went.

    `scenario`: a path, a bundled name, a mapping as in a file, or a Scenario. Overrides are dotted
    paths, as in `--set`: `simulate("gpt2-xl-ddp", **{"parallelism.dp": 64})`.
    `links`: keep the links' utilisation over time. A model that does not fit in memory is refused
    unless `allow_oom`. `progress` is called with the number of steps done.

    Raises ScenarioError for a scenario that cannot be, EngineError for one that deadlocks.
    """
    from simulator.analysis import result as results
    from simulator.engine import run
    from simulator.study.memory import check_memory

    loaded = load(scenario, overrides)
    memory = check_memory(loaded, allow_oom=allow_oom)
    timeline = run(make_setting(loaded), links=links, progress=progress)
    note = f"{timeline.meta['engine']} engine: {timeline.meta.get('engine_why', '')}"
    return results.build(loaded, timeline, memory=memory, notes=(note,))


def make_setting(scenario: Scenario) -> Setting:
    """A scenario made ready for an engine. Raises SpecError for what its cluster does not have."""
    from simulator.engine.setting import build_setting
    from simulator.network import fabric as fabrics
    from simulator.program.build import build

    cluster = scenario.cluster
    fabric = fabrics.build(cluster.topology, cluster.gpus, cluster.gpu, seed=scenario.run.seed)
    programs, mesh = build(scenario, int((fabric.node_of == 0).sum()))
    return build_setting(scenario, programs, mesh, fabric)


def load(scenario: str | Path | dict[str, Any] | Scenario, overrides: dict[str, Any]) -> Scenario:
    """The Scenario meant by what a caller gives."""
    if isinstance(scenario, Scenario) and not overrides:
        return scenario
    from simulator.scenario import load as load_scenario

    return load_scenario(scenario, overrides)
