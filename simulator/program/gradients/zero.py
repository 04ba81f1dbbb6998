"""ZeRO stages 1 and 2 (Rajbhandari et al. 2020, arXiv:1910.02054): every rank updates its own part.

Gradients are reduce-scattered in buckets, each rank runs the optimizer on 1 / dp of the parameters, and
the new parameters are all-gathered: bucket by bucket, in the order in which the next forward needs them,
so that the gathers hide behind it (Megatron-LM's overlapped parameter gather), or all at once.

Stage 1 reduces once a step; stage 2 keeps no whole gradients, so it reduces after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model.blocks import Block, Parameter
from simulator.parallel.mesh import Mesh
from simulator.program.emit import Emitter
from simulator.program.gradients.base import DTYPE_BYTES, gradient_policy
from simulator.program.gradients.buckets import Bucket
from simulator.program.gradients.ddp import STREAM, DistributedDataParallel
from simulator.program.instructions import Collective, Record, Wait
from simulator.spec import Scenario
from simulator.units import show_bytes

#: Bytes of a parameter as it is gathered.
PARAMETER_BYTES = 2


@gradient_policy("zero-1")
class Zero1(DistributedDataParallel):
    """Reduce-scatter of gradients once a step, all-gather of parameters."""

    kind = "reduce-scatter"

    def __init__(self, scenario: Scenario, mesh: Mesh, chunks: Sequence[Sequence[Block]], emit: Emitter):
        super().__init__(scenario, mesh, chunks, emit)
        self._gathered: dict[int, str] = {}  # bucket -> event
        self._pending: list[Bucket] = []

    def optimizer_parameters(self) -> list[tuple[tuple[Parameter, ...], float]]:
        return self.sharded_parameters("dp", "expert-dp")

    def before_step(self) -> None:
        """Gather what the step before has updated, the parameters of the first layers first."""
        if self.scenario.overlap.param_gather:
            for bucket in reversed(self.buckets):
                event = self._gather(bucket)
                self._gathered[bucket.number] = event

    def before_forward(self, chunk: int, block: int, micro_batch: int) -> None:
        del micro_batch
        needed = {
            self._of[key].number
            for key in self._of
            if key[0] == chunk and key[1] == block and self._of[key].number in self._gathered
        }
        for number in sorted(needed, reverse=True):
            self.emit.add(Wait(self._gathered.pop(number), "compute"))

    def after_optimizer(self) -> None:
        if self.scenario.overlap.param_gather or not self.buckets:
            return
        self.emit.order("compute", STREAM)
        event = ""
        for bucket in reversed(self.buckets):
            event = self._gather(bucket)
        self.emit.add(Wait(event, "compute"))

    def _gather(self, bucket: Bucket) -> str:
        """All-gather a bucket's parameters; returns the event that says they are there."""
        element = DTYPE_BYTES[self.scenario.software.gradient_dtype]
        size = bucket.size_bytes / element * PARAMETER_BYTES
        event = self.emit.new_event()
        self.emit.add(
            Collective(
                "all-gather",
                bucket.group,
                size,
                STREAM,
                name=f"all-gather bucket {bucket.number} {show_bytes(size)}",
                algorithm=self.scenario.collective_algorithm,
            ),
            Record(event, STREAM),
        )
        return event


@gradient_policy("zero-2")
class Zero2(Zero1):
    """The same with gradients reduced after every micro-batch."""

    def _synchronises(self, chunk: int, micro_batch: int) -> bool:
        del chunk, micro_batch
        return True
