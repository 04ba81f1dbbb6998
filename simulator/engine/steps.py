"""Only when steps begin and end: what a run that is made for its step time has to tell."""

from __future__ import annotations

import numpy as np

from simulator.engine.choice import choose_engine, run_lanes
from simulator.engine.fold import fold
from simulator.engine.setting import Floats, Setting
from simulator.timeline import Lane


def step_times(setting: Setting) -> tuple[tuple[Lane, ...], Floats]:
    """The lanes and the (start, end) of their steps, shape (lanes, steps, 2), as `run` would give them."""
    cast = fold(setting)
    choice = choose_engine(setting, cast)
    if choice.engine == "lanes":
        timeline = run_lanes(setting, choice)
        return timeline.ranks, timeline.steps
    from simulator.engine import events

    return cast.lanes, np.stack([lane.steps() for lane in events.play(cast).lanes])
