"""One layer's forward and backward: what a model with two more layers takes longer, halved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from simulator.study.simulate import load, make_setting
from simulator.study.validation.cases import Values
from simulator.timeline import Timeline


def layer_ms(part: str) -> Callable[[Values], float]:
    """Milliseconds of a layer's `part`: "forward", "backward" (with its recomputation), or both, "combined"."""
    return partial(_layer_ms, part)


def _layer_ms(part: str, values: Values) -> float:
    from simulator.engine import run

    model = values["model"]
    passes = []
    for more in (0, 2):
        longer = {**values, "model": {**model, "layers": model["layers"] + more}}
        setting = make_setting(load({**longer, "run": {"steps": 1, "warmup": 0}}, {}))
        passes.append(_passes(run(setting)))
    (forward, backward), (more_forward, more_backward) = passes
    found = {"forward": more_forward - forward, "backward": more_backward - backward}
    found["combined"] = found["forward"] + found["backward"]
    return 1e3 * found[part] / 2


def _passes(timeline: Timeline) -> tuple[float, float]:
    """Seconds from the start to the end of the forward, and on to the end of the backward."""
    device = timeline.device
    names = np.array(timeline.names)[device.name]
    forward = np.char.startswith(names, "forward")
    backward = np.char.startswith(names, "backward")
    turn = float(device.end_s[forward].max())
    return turn - float(device.start_s[forward].min()), float(device.end_s[backward].max()) - turn
