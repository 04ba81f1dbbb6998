"""From a scenario to the blocks of its model."""

from __future__ import annotations

from simulator.model.blocks import Block
from simulator.model.context import make_context
from simulator.model.ends import embedding_block, head_block
from simulator.model.layer import layer_block
from simulator.model.lists import list_blocks
from simulator.spec import LayerList, Scenario


def model_blocks(scenario: Scenario) -> tuple[Block, ...]:
    """Embedding, layers, head (or the layers of a list) as one rank of the scenario runs them.

    Tensor, context and expert parallel sizes are applied, what is recomputed stands in the backward.
    Raises SpecError where sizes do not divide.
    """
    model = scenario.model
    if isinstance(model, LayerList):
        return list_blocks(scenario, model)
    context = make_context(scenario, model)
    layers = (layer_block(context, layer, scenario.recompute) for layer in range(model.layers))
    return (embedding_block(context), *layers, head_block(context))
