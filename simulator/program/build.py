"""From a scenario to Programs: what the ranks of each pipeline stage issue, step after step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from simulator.hardware import Stack, stack
from simulator.model import clip_kernels, optimizer_kernels
from simulator.model.blocks import Block
from simulator.parallel.mesh import Mesh, build_mesh
from simulator.parallel.schedules import Action, Schedule, find_schedule
from simulator.parallel.stages import stage_blocks
from simulator.program.emit import Emitter
from simulator.program.gradients import GradientPolicy, find_policy
from simulator.program.gradients.base import DTYPE_BYTES
from simulator.program.instructions import (
    Collective,
    Copy,
    Every,
    HostWait,
    HostWork,
    Instruction,
    NextBatch,
    Programs,
    Record,
    Recv,
    Role,
    Segment,
    Send,
    Wait,
)
from simulator.program.passes import backward, forward
from simulator.spec import LayerList, Scenario
from simulator.timeline import DeviceKind, HostKind


def build(scenario: Scenario, gpus_per_node: int = 8) -> tuple[Programs, Mesh]:
    """The programs of all pipeline stages, and the mesh that their groups are of.

    Raises SpecError where layers do not fit the stages or a name is unknown.
    """
    mesh = build_mesh(scenario.parallelism, gpus_per_node)
    plan = find_schedule(scenario.parallelism.schedule)
    stages = scenario.parallelism.pp
    chunks = stage_blocks(scenario)
    segments: dict[tuple[object, ...], Segment] = {}
    roles = tuple(
        _RoleBuilder(scenario, mesh, plan, stage, chunks, Emitter(segments)).build()
        for stage in range(stages)
    )
    return Programs(roles, scenario.micro_batches, {"chunks": chunks}), mesh


@dataclass(slots=True)
class _RoleBuilder:
    scenario: Scenario
    mesh: Mesh
    plan: Schedule
    stage: int
    chunks: tuple[tuple[tuple[Block, ...], ...], ...]  # by stage and chunk
    emit: Emitter
    posted: dict[Action, str] = field(default_factory=dict)  # event of the receive of an action's input
    sent: list[str] = field(default_factory=list)  # events of sends that compute has to wait for

    def build(self) -> Role:
        policy = find_policy(self.scenario.parallelism.sharding)(
            self.scenario, self.mesh, self.chunks[self.stage], self.emit
        )
        policy.before_step()
        actions = self.plan.order(
            self.stage, len(self.chunks), self.scenario.micro_batches, len(self.chunks[0])
        )
        for action, following in zip(actions, (*actions[1:], None), strict=True):
            self._post(action)
            if following is not None and self.plan.overlaps_p2p:
                self._post(following)
            self._settle_sends()
            _ACTIONS[action.kind](self, policy, action)
        self._settle_sends()
        self._tied_embeddings()
        policy.before_optimizer()
        self._optimizer(policy)
        policy.after_optimizer()
        self._end_of_step()
        return Role(self.stage, self.emit.body())

    @property
    def _stack(self) -> Stack:
        return stack(self.scenario.software.framework)

    def _position(self, stage: int, chunk: int) -> int:
        return self.plan.position(stage, chunk, len(self.chunks), len(self.chunks[0]))

    def _neighbour(self, position: int) -> tuple[int, int] | None:
        """(stage, chunk) that has the part `position` of the model; None outside it."""
        for stage, chunks in enumerate(self.chunks):
            for chunk in range(len(chunks)):
                if self._position(stage, chunk) == position:
                    return stage, chunk
        return None

    # ------------------------------------------------------------------------------------- passes

    def forward(self, policy: GradientPolicy, action: Action) -> None:
        blocks = self.chunks[self.stage][action.chunk]
        position = self._position(self.stage, action.chunk)
        if position == 0:
            self._next_batch()
        else:
            self._received(action)
        for place, block in enumerate(blocks):
            policy.before_forward(action.chunk, place, action.micro_batch)
            forward(self.emit, (block,), action.micro_batch, self._stack)
            policy.after_forward(action.chunk, place, action.micro_batch)
        self._send(position, position + 1, "forward", action.micro_batch)

    def backward(self, policy: GradientPolicy, action: Action) -> None:
        self._backward(policy, action, frozenset({"recompute", "input", "weight"}))

    def input_backward(self, policy: GradientPolicy, action: Action) -> None:
        self._backward(policy, action, frozenset({"recompute", "input"}))

    def weight_backward(self, policy: GradientPolicy, action: Action) -> None:
        self._backward(policy, action, frozenset({"weight"}))

    def _backward(self, policy: GradientPolicy, action: Action, parts: frozenset[str]) -> None:
        blocks = self.chunks[self.stage][action.chunk]
        position = self._position(self.stage, action.chunk)
        if "input" in parts:
            self._received(action)
        for place in reversed(range(len(blocks))):
            policy.before_backward(action.chunk, place, action.micro_batch)
            backward(
                self.emit,
                (blocks[place],),
                action.micro_batch,
                self._stack,
                parts=parts,
                ready=partial(_ready, policy, action, place),
            )
            policy.after_backward(action.chunk, place, action.micro_batch)
        if "input" in parts:
            self._send(position, position - 1, "backward", action.micro_batch)

    def _next_batch(self) -> None:
        loader = self.scenario.dataloader
        size = loader.batch_bytes
        if size is None:
            per_sample = 4.0 if isinstance(self.scenario.model, LayerList) else 8.0
            size = self.scenario.batch.micro_batch * self.scenario.batch.sequence_length * per_sample
        stream = "copy" if loader.copy_stream else "compute"
        self.emit.add(NextBatch(), Copy(size, stream, pinned=loader.pin_memory))
        if loader.copy_stream:
            self.emit.order("copy", "compute")
        if not loader.pin_memory:  # cudaMemcpyAsync from pageable memory returns when it is done
            event = self.emit.new_event()
            self.emit.add(Record(event, stream), HostWait(event, "copy from pageable memory"))

    # ----------------------------------------------------------------------------------- transfers

    def _boundary_bytes(self, position: int) -> float:
        stage_chunk = self._neighbour(position)
        assert stage_chunk is not None
        return self.chunks[stage_chunk[0]][stage_chunk[1]][-1].boundary_bytes

    def _send(self, here: int, there: int, way: str, micro_batch: int) -> None:
        other = self._neighbour(there)
        if other is None or other[0] == self.stage:
            return
        stream = f"pp-send-{way}"
        self.emit.order("compute", stream)
        size = self._boundary_bytes(min(here, there))
        self.emit.add(Send(other[0], size, stream, f"{way} {here}-{there}", micro_batch))
        if not self.plan.overlaps_p2p:
            event = self.emit.new_event()
            self.emit.add(Record(event, stream))
            self.sent.append(event)

    def _settle_sends(self) -> None:
        """Compute waits for what was sent, once the next receive is posted: both move together."""
        self.emit.add(*(Wait(event, "compute") for event in self.sent))
        self.sent.clear()

    def _post(self, action: Action) -> None:
        """Issue the receive of an action's input, after the work before it on the compute stream."""
        if action in self.posted or action.kind == "W":
            return
        here = self._position(self.stage, action.chunk)
        way, there = ("forward", here - 1) if action.kind == "F" else ("backward", here + 1)
        other = self._neighbour(there)
        if other is None or other[0] == self.stage:
            return
        stream = f"pp-recv-{way}"
        size = self._boundary_bytes(min(here, there))
        self.emit.order("compute", stream)
        self.emit.add(Recv(other[0], size, stream, f"{way} {there}-{here}", action.micro_batch))
        self.posted[action] = event = self.emit.new_event()
        self.emit.add(Record(event, stream))

    def _received(self, action: Action) -> None:
        """Compute waits for the action's input."""
        if action in self.posted:
            self.emit.add(Wait(self.posted[action], "compute"))

    # -------------------------------------------------------------------------------- end of step

    def _optimizer(self, policy: GradientPolicy) -> None:
        software = self.scenario.software
        groups = policy.optimizer_parameters()
        if software.gradient_clipping:
            for parameters, share in groups:
                kernels = clip_kernels(parameters, software.optimizer, share, self.scenario)
                self._update(kernels, "gradient norm and clip")
            self._norm_of_all(sharded=any(share < 1 for _, share in groups))
            if software.clip_syncs_host:
                self._host_waits("gradient norm .item()")
        for parameters, share in groups:
            kernels = optimizer_kernels(parameters, software.optimizer, share, self.scenario)
            host_s = self._stack.optimizer_host_s(len(parameters))
            self._update(kernels, "step", host_s=host_s)

    def _norm_of_all(self, sharded: bool) -> None:
        """The squares of all ranks that hold other gradients are added up: one float."""
        group = "world" if sharded else "model"
        if self.mesh.size(group) == 1:
            return
        self.emit.order("compute", group)
        self.emit.add(Collective("all-reduce", group, 4.0, group, name="all-reduce gradient norm"))
        self.emit.order(group, "compute")

    def _tied_embeddings(self) -> None:
        """First and last stage add up the gradients of the table they share (Megatron-LM).

        An all-reduce of two ranks: each sends its whole gradient once, in two halves.
        """
        model, last = self.scenario.model, len(self.chunks) - 1
        if isinstance(model, LayerList) or not model.tied_embeddings or not last:
            return
        if self.stage not in (0, last):
            return
        other = last - self.stage
        numel = model.vocab * model.hidden / self.mesh.size("tp")
        size = numel * DTYPE_BYTES[self.scenario.software.gradient_dtype]
        self.emit.order("compute", "embedding-send")
        tags = ("embedding 0-last", "embedding last-0")
        here, there = tags if self.stage == 0 else tags[::-1]
        self.emit.add(Send(other, size, "embedding-send", here))
        self.emit.add(Recv(other, size, "embedding-recv", there))
        self.emit.order("embedding-send", "compute")
        self.emit.order("embedding-recv", "compute")

    def _update(self, kernels: Sequence[object], what: str, host_s: float = 0.0) -> None:
        self.emit.kernels(kernels, what, "optimizer", kind=DeviceKind.OPTIMIZER, host_s=host_s)  # type: ignore[arg-type]
        self.emit.flush()

    def _host_waits(self, name: str) -> None:
        event = self.emit.new_event()
        self.emit.add(Record(event, "compute"), HostWait(event, name))

    def _end_of_step(self) -> None:
        software, checkpoint = self.scenario.software, self.scenario.checkpoint
        event = self.emit.new_event()
        self.emit.add(Record(event, "compute"))
        if software.log_every:
            self.emit.add(Every(software.log_every, (HostWait(event, "loss .item()"),)))
        if checkpoint.every_steps:
            pause: tuple[Instruction, ...] = (
                HostWait(event, "synchronise before checkpoint"),
                HostWork(checkpoint.duration_s, "checkpoint", HostKind.CHECKPOINT),
            )
            self.emit.add(Every(checkpoint.every_steps, pause))


def _ready(policy: GradientPolicy, action: Action, place: int, _: int, done: tuple[int, ...]) -> None:
    policy.gradients_ready(action.chunk, place, done, action.micro_batch)


_ACTIONS = {
    "F": _RoleBuilder.forward,
    "B": _RoleBuilder.backward,
    "I": _RoleBuilder.input_backward,
    "W": _RoleBuilder.weight_backward,
}
