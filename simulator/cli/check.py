"""Check a scenario file without running it."""

from __future__ import annotations

import sys

from simulator.cli.options import AllowOom, JsonOption, ScenarioArgument, SetOption, overrides, print_json


def command(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOom = False,
) -> None:
    """Check a scenario: syntax, values, whether its parts fit together and into memory.

    Example: trainsim check my-run.yaml
    """
    from simulator.network import fabric
    from simulator.study.memory import capacity_bytes, check_memory
    from simulator.study.simulate import load, make_setting

    loaded = load(scenario, overrides(settings))
    memory = check_memory(loaded, allow_oom=allow_oom)
    setting = make_setting(loaded)
    assert isinstance(setting.fabric, fabric.Fabric)
    about = {
        "scenario": loaded.name,
        "model": loaded.model.name,
        "gpus": loaded.cluster.gpus,
        "micro_batches": loaded.micro_batches,
        "peak_memory_bytes": memory.peak_bytes,
        "memory_margin_bytes": capacity_bytes(loaded) - memory.peak_bytes,
    }
    if as_json:
        print_json({"ok": True, **about})
        return
    from simulator.units import show_bytes

    source, _, unknown = loaded.model.source.partition("; not understood: ")
    if unknown:
        print(f"{source}: not understood: {unknown}", file=sys.stderr)

    print(
        f"{loaded.name}: fine. {loaded.model.name} on {loaded.cluster.gpus} GPUs, "
        f"{loaded.micro_batches} micro-batches a step, {show_bytes(memory.peak_bytes)} of "
        f"{show_bytes(capacity_bytes(loaded))} a GPU."
    )
