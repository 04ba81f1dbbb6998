"""Which blocks of the model stand on which pipeline stage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from simulator.errors import SpecError
from simulator.model.blocks import Block
from simulator.model.build import model_blocks
from simulator.parallel.schedules import Schedule, find_schedule
from simulator.spec import Scenario, Transformer


def split_layers(layers: int, parts: int, sizes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Layers of each of `parts` parts of the model, first to last.

    >>> split_layers(126, 16, (7, *[8] * 14, 7))[:2]
    (7, 8)

    Raises SpecError where an even split is asked for and there is none.
    """
    if sizes:
        if len(sizes) != parts or sum(sizes) != layers:
            raise SpecError.of(
                "parallelism.layers_per_stage",
                f"{list(sizes)}: expected {parts} numbers that add up to {layers} layers",
            )
        return sizes
    if layers % parts:
        raise SpecError.of(
            "parallelism.layers_per_stage",
            f"{layers} layers do not split evenly into {parts} virtual stages; say how: layers_per_stage",
        )
    return (layers // parts,) * parts


def stage_blocks(scenario: Scenario) -> tuple[tuple[tuple[Block, ...], ...], ...]:
    """The blocks of a scenario's model by [stage][chunk]. Raises SpecError where they do not fit the stages."""
    parallelism, model = scenario.parallelism, scenario.model
    plan = find_schedule(parallelism.schedule)
    virtual = plan.virtual_stages or parallelism.virtual_stages
    sizes = parallelism.layers_per_stage
    if isinstance(model, Transformer):
        blocks = model_blocks(
            scenario, split_layers(model.layers, plan.parts(parallelism.pp, virtual), sizes)
        )
    else:
        blocks = model_blocks(scenario)
    return assign(blocks, plan, parallelism.pp, virtual, sizes)


def assign(
    blocks: Sequence[Block], schedule: Schedule, stages: int, virtual_stages: int, sizes: tuple[int, ...]
) -> tuple[tuple[tuple[Block, ...], ...], ...]:
    """Blocks by [stage][chunk]. What comes before the first layer stands with it, what follows the last too."""
    parts = schedule.parts(stages, virtual_stages)
    places = [i for i, block in enumerate(blocks) if block.kind == "layer"]
    counts = split_layers(len(places), parts, sizes)
    edges, taken = [0], 0
    for count in counts[:-1]:
        taken += count
        edges.append(places[taken] if taken < len(places) else len(blocks))
    edges.append(len(blocks))
    in_order = [tuple(blocks[a:b]) for a, b in itertools.pairwise(edges)]
    return tuple(
        tuple(
            in_order[schedule.position(stage, chunk, stages, virtual_stages) % parts]
            for chunk in range(virtual_stages)
        )
        for stage in range(stages)
    )
