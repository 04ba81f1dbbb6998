"""Fully sharded data parallelism, ZeRO-3 and hybrid sharding.

(Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054.)

Each block is a unit whose parameters live in parts on the ranks of the `shard` group. Before a unit's
forward they are all-gathered, after it freed again (unless it is the first or the last, which PyTorch
keeps as part of the root), gathered again before its backward, and its gradients reduce-scattered after.

Gathers and reductions of one process group run one after the other on one stream, in the order in which
the host issues them (PyTorch's ProcessGroupNCCL has one stream a group). A unit is gathered while the
one before it computes: `overlap.prefetch` units ahead. FSDP's rate limiter lets the host issue a gather
only when the unit two before has been computed (`limit_all_gathers`).

At the end of each backward compute waits for the reductions, so none of them reaches into the next
micro-batch.

Hybrid sharding (hsdp) shards within a group and all-reduces the shards' gradients among the replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.model.blocks import Block, Kernel, Parameter
from simulator.parallel.mesh import Mesh
from simulator.program.emit import Emitter
from simulator.program.gradients.base import DTYPE_BYTES, GradientPolicy, gradient_policy
from simulator.program.instructions import Collective, HostWait, Launch, Record, Segment, Wait
from simulator.spec import Scenario

#: Frameworks on FSDP's first version: flat parameters (no copies in and out), rate limiter.
FLAT_PARAMETERS: Final = frozenset({"llm-foundry", "llm-foundry-2022"})

#: Bytes of a parameter as it is gathered.
PARAMETER_BYTES: Final = 2

#: Units that the rate limiter lets be gathered and not yet freed.
IN_FLIGHT: Final = 2

Place = tuple[int, int]  # chunk, block


@gradient_policy("fsdp")
class FullyShardedDataParallel(GradientPolicy):
    """Units gathered on demand, gradients reduce-scattered."""

    def __init__(self, scenario: Scenario, mesh: Mesh, chunks: Sequence[Sequence[Block]], emit: Emitter):
        super().__init__(scenario, mesh, chunks, emit)
        self._flat = scenario.software.framework in FLAT_PARAMETERS
        self._gradient_bytes = DTYPE_BYTES[scenario.software.gradient_dtype]
        self._there: dict[Place, str] = {}  # unit -> event of its gather, "" once waited for
        self._computed: list[str] = []  # events of units' computations, in order
        self._segments: dict[tuple[str, float], Segment] = {}

    def optimizer_parameters(self) -> list[tuple[tuple[Parameter, ...], float]]:
        return self.sharded_parameters("shard", "expert-shard")

    # -------------------------------------------------------------------------------------- gathers

    def before_forward(self, chunk: int, block: int, micro_batch: int) -> None:
        del micro_batch
        order = [(chunk, i) for i in range(block, len(self.chunks[chunk]))]
        self._need(order)

    def before_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        del micro_batch
        order = [(chunk, i) for i in range(block, -1, -1)]
        self._need(order)

    def _need(self, order: list[Place]) -> None:
        """Gather the first unit of `order` and those to prefetch; let compute wait for the first."""
        for place in order[: 1 + max(0, self.scenario.overlap.prefetch)]:
            if place not in self._there:
                self._there[place] = self._gather(place)
        event = self._there[order[0]]
        if event:
            self.emit.add(Wait(event, "compute"))
            self._there[order[0]] = ""
            if not self._flat:
                self._copy("copy out of gather", self._bytes(order[0], PARAMETER_BYTES), "compute")

    def _gather(self, place: Place) -> str:
        if self._flat and len(self._computed) >= IN_FLIGHT:
            self.emit.add(HostWait(self._computed[-IN_FLIGHT], "all-gather rate limiter"))
        name = self.chunks[place[0]][place[1]].name
        for group, size in self._sizes(place, PARAMETER_BYTES):
            self.emit.add(
                Collective(
                    "all-gather",
                    group,
                    size,
                    "shard",
                    name=f"all-gather {name}",
                    algorithm=self.scenario.collective_algorithm,
                )
            )
        event = self.emit.new_event()
        self.emit.add(Record(event, "shard"))
        return event

    def _sizes(self, place: Place, element: int) -> list[tuple[str, float]]:
        block = self.chunks[place[0]][place[1]]
        sizes = []
        for group, expert in (("shard", False), ("expert-shard", True)):
            numel = sum(one.numel for one in block.parameters if one.expert is expert)
            if numel and self.mesh.size(group) > 1:
                sizes.append((group, float(numel * element)))
        return sizes

    def _bytes(self, place: Place, element: int) -> float:
        return sum(size for _, size in self._sizes(place, element))

    def after_forward(self, chunk: int, block: int, micro_batch: int) -> None:
        del micro_batch
        self._over()
        kept = self.chunks[chunk][block].kind != "layer"  # part of the root unit
        if self.scenario.parallelism.reshard_after_forward and not kept:
            self._there.pop((chunk, block), None)

    def _over(self) -> None:
        event = self.emit.new_event()
        self.emit.add(Record(event, "compute"))
        self._computed.append(event)

    # ------------------------------------------------------------------------------------- reductions

    def after_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        self._over()
        self._there.pop((chunk, block), None)
        last = self.is_last(chunk, micro_batch)
        place = (chunk, block)
        if not self._sizes(place, 1):
            return
        self.emit.order("compute", "shard")
        if self._flat:  # autograd joins the gradients of the flat parameter's views, FSDP divides them before
            self._copy("join gradients", self._bytes(place, self._gradient_bytes), "compute")
            self.emit.order("compute", "shard")
            self._copy("divide gradients", self._bytes(place, self._gradient_bytes), "shard")
        else:
            self._copy("copy into reduction", self._bytes(place, self._gradient_bytes), "shard")
        name = self.chunks[chunk][block].name
        for group, size in self._sizes(place, self._gradient_bytes):
            self.emit.add(
                Collective(
                    "reduce-scatter",
                    group,
                    size,
                    "shard",
                    name=f"reduce-scatter {name}",
                    algorithm=self.scenario.collective_algorithm,
                )
            )
        self._reduce_replicas(place, last)
        if block == 0:  # the root's last callback lets compute wait for all that was reduced
            self._settle()

    def after_input_backward(self, chunk: int, block: int, micro_batch: int) -> None:
        del micro_batch
        self._over()
        self._there.pop((chunk, block), None)

    def _settle(self) -> None:
        for stream, group in (("shard", "shard"), ("replica", "replica")):
            if self.mesh.size(group) > 1:
                self.emit.order(stream, "compute")

    def _reduce_replicas(self, place: Place, last: bool) -> None:
        replicas = self.mesh.size("replica")
        if replicas == 1 or not (last or not self.scenario.software.defer_grad_sync):
            return
        self.emit.order("shard", "replica")
        for group, size in self._sizes(place, self._gradient_bytes):
            self.emit.add(
                Collective(
                    "all-reduce",
                    "replica",
                    size / self.mesh.size(group),
                    "replica",
                    name=f"all-reduce {self.chunks[place[0]][place[1]].name}",
                    algorithm=self.scenario.collective_algorithm,
                )
            )

    def _copy(self, name: str, size: float, stream: str) -> None:
        """A kernel that reads and writes `size` bytes on a stream."""
        if not size:
            return
        if stream == "compute":
            kernel = Kernel(name, "copy", bytes=2.0 * size)
            self.emit.kernels((kernel,), "shard", name)
            self.emit.flush()
            return
        key = (name, size)
        if key not in self._segments:
            kernel = Kernel(name, "copy", bytes=2.0 * size)
            self._segments[key] = Segment(name, (kernel,), parts=(("shard", 1),))
        self.emit.add(Launch(self._segments[key], stream))

    def before_optimizer(self) -> None:
        self.reduce_replicated()
        self._settle()

    def after_optimizer(self) -> None:
        self._there.clear()
        self._computed.clear()


@gradient_policy("zero-3")
class Zero3(FullyShardedDataParallel):
    """DeepSpeed's ZeRO-3: the same traffic."""


@gradient_policy("hsdp")
class HybridSharding(FullyShardedDataParallel):
    """Sharded within a group, replicated between groups."""
