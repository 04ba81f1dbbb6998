"""A published run as a scenario, and what is read off it.

A row's scenario is run for one step from rest: nothing in it is random, and what reaches into the next
step is small. A long pipeline is not run to its end: once full it repeats itself, so its step is affine
in the number of micro-batches, and two short runs give the line (`step_time_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from simulator.errors import SpecError
from simulator.model import model as named_model
from simulator.model.flops import parameters
from simulator.model.memory import stage_memory
from simulator.parallel.stages import stage_blocks
from simulator.spec import LayerList, Scenario, Topology, Transformer
from simulator.study.memory import memory_by_stage
from simulator.study.simulate import load, make_setting
from simulator.study.validation.base import About, Row, Task

GIB: Final = 2.0**30
_RUN: Final = {"steps": 1, "warmup": 0}

Values = dict[str, Any]


def gpt(row: Mapping[str, str], **more: Any) -> Values:
    """A GPT of a table's sizes: learned positions, tied embeddings, biases, dropout."""
    hidden = int(row["hidden"])
    return {
        "layers": int(row["layers"]),
        "hidden": hidden,
        "heads": int(row["heads"]),
        "ffn": int(row.get("ffn") or 4 * hidden),
        "vocab": int(row.get("vocab") or 51200),
        "max_positions": int(row["seq"]),
        "tied_embeddings": True,
        "dropout": 0.1,
        **more,
    }


def cut(name: str, layers: int, **more: Any) -> Values:
    """A bundled model with another number of layers, as inline fields."""
    found = named_model(name)
    if not isinstance(found, Transformer):
        raise SpecError.of("model", f"'{name}': expected a transformer")
    fields = {key: value for key, value in asdict(found).items() if value is not None and key != "source"}
    return {**fields, "layers": layers, **more}


def batch(sequence: int, micro: int, whole: int) -> dict[str, int]:
    """The batch section."""
    return {"sequence_length": sequence, "micro_batch": micro, "global_batch": whole}


def stage_layers(layers: int, parts: int) -> list[int]:
    """An even split, or one with the first and the last part a layer shorter, or the first ones longer."""
    if parts == 1 or layers % parts == 0:
        return []
    each = -(-(layers + 2) // parts)
    sizes = [each - 1, *[each] * (parts - 2), each - 1]
    if sum(sizes) == layers:
        return sizes
    base, rest = divmod(layers, parts)
    return [base + (1 if i < rest else 0) for i in range(parts)]


def megatron_bucket(dp: int, element_bytes: int) -> str:
    """Megatron-Core's default bucket: 40 million parameters, or a million a data-parallel rank if more."""
    return f"{max(40e6, 1e6 * dp) * element_bytes / 2**20} MiB"


# ------------------------------------------------------------------------------------------ figures


def step_time_s(values: Values) -> float:
    """Seconds of a step; of a long pipeline, on the line through runs of one and two rounds of micro-batches.

    A round is as many micro-batches as there are stages (interleaved schedules need whole rounds).
    """
    scenario = one_leaf(load({**values, "run": _RUN}, {}))
    count = scenario.micro_batches
    unit = max(2, scenario.parallelism.pp)
    first = unit + count % unit
    if count <= 3 * unit or first + 2 * unit > count:
        return _run(scenario)
    short, longer = (_run(_with_micro_batches(scenario, n)) for n in (first, first + unit))
    return short + (count - first) / unit * (longer - short)


def _with_micro_batches(scenario: Scenario, count: int) -> Scenario:
    each = scenario.batch.micro_batch * scenario.parallelism.dp
    return replace(scenario, batch=replace(scenario.batch, global_batch=count * each))


def _run(scenario: Scenario) -> float:
    """The step time alone: no utilisation, no waterfall."""
    from simulator.engine import run

    timeline = run(make_setting(scenario))
    ranks = [lane.multiplicity for lane in timeline.ranks]
    seconds = timeline.steps[:, 0, 1] - timeline.steps[:, 0, 0]
    return float(seconds @ ranks) / sum(ranks)


def one_leaf(scenario: Scenario) -> Scenario:
    """Rails with full bandwidth above the leafs, as one big leaf each.

    Left out: the hops between leafs, a microsecond. Ranks then differ less, so fewer are simulated.
    """
    topology = scenario.cluster.topology
    if topology.family != "rail-optimised" or topology.parameters.get("oversubscription", 1) != 1:
        return scenario
    nodes = 1 << (scenario.cluster.gpus - 1).bit_length()
    wide = {**topology.parameters, "nodes_per_leaf": nodes, "switch_ports": 4 * nodes}
    changed = Topology(topology.name, topology.family, wide, topology.gpu, topology.source)
    return replace(scenario, cluster=replace(scenario.cluster, topology=changed))


def peak_gib(values: Values) -> float:
    """What PyTorch's allocator hands out on the fullest stage: without the CUDA context."""
    return max(stage.allocated_bytes for stage in memory_by_stage(load(values, {}))) / GIB


def activations_gib(values: Values) -> float:
    """Activations of the first stage."""
    return memory_by_stage(load(values, {}))[0].activations_bytes / GIB


def states_gib(values: Values) -> float:
    """Parameters, gradients and optimizer of the first stage's layers, without embeddings."""
    loaded = load(values, {})
    layers = [[block for block in blocks if block.kind == "layer"] for blocks in stage_blocks(loaded)[0]]
    first = stage_memory(loaded, layers, [0] * len(layers))
    return (first.parameters_bytes + first.gradients_bytes + first.optimizer_bytes) / GIB


# -------------------------------------------------------------------------------------------- tasks


def task(
    name: str,
    published: float,
    values: Values,
    *,
    metric: str = "step time",
    unit: str = "s",
    figure: Callable[[Values], float] = step_time_s,
    note: str = "",
    points: bool = False,
) -> Task:
    """The row of one figure of a scenario."""
    row = Row(name, published, float("nan"), unit, metric, note=note, points=points, about=_about(values))
    return Task(row, partial(figure, values), _cost(values))


def skip(name: str, metric: str, why: str, published: float = float("nan"), unit: str = "s") -> Task:
    """A row that cannot be run, with the reason."""
    return Task(Row(name, published, float("nan"), unit, metric, skipped=why))


def _transformer(values: Values) -> Transformer | None:
    found = values["model"]
    try:
        loaded = named_model(found) if isinstance(found, str) else load(_SMALL | {"model": found}, {}).model
    except SpecError:
        return None
    return None if isinstance(loaded, LayerList) else loaded


_SMALL: Final[Values] = {
    "cluster": {"topology": "dgx-h100", "gpus": 1},
    "batch": {"sequence_length": 2048, "micro_batch": 1, "global_batch": 1},
}


def _about(values: Values) -> About:
    model = _transformer(values)
    cluster = values["cluster"]
    size = 0.0 if model is None else parameters(model).total / 1e9
    gpu = cluster.get("gpu") or str(cluster["topology"]).removeprefix("dgx-") + "-sxm"
    return About(str(gpu), int(cluster["gpus"]), round(size, 3), int(values["batch"]["sequence_length"]))


def _cost(values: Values) -> float:
    """Pieces of work of all stages in the rounds that are run."""
    model = values["model"]
    layers = model["layers"] if isinstance(model, dict) else getattr(named_model(model), "layers", 1)
    return float(layers * values.get("parallelism", {}).get("pp", 1))
