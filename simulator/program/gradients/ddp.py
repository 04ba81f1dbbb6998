"""Data parallelism as PyTorch's DistributedDataParallel does it.

Every rank holds all parameters and all optimizer state. In the backward that synchronises (the last
micro-batch under `no_sync`, every one without it) a bucket is all-reduced on the data-parallel stream
as soon as its last gradient is whole; buckets go in order. Without overlap all of them are reduced
after the backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model.blocks import Block
from simulator.parallel.mesh import Mesh
from simulator.program.emit import Emitter
from simulator.program.gradients.base import DTYPE_BYTES, GradientPolicy, gradient_policy
from simulator.program.gradients.buckets import Bucket, build_buckets
from simulator.program.instructions import Collective, Record, Wait
from simulator.spec import Scenario
from simulator.units import show_bytes

STREAM = "dp"


@gradient_policy("ddp")
class DistributedDataParallel(GradientPolicy):
    """All-reduce in buckets."""

    kind = "all-reduce"

    def __init__(self, scenario: Scenario, mesh: Mesh, chunks: Sequence[Sequence[Block]], emit: Emitter):
        super().__init__(scenario, mesh, chunks, emit)
        overlap = scenario.overlap
        element = DTYPE_BYTES[scenario.software.gradient_dtype]
        self.buckets = [
            bucket
            for bucket in build_buckets(
                self.held, element, overlap.first_bucket_bytes, overlap.bucket_size_bytes
            )
            if mesh.size(bucket.group) > 1
        ]
        self._of = {key: bucket for bucket in self.buckets for key in bucket.all}
        self._queue: list[Bucket] = []
        self._begin()

    def _begin(self) -> None:
        self._queue = list(self.buckets)
        for bucket in self.buckets:
            bucket.missing = set(bucket.all)

    def _synchronises(self, chunk: int, micro_batch: int) -> bool:
        return self.is_last(chunk, micro_batch) or not self.scenario.software.defer_grad_sync

    def gradients_ready(self, chunk: int, block: int, indices: tuple[int, ...], micro_batch: int) -> None:
        """Reduce the buckets that are whole now, in order; buckets of other groups do not wait."""
        if not self._synchronises(chunk, micro_batch):
            return
        for index in indices:
            bucket = self._of.get((chunk, block, index))
            if bucket is not None:
                bucket.missing.discard((chunk, block, index))
        if self.scenario.overlap.grad_reduce:
            self._reduce_whole()
        if all(not bucket.missing for bucket in self.buckets) and not self.is_last(chunk, micro_batch):
            self._reduce_whole()
            self._begin()

    def _reduce_whole(self) -> None:
        for group in dict.fromkeys(bucket.group for bucket in self._queue):
            for bucket in [one for one in self._queue if one.group == group]:
                if bucket.missing:
                    break
                self._queue.remove(bucket)
                self._reduce(bucket)

    def _reduce(self, bucket: Bucket) -> None:
        self.emit.order("compute", STREAM)
        self.emit.add(
            Collective(
                self.kind,
                bucket.group,
                bucket.size_bytes,
                STREAM,
                name=f"{self.kind} bucket {bucket.number} {show_bytes(bucket.size_bytes)}",
                algorithm=self.scenario.collective_algorithm,
            )
        )

    def before_optimizer(self) -> None:
        """Reduce what is left and let compute wait for all of it."""
        self.reduce_replicated()
        if not self.buckets:
            return
        self._reduce_whole()
        event = self.emit.new_event()
        self.emit.add(Record(event, STREAM), Wait(event, "compute"))
