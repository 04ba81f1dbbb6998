"""Blocks of the lanes engine give what its pieces of work give one by one."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engines import Quiet, host_time_s, made, meshes

from simulator.engine import events, lanes
from simulator.engine.block import Block, split
from simulator.engine.cast import unfolded
from simulator.engine.choice import Choice, run_lanes
from simulator.engine.setting import Setting
from simulator.timeline import Timeline

#: so much work that hosts run ahead, and blocks go in one piece
LARGE = {"hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 8000}


def heavy(values: dict[str, Any]) -> dict[str, Any]:
    batch = {**values["batch"], "sequence_length": 2048}
    return {**values, "model": {**values["model"], **LARGE}, "batch": batch}


def run_with(setting: Setting, cached: int) -> Timeline:
    with patch.multiple(lanes, _CACHED=cached, _FEWEST_PIECES=1):
        return run_lanes(setting, Choice("lanes", "a test"))


def spans(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """(what is exact, what is time) of every piece of work, by rank, stream and time."""
    device = timeline.device
    blocker, meeting = device.blocker, device.collective
    ends = np.where(blocker < 0, -1.0, device.end_s[blocker])
    at = timeline.collectives
    begin, first, last = (
        np.where(meeting < 0, -1.0, table[meeting]) if len(table) else np.full(len(meeting), -1.0)
        for table in (at.begin_s, at.first_s, at.last_rank)
    )
    order = np.lexsort(
        (device.end_s.round(12), device.start_s.round(12), device.step, device.stream, device.rank)
    )
    name = np.unique(timeline.names, return_inverse=True)[1][device.name]
    exact = np.stack([device.rank, device.stream, device.kind, name, blocker >= 0, last])
    drawn = [device.busy_s, device.fault_s, device.alone_s]
    times = np.stack(
        [device.start_s, device.end_s, device.issued_s, device.ready_s, ends, begin, first, *drawn]
    )
    return exact[:, order], times[:, order]


@settings(max_examples=40)
@given(meshes(), st.booleans())
def test_blocks_take_what_their_pieces_take_one_by_one(values: dict[str, Any], large: bool) -> None:
    setting = made(heavy(values) if large else values)
    whole, single = run_with(setting, 2**16), run_with(setting, 0)
    np.testing.assert_allclose(whole.steps, single.steps, rtol=0, atol=1e-9)
    np.testing.assert_allclose(host_time_s(whole), host_time_s(single), rtol=0, atol=1e-9)
    (exact, times), (exact_single, times_single) = spans(whole), spans(single)
    np.testing.assert_array_equal(exact, exact_single)
    np.testing.assert_allclose(times, times_single, rtol=0, atol=1e-9)


@settings(max_examples=25)
@given(meshes())
def test_blocks_agree_with_the_event_engine_where_hosts_run_ahead(values: dict[str, Any]) -> None:
    plain = made(heavy(values))
    quiet = Quiet(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    play = events.play(unfolded(quiet))
    if play.flows.shared:
        return
    timeline = run_with(quiet, 2**16)
    steps = np.stack([lane.steps() for lane in play.lanes])
    np.testing.assert_allclose(
        timeline.steps, steps[[lane.rank for lane in timeline.ranks]], rtol=0, atol=1e-9
    )


@settings(max_examples=25)
@given(meshes(), st.sampled_from([4, 64]))
def test_blocks_keep_every_operation_in_order(values: dict[str, Any], most: int) -> None:
    setting = made(values)
    for script in setting.scripts:
        operations = script.step(0).operations
        found = []
        for place, one in split(operations, frozenset({"world", "pp", "model"}), 64, most):
            pieces = one.items if isinstance(one, Block) else (one,)
            places = one.places if isinstance(one, Block) else (place,)
            found += list(zip(places, pieces, strict=True))
        assert found == list(enumerate(operations))
