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
from simulator.program.offload import Offload
from simulator.program.passes import Pass, backward, forward, run, run_beside
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
    offload: Offload = field(init=False)
    sent: list[str] = field(default_factory=list)  # events of sends that compute has to wait for
    transferred: list[str] = field(default_factory=list)  # events of transfers that the host may wait for

    def build(self) -> Role:
        policy = find_policy(self.scenario.parallelism.sharding)(
            self.scenario, self.mesh, self.chunks[self.stage], self.emit
        )
        self.offload = Offload(self.scenario, self.chunks[self.stage], self.emit)
        policy.before_step()
        actions = self.plan.order(
            self.stage, len(self.chunks), self.scenario.micro_batches, len(self.chunks[0])
        )
        policy.last = {action.chunk: action.micro_batch for action in actions if action.kind in ("B", "W")}
        turns = _turns(actions)
        for turn, following in zip(turns, (*turns[1:], ()), strict=True):
            for action in (*turn, *(following if self.plan.overlaps_p2p else ())):
                self._post(action)
            self._settle_sends()
            passes = [_ACTIONS[action.kind](self, policy, action) for action in turn]
            if len(passes) > 1:
                run_beside(self.emit, *passes)
            else:
                run(self.emit, passes[0])
        self._settle_sends()
        self._tied_embeddings()
        self._mirrored()
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

    def _place(self, position: int) -> tuple[int, int]:
        """(stage, chunk) that has a position."""
        return next(
            (stage, chunk)
            for stage, chunks in enumerate(self.chunks)
            for chunk in range(len(chunks))
            if self._position(stage, chunk) == position
        )

    # ------------------------------------------------------------------------------------- passes

    def forward(self, policy: GradientPolicy, action: Action) -> Pass:
        blocks = self.chunks[self.stage][action.chunk]
        position = self._position(self.stage, action.chunk)
        before, after = self._neighbours(position)
        if before is None:
            self._synchronise()
            self._next_batch()
        else:
            self._received(action)
        for place, block in enumerate(blocks):
            policy.before_forward(action.chunk, place, action.micro_batch)
            self.offload.before_forward(action.chunk, place)
            yield from forward(self.emit, (block,), action.micro_batch, self._stack)
            policy.after_forward(action.chunk, place, action.micro_batch)
            self.offload.after_forward(action.chunk, place, action.micro_batch)
        self._send(position, after, "forward", action.micro_batch)

    def backward(self, policy: GradientPolicy, action: Action) -> Pass:
        return self._backward(policy, action, frozenset({"recompute", "input", "weight"}))

    def input_backward(self, policy: GradientPolicy, action: Action) -> Pass:
        return self._backward(policy, action, frozenset({"recompute", "input"}))

    def weight_backward(self, policy: GradientPolicy, action: Action) -> Pass:
        return self._backward(policy, action, frozenset({"weight"}))

    def _backward(self, policy: GradientPolicy, action: Action, parts: frozenset[str]) -> Pass:
        blocks = self.chunks[self.stage][action.chunk]
        position = self._position(self.stage, action.chunk)
        if "input" in parts:
            self._received(action)
        for place in reversed(range(len(blocks))):
            if "input" in parts:  # the weights' part needs no weights
                policy.before_backward(action.chunk, place, action.micro_batch)
                self.offload.before_backward(action.chunk, place, action.micro_batch)
            yield from backward(
                self.emit,
                (blocks[place],),
                action.micro_batch,
                self._stack,
                parts=parts,
                ready=partial(_ready, policy, action, place),
            )
            if "weight" in parts:
                policy.after_backward(action.chunk, place, action.micro_batch)
            else:
                policy.after_input_backward(action.chunk, place, action.micro_batch)
        if "input" in parts:
            self._send(position, self._neighbours(position)[0], "backward", action.micro_batch)

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
        stage, chunk = self._place(position)
        return self.chunks[stage][chunk][-1].boundary_bytes

    def _neighbours(self, position: int) -> tuple[int | None, int | None]:
        return self.plan.neighbours(position, len(self.chunks), len(self.chunks[0]))

    def _stream(self, what: str, way: str, peer: int) -> str:
        """One stream a direction and peer: transfers with one peer never wait for those with another.

        (PyTorch's process groups keep a stream for each pair of ranks that send to each other.)
        """
        further = (way == "forward") == (what == "send")  # down the stages, as without a V or two copies
        usual = (self.stage + (1 if further else -1)) % len(self.chunks)
        return f"pp-{what}-{way}" + ("" if peer == usual else f"-{peer}")

    def _send(self, here: int, there: int | None, way: str, micro_batch: int) -> None:
        if there is None:
            return
        other = self._place(there)
        if other[0] == self.stage:
            return
        stream = self._stream("send", way, other[0])
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
        self.transferred += self.sent
        self.sent.clear()

    def _post(self, action: Action) -> None:
        """Issue the receive of an action's input, after the work before it on the compute stream."""
        if action in self.posted or action.kind == "W":
            return
        here = self._position(self.stage, action.chunk)
        before, after = self._neighbours(here)
        way, there = ("forward", before) if action.kind == "F" else ("backward", after)
        if there is None:
            return
        other = self._place(there)
        if other[0] == self.stage:
            return
        stream = self._stream("recv", way, other[0])
        size = self._boundary_bytes(min(here, there))
        self.emit.order("compute", stream)
        self.emit.add(Recv(other[0], size, stream, f"{way} {there}-{here}", action.micro_batch))
        self.posted[action] = event = self.emit.new_event()
        self.emit.add(Record(event, stream))

    def _received(self, action: Action) -> None:
        """Compute waits for the action's input."""
        if action in self.posted:
            self.emit.add(Wait(self.posted[action], "compute"))
            self.transferred.append(self.posted[action])
        self._synchronise()

    def _synchronise(self) -> None:
        """The host waits for the transfers, where the stack does (`Stack.p2p_syncs_host`)."""
        if self._stack.p2p_syncs_host and not (self.plan.overlaps_p2p and self._stack.overlaps_p2p):
            self.emit.add(*(HostWait(event, "synchronise after transfers") for event in self.transferred))
        self.transferred.clear()

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
        if isinstance(model, LayerList) or not model.tied_embeddings or not last or self.plan.copies > 1:
            return  # where the model stands twice, `_mirrored` adds up these gradients too
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

    def _mirrored(self) -> None:
        """Where the model stands twice, stages that hold the same parts add up their gradients.

        An all-reduce of two ranks: each sends its gradients once (of a shard, if they were reduce-scattered).
        """
        if self.plan.copies == 1:
            return
        other = len(self.chunks) - 1 - self.stage
        mesh, sharded = self.mesh, self.scenario.parallelism.sharding != "ddp"
        numel = 0.0
        for block in (block for blocks in self.chunks[self.stage] for block in blocks):
            for parameter in block.parameters:
                group = "expert-dp" if parameter.expert else "dp"
                numel += parameter.numel / (mesh.size(group) if sharded else 1)
        size = numel * DTYPE_BYTES[self.scenario.software.gradient_dtype]
        first, second = sorted((self.stage, other))
        tags = (f"gradients {first}-{second}", f"gradients {second}-{first}")
        here, there = tags if self.stage == first else tags[::-1]
        self.emit.order("compute", "mirror-send")
        self.emit.order("compute", "mirror-recv")
        self.emit.add(Send(other, size, "mirror-send", here), Recv(other, size, "mirror-recv", there))
        self.emit.order("mirror-send", "compute")
        self.emit.order("mirror-recv", "compute")

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


def _turns(actions: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Actions one after the other; those that run side by side together."""
    turns: list[tuple[Action, ...]] = []
    together: tuple[Action, ...] = ()
    for action in actions:
        together = (*together, action)
        if not action.beside:
            turns.append(together)
            together = ()
    return turns


def _ready(policy: GradientPolicy, action: Action, place: int, _: int, done: tuple[int, ...]) -> None:
    policy.gradients_ready(action.chunk, place, done, action.micro_batch)


_ACTIONS = {
    "F": _RoleBuilder.forward,
    "B": _RoleBuilder.backward,
    "I": _RoleBuilder.input_backward,
    "W": _RoleBuilder.weight_backward,
}
