"""What concerns several fields at once: meshes, batches, stages, places of faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.errors import Finding, SpecError, nearest
from simulator.hardware import stacks
from simulator.model.context import ATTENTION
from simulator.model.context_parallel import ways
from simulator.model.optimizer import FORMS
from simulator.network.collectives import algorithms
from simulator.parallel.mesh import build_mesh
from simulator.parallel.schedules import find_schedule
from simulator.parallel.stages import split_layers
from simulator.program.gradients import find_policy
from simulator.spec import LayerList, Scenario, Transformer

Check = Callable[[Scenario], Iterator[Finding]]


def check(scenario: Scenario) -> list[Finding]:
    """Everything that does not fit together, all at once."""
    findings: list[Finding] = []
    for one in (_names, _mesh, _batch, _stages, _divides, _overlap, _precision, _rank_map, _nodes):
        try:
            findings += one(scenario)
        except SpecError as error:
            findings += error.findings
    return findings


def _names(scenario: Scenario) -> Iterator[Finding]:
    software = scenario.software
    choices = (
        ("software.framework", software.framework, stacks(), "software stack"),
        ("software.attention", software.attention, tuple(ATTENTION), "attention"),
        ("software.optimizer", software.optimizer, tuple(FORMS), "optimizer"),
        ("collective_algorithm", scenario.collective_algorithm, ("auto", *algorithms()), "algorithm"),
    )
    for path, value, known, what in choices:
        if value not in known:
            yield Finding(path, f"'{value}': no such {what}{nearest(value, known)}")
    for find, value in (
        (find_schedule, scenario.parallelism.schedule),
        (find_policy, scenario.parallelism.sharding),
    ):
        try:
            find(value)
        except SpecError as error:
            yield from error.findings


def _mesh(scenario: Scenario) -> Iterator[Finding]:
    parallelism, gpus = scenario.parallelism, scenario.cluster.gpus
    product = parallelism.tp * parallelism.cp * parallelism.pp * parallelism.dp
    if product != gpus:
        yield Finding(
            "parallelism",
            f"tp {parallelism.tp} x cp {parallelism.cp} x pp {parallelism.pp} x dp {parallelism.dp} = "
            f"{product}: expected cluster.gpus ({gpus})",
        )
        return
    build_mesh(parallelism)


def _batch(scenario: Scenario) -> Iterator[Finding]:
    batch, dp = scenario.batch, scenario.parallelism.dp
    each = batch.micro_batch * dp
    if batch.global_batch % each:
        yield Finding(
            "batch.global_batch",
            f"{batch.global_batch}: expected a multiple of micro_batch x dp ({batch.micro_batch} x "
            f"{dp} = {each})",
        )


def _stages(scenario: Scenario) -> Iterator[Finding]:
    parallelism, model = scenario.parallelism, scenario.model
    try:
        plan = find_schedule(parallelism.schedule)
    except SpecError:
        return
    virtual = plan.virtual_stages or parallelism.virtual_stages
    layers = sum(layer.repeat for layer in model.layers) if isinstance(model, LayerList) else model.layers
    if parallelism.pp * virtual > 1 or parallelism.layers_per_stage:
        split_layers(layers, plan.parts(parallelism.pp, virtual), parallelism.layers_per_stage)
    if virtual > 1 and parallelism.pp == 1:
        yield Finding("parallelism.virtual_stages", f"{virtual}: expected 1 where pp is 1")
    elif scenario.micro_batches:
        plan.order(0, parallelism.pp, scenario.micro_batches, virtual)


def _divides(scenario: Scenario) -> Iterator[Finding]:
    model, parallelism = scenario.model, scenario.parallelism
    if isinstance(model, LayerList):
        for axis in ("tp", "cp", "ep"):
            if getattr(parallelism, axis) > 1:
                yield Finding(f"parallelism.{axis}", "a list of layers can only be split by dp and pp")
        if scenario.recompute.kind != "none":
            yield Finding("recompute", "a list of layers does not say what a layer keeps: expected none")
        return
    for name in ("heads", "ffn"):
        value = getattr(model, name)
        if value % parallelism.tp:
            yield Finding("parallelism.tp", f"{parallelism.tp}: does not divide the model's {name} ({value})")
    if scenario.batch.sequence_length % (
        parallelism.cp * (parallelism.tp if parallelism.sequence_parallel else 1)
    ):
        yield Finding(
            "batch.sequence_length",
            f"{scenario.batch.sequence_length}: does not divide over cp and sequence-parallel tp",
        )
    if parallelism.expert_tp and parallelism.tp % parallelism.expert_tp:
        yield Finding(
            "parallelism.expert_tp",
            f"{parallelism.expert_tp}: does not divide tp ({parallelism.tp})",
        )
    yield from _imbalance(scenario, model)
    yield from _context_parallel(scenario, model)
    if parallelism.ep > 1:
        if model.experts is None:
            yield Finding("parallelism.ep", f"{parallelism.ep}: the model has no experts")
        elif model.experts.count % parallelism.ep:
            yield Finding(
                "parallelism.ep", f"{parallelism.ep}: does not divide the experts ({model.experts.count})"
            )
    if (
        model.max_positions
        and model.position == "learned"
        and scenario.batch.sequence_length > model.max_positions
    ):
        yield Finding(
            "batch.sequence_length",
            f"{scenario.batch.sequence_length}: the model has positions for {model.max_positions}",
        )


def _imbalance(scenario: Scenario, model: Transformer) -> Iterator[Finding]:
    imbalance, ep = scenario.batch.expert_imbalance, scenario.parallelism.ep
    if imbalance == 1:
        return
    expected = ""
    if model.experts is None or ep == 1:
        expected = "1 without parallelism.ep"
    elif model.experts.capacity_factor:
        expected = "1 with a capacity factor, which pads every expert's tokens to the same"
    elif imbalance > ep:
        expected = f"at most parallelism.ep ({ep})"
    if expected:
        yield Finding("batch.expert_imbalance", f"{imbalance:g}: expected {expected}")


def _overlap(scenario: Scenario) -> Iterator[Finding]:
    parallelism = scenario.parallelism
    if scenario.overlap.tp and parallelism.tp > 1 and not parallelism.sequence_parallel:
        yield Finding("overlap.tp", "true: expected parallelism.sequence_parallel: true with it")


def _context_parallel(scenario: Scenario, model: Transformer) -> Iterator[Finding]:
    parallelism, length = scenario.parallelism, scenario.batch.sequence_length
    cp, kind = parallelism.cp, parallelism.cp_kind
    if kind not in ways():
        yield Finding("parallelism.cp_kind", f"'{kind}': no such way{nearest(kind, ways())}")
    if cp == 1:
        return
    heads = model.heads // parallelism.tp
    if kind == "all-to-all" and heads % cp:
        yield Finding(
            "parallelism.cp", f"{cp}: does not divide the heads of a TP rank ({heads}), as all-to-all needs"
        )
    if kind == "ring" and length % (2 * cp):
        yield Finding(
            "batch.sequence_length", f"{length}: expected a multiple of 2 x cp ({2 * cp}), as ring needs"
        )
    if kind == "ring" and scenario.software.attention == "unfused":
        yield Finding("software.attention", "'unfused': expected fused attention, as ring needs")


def _precision(scenario: Scenario) -> Iterator[Finding]:
    name = scenario.precision.partition("-")[0]
    for gpu in (scenario.cluster.gpu, *scenario.cluster.node_gpus.values()):
        if name not in gpu.peak_flops_per_s:
            yield Finding("precision", f"{scenario.precision}: {gpu.name} has no {name} units")


def _rank_map(scenario: Scenario) -> Iterator[Finding]:
    rank_map, gpus = scenario.parallelism.rank_map, scenario.cluster.gpus
    if rank_map and sorted(rank_map) != list(range(gpus)):
        yield Finding("parallelism.rank_map", f"expected each of 0 to {gpus - 1} once")


def _nodes(scenario: Scenario) -> Iterator[Finding]:
    for number, fault in enumerate(scenario.faults):
        for rank in fault.place.ranks:
            if rank >= scenario.cluster.gpus:
                yield Finding(f"faults[{number}].rank", f"{rank}: expected 0 to {scenario.cluster.gpus - 1}")
