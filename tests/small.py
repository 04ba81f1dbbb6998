"""Small scenarios that tests start from."""

from __future__ import annotations

import copy
from typing import Any

from simulator import load, simulate
from simulator.analysis.result import Result
from simulator.engine.setting import Setting
from simulator.spec import Scenario
from simulator.study.simulate import make_setting

#: a GPT of about 120 million parameters on four DGX A100
BASE: dict[str, Any] = {
    "name": "small",
    "model": {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000},
    "cluster": {"topology": "dgx-a100", "gpus": 32},
    "batch": {"sequence_length": 1024, "micro_batch": 8, "global_batch": 256},
    "run": {"steps": 6, "warmup": 2},
}


def values(**changes: Any) -> dict[str, Any]:
    """BASE with fields changed: `overlap__grad_reduce=False` sets overlap.grad_reduce."""
    result = copy.deepcopy(BASE)
    for path, value in changes.items():
        here = result
        *way, last = path.split("__")
        for part in way:
            here = here.setdefault(part, {})
        here[last] = value
    return result


def scenario(**changes: Any) -> Scenario:
    return load(values(**changes))


def run(**changes: Any) -> Result:
    return simulate(values(**changes), allow_oom=True)


def setting(**changes: Any) -> Setting:
    return make_setting(scenario(**changes))
