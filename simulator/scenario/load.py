"""From a scenario file (or a mapping, or a bundled name) to a Scenario."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator import spec
from simulator.errors import Finding, ScenarioError, SpecError, nearest
from simulator.scenario.bundled import bundled, scenarios
from simulator.scenario.clusters import gpu_of, load_topology, topology_of
from simulator.scenario.consistency import check
from simulator.scenario.faults import read_faults
from simulator.scenario.fields import (
    ClusterFields,
    DistributionFields,
    EveryFields,
    FirstFields,
    LengthFields,
    ParallelismFields,
    ScenarioFields,
)
from simulator.scenario.models import model_of
from simulator.scenario.source import Source, override, read
from simulator.scenario.validate import validate
from simulator.spec import Scenario


def load(
    source: str | Path | Mapping[str, Any] | Scenario, overrides: Mapping[str, Any] | None = None
) -> Scenario:
    """The scenario of a path, a bundled name or a mapping; `overrides` are dotted paths with values.

    Raises ScenarioError with every finding: file, line, path, value, what was expected.
    """
    if isinstance(source, Scenario):
        if overrides:
            raise ScenarioError(Finding("", "overrides need a file or a mapping, not a Scenario"))
        return source
    found, folder = _source(source)
    if overrides:
        override(found, overrides)
    fields, findings = validate(ScenarioFields, found.values)
    if fields is None:
        raise found.refuse([*findings, *_early(found.values)])
    builder = _Builder(fields, folder)
    scenario = builder.scenario()
    if builder.findings or scenario is None:
        raise found.refuse(builder.findings)
    problems = check(scenario)
    if problems:
        raise found.refuse(problems)
    return scenario


def _source(source: str | Path | Mapping[str, Any]) -> tuple[Source, Path | None]:
    if isinstance(source, Mapping):
        return Source(None, dict(source)), None
    name = str(source)
    if name in scenarios():
        path = bundled("scenarios") / f"{name}.yaml"
    else:
        path = Path(source)
        if not path.exists() and path.suffix not in (".yaml", ".yml"):
            message = f"'{name}': no such scenario{nearest(name, scenarios())}"
            raise ScenarioError(Finding("", message))
    return read(path), path.parent


def _early(values: Any) -> list[Finding]:
    """What can be said of the faults even though other fields are wrong."""
    faults = values.get("faults") if isinstance(values, Mapping) else None
    if not isinstance(faults, list) or not all(isinstance(one, Mapping) for one in faults):
        return []
    return read_faults(faults)[1]


class _Builder:
    """Turns checked fields into values, gathering findings."""

    def __init__(self, fields: ScenarioFields, folder: Path | None):
        self._fields = fields
        self._folder = folder
        self.findings: list[Finding] = []

    def scenario(self) -> Scenario | None:
        fields = self._fields
        model, cluster = self._model(), self._cluster(fields.cluster)
        faults, wrong = read_faults(list(fields.faults))
        self.findings += wrong
        parallelism = self._parallelism(fields.parallelism, fields.cluster.gpus)
        if model is None or cluster is None or parallelism is None or self.findings:
            return None
        try:
            return Scenario(
                name=fields.name or model.name,
                model=model,
                cluster=cluster,
                batch=self._batch(),
                precision=fields.precision,
                parallelism=parallelism,
                recompute=self._recompute(),
                offload=spec.Offload(fields.offload.layers),
                overlap=self._overlap(),
                software=self._software(),
                dataloader=self._dataloader(),
                checkpoint=spec.Checkpoint(fields.checkpoint.every_steps, fields.checkpoint.duration),
                faults=faults,
                run=self._run(),
                collective_algorithm=fields.collective_algorithm,
            )
        except SpecError as error:
            self.findings += error.findings
            return None

    def _under(self, prefix: str, error: SpecError) -> None:
        self.findings += [finding.under(prefix) for finding in error.findings]

    def _model(self) -> spec.Model | None:
        try:
            return model_of(self._fields.model, self._folder)[0]
        except ScenarioError:
            raise
        except SpecError as error:
            self._under("model", error)
            return None

    def _cluster(self, fields: ClusterFields) -> spec.Cluster | None:
        topology = self._topology(fields.topology)
        if topology is None:
            return None
        gpu = self._gpu(fields.gpu or topology.gpu, "cluster.gpu")
        if gpu is None:
            return None
        others = {}
        for node, name in fields.node_gpus.items():
            other = self._gpu(name, f"cluster.node_gpus.{node}")
            if other is not None:
                others[node] = other
        return spec.Cluster(topology, fields.gpus, gpu, others)

    def _topology(self, value: str | Mapping[str, Any]) -> spec.Topology | None:
        if isinstance(value, str):
            near = self._folder / value if self._folder is not None else None
            try:
                return load_topology(near if near is not None and near.is_file() else value)
            except ScenarioError as error:
                if any(finding.file for finding in error.findings):
                    raise
                self.findings += error.findings
                return None
        try:
            return topology_of(value)
        except SpecError as error:
            self._under("cluster.topology", error)
            return None

    def _gpu(self, value: str | Mapping[str, Any], path: str) -> spec.Gpu | None:
        if not value:
            self.findings.append(Finding(path, "missing: the topology names none"))
            return None
        try:
            return gpu_of(value)
        except SpecError as error:
            self._under(path, error)
            return None

    def _parallelism(self, fields: ParallelismFields, gpus: int) -> spec.Parallelism | None:
        values = fields.model_dump()
        rest = fields.tp * fields.cp * fields.pp
        if values["dp"] is None:
            if gpus % rest:
                message = f"{gpus}: is not a multiple of tp x cp x pp ({rest})"
                self.findings.append(Finding("cluster.gpus", message))
                return None
            values["dp"] = gpus // rest
        values["layers_per_stage"] = tuple(values["layers_per_stage"])
        values["order"] = tuple(values["order"])
        rank_map = self._rank_map(fields.rank_map)
        if rank_map is None:
            return None
        values["rank_map"] = rank_map
        return spec.Parallelism(**values)

    def _rank_map(self, value: list[int] | str) -> tuple[int, ...] | None:
        if not isinstance(value, str):
            return tuple(value)
        path = Path(value) if self._folder is None else self._folder / value
        try:
            lines = path.read_text(encoding="utf-8").split()
            return tuple(int(line) for line in lines)
        except (OSError, UnicodeDecodeError, ValueError) as error:
            message = f"'{value}': cannot be read as one GPU number a line: {error}"
            self.findings.append(Finding("parallelism.rank_map", message))
            return None

    def _batch(self) -> spec.Batch:
        fields = self._fields.batch
        documents = None if fields.documents is None else self._documents(fields.documents)
        return spec.Batch(
            fields.micro_batch,
            fields.global_batch,
            fields.sequence_length,
            documents,
            fields.expert_imbalance,
        )

    def _documents(self, fields: LengthFields) -> spec.Documents | None:
        where = "batch.documents"
        if fields.lengths is not None:
            if fields.distribution is not None or fields.mean is not None:
                self.findings.append(
                    Finding(where, "expected a distribution with its mean, or lengths, not both")
                )
            lengths = fields.lengths
            if isinstance(lengths, str):
                lengths = self._whole_numbers(lengths, f"{where}.lengths", "length")
            if not lengths:
                self.findings.append(Finding(f"{where}.lengths", "expected one length or more"))
                return None
            return spec.Documents(lengths=tuple(lengths))
        for name, value in (("distribution", fields.distribution), ("mean", fields.mean)):
            if value is None:
                self.findings.append(Finding(f"{where}.{name}", "missing"))
        if fields.distribution is None or fields.mean is None:
            return None
        return spec.Documents(spec.Distribution(fields.distribution, fields.mean, fields.cv))

    def _whole_numbers(self, name: str, where: str, what: str) -> list[int]:
        """Whole numbers of 1 or more, one a line of a file beside the scenario."""
        path = Path(name) if self._folder is None else self._folder / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            self.findings.append(Finding(where, f"'{name}': cannot be read: {error}"))
            return []
        numbers = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text:
                continue
            if not (text.isascii() and text.isdecimal()) or len(text) > 18 or int(text) < 1:
                message = (
                    f"line {number}: {text[:40]!r}: expected one {what} a line, a whole number of 1 or more"
                )
                self.findings.append(Finding(where, f"'{name}': {message}"))
                return []
            numbers.append(int(text))
        return numbers

    def _recompute(self) -> spec.Recompute:
        value = self._fields.recompute
        if isinstance(value, EveryFields):
            return spec.Recompute("every", value.every)
        if isinstance(value, FirstFields):
            return spec.Recompute("first", first=value.first)
        return spec.Recompute(value)

    def _overlap(self) -> spec.Overlap:
        fields = self._fields.overlap
        return spec.Overlap(
            grad_reduce=fields.grad_reduce,
            bucket_size_bytes=fields.bucket_size,
            first_bucket_bytes=fields.first_bucket,
            param_gather=fields.param_gather,
            tp=fields.tp,
            prefetch=fields.prefetch,
        )

    def _software(self) -> spec.Software:
        values = self._fields.software.model_dump()
        values["launch_time_s"] = values.pop("launch_time")
        return spec.Software(**values)

    def _dataloader(self) -> spec.Dataloader:
        fields = self._fields.dataloader
        time = fields.load_time
        if isinstance(time, DistributionFields):
            load_time = spec.Distribution(time.distribution, time.mean, time.cv)
        else:
            load_time = spec.Distribution("constant", float(time))
        return spec.Dataloader(
            workers=fields.workers,
            prefetch_factor=fields.prefetch_factor,
            load_time=load_time,
            pin_memory=fields.pin_memory,
            copy_stream=fields.copy_stream,
            batch_bytes=fields.batch_bytes,
        )

    def _run(self) -> spec.Run:
        values = self._fields.run.model_dump()
        values["memory_bytes"] = values.pop("memory")
        if "warmup" not in self._fields.run.model_fields_set:
            values["warmup"] = min(values["warmup"], max(0, values["steps"] - 1))
        try:
            return spec.Run(**values)
        except SpecError as error:
            raise SpecError([finding.under("run") for finding in error.findings]) from error
