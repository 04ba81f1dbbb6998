"""Software stacks: host times with their sources."""

from __future__ import annotations

import pytest

from simulator.errors import SpecError
from simulator.hardware import stack, stacks
from simulator.model.blocks import Block

LAYER = Block("layer", (), (), ())


@pytest.mark.parametrize("name", stacks())
def test_host_times_are_sourced_and_of_the_order_of_microseconds(name: str) -> None:
    found = stack(name)
    assert found.source
    assert 1e-6 <= found.launch_time_s <= 20e-6
    assert 1e-6 <= found.collective_host_s <= 1e-3
    assert found.optimizer_host_s(1000) > found.optimizer_host_s(1) > 0


def test_megatron_deepspeed_spends_what_small_models_show() -> None:
    """About 3.3 ms a layer and micro-batch with full recomputation, launches included (vTrain's rows)."""
    found = stack("megatron-deepspeed")
    python_s = 2 * found.forward_host_s(LAYER) + found.backward_host_s(LAYER)
    assert 2.2e-3 < python_s < 3.3e-3


def test_compiled_layers_cost_the_host_less_than_eager_ones() -> None:
    assert stack("compile").forward_host_s(LAYER) < stack("pytorch").forward_host_s(LAYER)


def test_an_unknown_stack_is_met_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="megatron"):
        stack("megatorn")
