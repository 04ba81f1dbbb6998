"""From a scenario to the blocks of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.model.blocks import Block
from simulator.model.context import Context, make_context
from simulator.model.ends import embedding_block, head_block
from simulator.model.flops import keys_of_layer
from simulator.model.layer import layer_block
from simulator.model.lists import list_blocks
from simulator.spec import LayerList, Recompute, Scenario, Transformer


def model_blocks(scenario: Scenario, parts: Sequence[int] = ()) -> tuple[Block, ...]:
    """Embedding, layers, head (or the layers of a list) as one rank of the scenario runs them.

    `parts`: layers of each virtual stage in the order of the model; none: all are one. Tensor, context and
    expert parallel sizes are applied, what is recomputed stands in the backward.
    Raises SpecError where sizes do not divide.
    """
    model = scenario.model
    if isinstance(model, LayerList):
        return list_blocks(scenario, model)
    context = make_context(scenario, model)
    return (
        embedding_block(context),
        *_layers(scenario, context, model, parts or (model.layers,)),
        head_block(context),
    )


def _layers(
    scenario: Scenario, context: Context, model: Transformer, parts: Sequence[int]
) -> Iterator[Block]:
    """Blocks of all layers; layers that are alike share their kernels, so that each is priced once."""
    recompute = scenario.recompute
    made: dict[tuple[bool, int, bool], Block] = {}
    places = [place for size in parts for place in range(size)]
    for layer, place in enumerate(places):
        whole = _whole(recompute, layer, place)
        keys = keys_of_layer(model, layer, scenario.batch.sequence_length)
        alike = (model.is_moe_layer(layer), keys, whole)
        if alike not in made:
            made[alike] = layer_block(context, layer, recompute, whole)
        block = made[alike]
        prefix, own = block.name, f"layer {layer}"
        if prefix == own:
            yield block
            continue
        parameters = tuple(replace(one, name=one.name.replace(prefix, own, 1)) for one in block.parameters)
        yield replace(block, name=own, parameters=parameters)


def _whole(recompute: Recompute, layer: int, place: int) -> bool:
    """Whether all of a layer is recomputed; `place`: in its stage."""
    return {
        "full": True,
        "every": layer % recompute.every == 0,
        "first": place < recompute.first,
    }.get(recompute.kind, False)
