"""How gradients are averaged and the optimizer's state is spread over the data-parallel ranks.

A policy sees the backward as it is emitted and adds collectives; each is one module, registered by the
name that `parallelism.sharding` has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Final, TypeVar

from simulator.errors import SpecError, nearest
from simulator.model.blocks import Block, Parameter
from simulator.parallel.mesh import Mesh
from simulator.program.emit import Emitter
from simulator.program.instructions import Collective
from simulator.spec import Scenario

#: bytes of one element
DTYPE_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter as the rank holds it: its place in the chunk's blocks."""

    chunk: int
    block: int
    index: int
    parameter: Parameter


class GradientPolicy:
    """What a policy may add. The base adds nothing: one rank, or gradients that nobody averages.

    `chunks`: the blocks of each virtual stage of this role.
    """

    def __init__(self, scenario: Scenario, mesh: Mesh, chunks: Sequence[Sequence[Block]], emit: Emitter):
        self.scenario = scenario
        self.mesh = mesh
        self.chunks = chunks
        self.emit = emit
        #: by chunk: the micro-batch whose backward is the last of a step
        self.last: Mapping[int, int] = {}

    def is_last(self, chunk: int, micro_batch: int) -> bool:
        """Whether all gradients of a chunk are there once those of this micro-batch are."""
        return micro_batch == self.last.get(chunk, self.scenario.micro_batches - 1)

    @property
    def held(self) -> list[Held]:
        """All parameters of the role in order of registration."""
        return [
            Held(c, b, i, parameter)
            for c, blocks in enumerate(self.chunks)
            for b, block in enumerate(blocks)
            for i, parameter in enumerate(block.parameters)
        ]

    def optimizer_parameters(self) -> list[tuple[tuple[Parameter, ...], float]]:
        """Groups of tensors that the optimizer of a rank updates, with the part of each that is its own."""
        return [(tuple(held.parameter for held in self.held), 1.0)]

    def sharded_parameters(self, group: str, expert_group: str) -> list[tuple[tuple[Parameter, ...], float]]:
        """`optimizer_parameters` where the ranks of a group share the work."""
        result = []
        for name, expert in ((group, False), (expert_group, True)):
            chosen = tuple(one.parameter for one in self.held if one.parameter.expert is expert)
            if chosen:
                result.append((chosen, 1.0 / self.mesh.size(name)))
        return result

    def reduce_replicated(self) -> None:
        """With sequence parallelism the norms' gradients are partial: all-reduce them over TP.

        (Megatron-LM, "allreduce of layernorm gradients"; Korthikanti et al. 2022.)
        """
        if not self.scenario.parallelism.sequence_parallel or self.mesh.size("tp") == 1:
            return
        numel = sum(one.parameter.numel for one in self.held if one.parameter.replicated)
        if numel:
            size = float(numel * DTYPE_BYTES[self.scenario.software.gradient_dtype])
            self.emit.order("compute", "tp")
            self.emit.add(Collective("all-reduce", "tp", size, "tp", name="all-reduce replicated gradients"))
            self.emit.order("tp", "compute")

    def before_step(self) -> None:
        """At the start of a step."""

    def before_forward(self, chunk: int, block: int, micro_batch: int) -> None:
        """Before a block's forward (gather its parameters, say)."""

    def after_forward(self, chunk: int, block: int, micro_batch: int) -> None:
        """After a block's forward."""

    def before_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        """Before a block's backward."""

    def gradients_ready(self, chunk: int, block: int, indices: tuple[int, ...], micro_batch: int) -> None:
        """Gradients of a block have become whole in the backward of a micro-batch."""

    def after_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        """After a block's backward."""

    def after_input_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        """After the input's half of a block's backward, where the weights' half comes later."""

    def before_optimizer(self) -> None:
        """All backwards are issued: whatever is left, and wait for it."""

    def after_optimizer(self) -> None:
        """The parameters are updated (gather them, say)."""


_POLICIES: Final[dict[str, type[GradientPolicy]]] = {}
_P = TypeVar("_P", bound=type[GradientPolicy])


def gradient_policy(name: str) -> Callable[[_P], _P]:
    """Register a policy under a name of `parallelism.sharding`."""

    def register(cls: _P) -> _P:
        _POLICIES[name] = cls
        return cls

    return register


def policies() -> Mapping[str, type[GradientPolicy]]:
    """All policies by name."""
    import simulator.program.gradients as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _POLICIES


def find_policy(name: str) -> type[GradientPolicy]:
    """The policy `name`; raises SpecError with the nearest name."""
    known = policies()
    if name not in known:
        raise SpecError.of("parallelism.sharding", f"'{name}': unknown sharding{nearest(name, known)}")
    return known[name]
