"""A step of all roles as one list, in an order in which everything is known when it is needed.

With fixed durations no event queue is needed: an operation's times follow from those of what stands
before it on its stream, of what it waits for, and of its host's clock. Sends and collectives that span
stages meet partners of other roles. A topological order (Kahn 1962) of these dependencies is found once
for each variant of a step and then run step after step.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.engine.block import Block, Ref, spans_stages, split
from simulator.engine.script import HostOp, Item, StepScript
from simulator.errors import EngineError
from simulator.program.instructions import Collective, HostWait, Recv, Send


@dataclass(slots=True, eq=False)
class Node:
    """One entry of the tape: an operation of a role, or a meeting of several roles' operations.

    `place`: number of the operation in the role's step, the first of a block's. The host's issuing of
    work has a node (`issues` the work's own), the work another. A meeting has `parties`, the arrivals it
    waits for; their work ends with it.
    """

    stage: int
    place: int
    operation: HostOp | Block | None
    parties: list[Node] = field(default_factory=list)
    missing: int = 0
    after: list[Node] = field(default_factory=list)
    issues: Node | None = None
    meeting: Node | None = None


def build_tape(
    scripts: Sequence[StepScript], spanning: frozenset[str], launch_queue: int, most: int = 1
) -> tuple[Node, ...]:
    """The nodes of one step in order. `spanning`: names of groups whose members stand on several stages.

    Every role's host issues all its operations; device work waits for the work before it on its stream
    and for the events it names. `most`: pieces of work that a block has at most. Raises EngineError
    where roles wait for each other in a circle.
    """
    nodes: list[Node] = []
    meetings: dict[tuple[Any, ...], Node] = {}
    for stage, script in enumerate(scripts):
        pieces = split(script.operations, spanning, launch_queue, most, script.kept)
        _role(stage, pieces, spanning, launch_queue, nodes, meetings)
    nodes += meetings.values()
    ready = deque(node for node in nodes if not node.missing)
    order: list[Node] = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for later in node.after:
            later.missing -= 1
            if not later.missing:
                ready.append(later)
    if len(order) < len(nodes):
        if most > 1:  # perhaps only whole blocks wait for each other
            return build_tape(scripts, spanning, launch_queue)
        stuck = next(node for node in nodes if node.missing)
        name = getattr(stuck.operation, "name", "a meeting")
        raise EngineError(f"stages wait for each other for ever, first stage {stuck.stage} at {name}")
    return tuple(order)


def _role(
    stage: int,
    operations: Sequence[tuple[int, HostOp | Block]],
    spanning: frozenset[str],
    launch_queue: int,
    nodes: list[Node],
    meetings: dict[tuple[Any, ...], Node],
) -> None:
    def depends(node: Node, on: Node) -> None:
        node.missing += 1
        on.after.append(node)

    counts: Counter[tuple[Any, ...]] = Counter()
    issued: Node | None = None  # the host's operation before
    last: dict[int, Node] = {}  # what ends the latest work of each stream
    events: dict[str, Node] = {}
    queues: dict[int, deque[tuple[Node, int]]] = defaultdict(deque)
    lengths: Counter[int] = Counter()
    for place, operation in operations:
        node = Node(stage, place, operation)
        nodes.append(node)
        if isinstance(operation, HostWait):
            if issued is not None:
                depends(node, issued)
            if operation.event in events:
                depends(node, events[operation.event])
            issued = node
            continue
        if issued is not None:
            depends(node, issued)
        if not isinstance(operation, Item | Block):
            issued = node
            continue
        host, node = node, Node(stage, place, operation)
        nodes.append(node)
        host.issues = node
        depends(node, host)
        issued = host
        items = operation.items if isinstance(operation, Block) else (operation,)
        refs: tuple[Ref, ...] = (
            operation.outside if isinstance(operation, Block) else (operation.stream, *operation.waits)
        )
        before = [events.get(ref) if isinstance(ref, str) else last.get(ref) for ref in refs]
        for one in filter(None, before):
            depends(node, one)
        ends = node
        if isinstance(operation, Item) and spans_stages(operation, spanning):
            key = _meeting_key(stage, operation, counts)
            ends = meetings.setdefault(key, Node(-1, -1, operation))
            ends.parties.append(node)
            depends(ends, node)
            node.meeting = ends
        for item in items:
            last[item.stream] = ends
            queue, launches = queues[item.stream], item.launches
            while queue and lengths[item.stream] + launches > launch_queue:
                oldest, count = queue.popleft()
                lengths[item.stream] -= count
                depends(host, oldest)
            queue.append((ends, launches))
            lengths[item.stream] += launches
            for event in item.records:
                events[event] = ends


def _meeting_key(stage: int, item: Item, counts: Counter[tuple[Any, ...]]) -> tuple[Any, ...]:
    work = item.work
    turn: tuple[Any, ...]
    own: tuple[Any, ...]
    if isinstance(work, Send | Recv):
        ends = (stage, work.peer) if isinstance(work, Send) else (work.peer, stage)
        turn = ("send", *ends, work.tag)
        own = (*turn, isinstance(work, Send))
    else:
        assert isinstance(work, Collective)
        turn = ("group", work.group)
        own = turn
    counts[own] += 1
    return (*turn, counts[own])
