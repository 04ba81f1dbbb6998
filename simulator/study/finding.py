"""What a diagnosis found: the one value that reports and JSON are made of, whatever was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.analysis.reading import EDGES_S, Evidence, Idle, Traffic, known, plain_traffic
from simulator.analysis.result import Item, Result
from simulator.study.worth import Worth
from simulator.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Cause:
    """`seconds` of a step, and points of MFU if it were gone."""

    cause: str
    seconds: float
    mfu_points: float
    confidence: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that reports and JSON show. NaN: what was read does not tell it.

    `title`: what was read; `about`: the same for machines. `host`: seconds of a step by what the host did
    while the GPU had nothing to run. `suspects`: one metric each, shares of the step (of HBM: of its
    bandwidth). `waterfall`: the step by item, in order; they add up to it. `first_step`: the first that counts.
    """

    title: str
    about: Mapping[str, Any]
    step_predicted_s: float
    step_s: float
    mfu: float
    idle: Idle
    host: Mapping[str, float]
    evidence: Mapping[str, tuple[Evidence, ...]]
    collectives: Mapping[str, Traffic]
    optimizer_s: float
    suspects: Mapping[str, float]
    spread: Mapping[str, Any]
    causes: tuple[Cause, ...]
    waterfall: tuple[Item, ...]
    timeline: Timeline
    first_step: int = 0
    result: Result | None = None
    worth: Worth | None = None
    notes: tuple[str, ...] = ()

    @property
    def profiled(self) -> bool:
        """Whether a profiler's traces were read, not a simulated run."""
        return "traces" in self.about

    @property
    def to_explain_s(self) -> float:
        return self.step_s - self.step_predicted_s

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, described in docs/reference/diagnosis.md; None for NaN."""
        return {
            **self.about,
            "step_predicted_s": known(self.step_predicted_s),
            "step_s": self.step_s,
            "to_explain_s": known(self.to_explain_s),
            "mfu": known(self.mfu),
            "gpu_idle": {
                "seconds": self.idle.seconds,
                "share": self.idle.share,
                "count": self.idle.count,
                "between_launches_s": self.idle.inside_s,
                "quantiles_s": dict(zip(("p50", "p90", "max"), self.idle.quantiles_s(), strict=True)),
                "histogram": {"edges_s": list(EDGES_S), "counts": list(self.idle.histogram())},
            },
            "gaps": dict(self.host),
            "evidence": {
                name: [{part: getattr(one, part) for part in one.__slots__} for one in shown]
                for name, shown in self.evidence.items()
            },
            "collectives": plain_traffic(self.collectives),
            "optimizer_s": self.optimizer_s,
            "suspects": {name: known(value) for name, value in self.suspects.items()},
            "spread": dict(self.spread),
            "waterfall": [
                {"name": item.name, "seconds": item.seconds, "mfu_points": item.mfu_points}
                for item in self.waterfall
            ],
            "causes": [cause.to_dict() for cause in self.causes],
            "notes": list(self.notes),
            **({"worth": self.worth.to_dict()} if self.worth is not None else {}),
        }
