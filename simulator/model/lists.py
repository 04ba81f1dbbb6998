"""A plain list of layers as blocks: FLOPs and bytes at a roofline, or measured times."""

from __future__ import annotations

from simulator.model.blocks import Block, Kernel, Parameter, Run
from simulator.spec import LayerList, PlainLayer, Scenario


def list_blocks(scenario: Scenario, model: LayerList) -> tuple[Block, ...]:
    """One block a layer; a layer that repeats stands as often as it says."""
    return tuple(
        _block(scenario, model, layer, f"{layer.name} #{number}" if layer.repeat > 1 else layer.name)
        for layer in model.layers
        for number in range(layer.repeat)
    )


def _block(scenario: Scenario, model: LayerList, layer: PlainLayer, name: str) -> Block:
    samples = scenario.batch.micro_batch * scenario.batch.sequence_length
    sizes = layer.tensors or ((layer.parameters,) if layer.parameters else ())
    parameters = tuple(Parameter(f"{name} tensor {i}", size) for i, size in enumerate(sizes))
    precision = scenario.precision
    flops = layer.forward_flops * samples

    def kernel(way: str, times: float, measured_s: float | None) -> Kernel:
        if measured_s is not None:
            return Kernel(
                f"{name} {way}", "timed", flops=flops * times, launches=model.kernels_per_layer,
                model_flops=flops * times, time_s=measured_s * samples, precision=precision,
            )  # fmt: skip
        return Kernel(
            f"{name} {way}", "roofline", flops=flops * times,
            bytes=layer.forward_bytes * samples * times, launches=model.kernels_per_layer,
            model_flops=flops * times, precision=precision,
        )  # fmt: skip

    done = tuple(reversed(range(len(parameters))))
    measured = layer.backward_time_s
    if measured is None and layer.forward_time_s is not None:
        measured = 2 * layer.forward_time_s
    return Block(
        name,
        parameters,
        (Run((kernel("forward", 1.0, layer.forward_time_s),)),),
        (Run((kernel("backward", 2.0, measured),), "input", done),),
        activation_bytes=layer.activation_bytes * samples,
        boundary_bytes=layer.activation_bytes * samples,
    )
