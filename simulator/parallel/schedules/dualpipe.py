"""DualPipe (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1): micro-batches enter at both ends.

The model is cut into p parts, not 2 p: chunk 0 of stage s is part s, for micro-batches that enter at the first
stage; chunk 1 is part p - 1 - s, for those that enter at the last. So every part stands twice, on stages that
mirror each other, which add up their gradients. Half of the micro-batches go each way.

    stage 0 of 4   F0 F1 F0' F2 F1' ... [F B'] [F' B] ...   (': the other direction, []: side by side)

In the steady state a forward of one direction runs beside a backward of the other, so that each hides the
other's all-to-alls. With F, B and W the times of a forward, a whole backward and its weights' part, and F&B
of the two side by side, the bubble is (p / 2 - 1) (F&B + B - 3 W) a stage, and at most p + 1 micro-batches'
activations are held, each of a p-th of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.errors import SpecError
from simulator.parallel.schedules.base import Action, schedule


def both_ways(stage: int, chunk: int, stages: int, virtual_stages: int) -> int:
    """Parts 0 to p - 1 of the first copy go down the stages, those of the second, p to 2 p - 1, back up."""
    del virtual_stages
    return stage if chunk == 0 else 2 * stages - 1 - stage


@dataclass(slots=True)
class _Stage:
    """What one stage does. `near`: the chunk whose micro-batches enter at this half's end, `far`: the other."""

    near: int
    half: int  # micro-batches of each direction
    actions: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    late: list[Action] = field(default_factory=list)  # weights' backwards put off

    @property
    def far(self) -> int:
        return 1 - self.near

    def _next(self, kind: str, chunk: int, counts: list[int]) -> Action:
        number = counts[chunk] + chunk * self.half
        counts[chunk] += 1
        return Action(kind, number, chunk)  # type: ignore[arg-type]

    def forward(self, chunk: int) -> None:
        self.actions.append(self._next("F", chunk, self.forwards))

    def backward(self, chunk: int, *, split: bool = False) -> None:
        action = self._next("I" if split else "B", chunk, self.backwards)
        self.actions.append(action)
        if split:
            self.late.append(Action("W", action.micro_batch, chunk))

    def weights(self) -> None:
        self.actions.append(self.late.pop(0))

    def both(self, forward: int, backward: int) -> None:
        """Side by side."""
        action = self._next("F", forward, self.forwards)
        self.actions.append(Action("F", action.micro_batch, forward, beside=True))
        self.backward(backward)


@schedule(
    "dualpipe",
    position=both_ways,
    splits_backward=True,
    overlaps_p2p=True,
    virtual_stages=2,
    copies=2,
    peak=lambda stage, stages, micro_batches, virtual: float(stages + 1),
)
def dualpipe(stage: int, stages: int, micro_batches: int, virtual_stages: int) -> tuple[Action, ...]:
    """The order of one stage. Raises SpecError for an odd number of stages or fewer than 2 p micro-batches."""
    del virtual_stages
    if stages % 2:
        raise SpecError.of(
            "parallelism.pp", f"{stages}: expected an even number of stages, as dualpipe needs"
        )
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise SpecError.of(
            "parallelism.schedule",
            f"dualpipe: {micro_batches} micro-batches: expected an even number of at least 2 x pp ({2 * stages})",
        )
    inner = min(stage, stages - 1 - stage)  # distance from this half's end
    rest = stages // 2 - inner - 1  # and from the middle
    one = _Stage(near=0 if stage < stages // 2 else 1, half=micro_batches // 2)
    for _ in range(2 * rest):
        one.forward(one.near)
    for _ in range(inner + 1):
        one.forward(one.near)
        one.forward(one.far)
    for _ in range(rest):
        one.backward(one.far, split=True)
        one.weights()
        one.forward(one.far)
    for number in range(one.half - stages + inner + 1):
        if number == 0 and not rest:  # the middle sends its output on before anything else
            one.forward(one.near)
            one.backward(one.far)
        else:
            one.both(one.near, one.far)
        one.both(one.far, one.near)
    for _ in range(rest):
        one.backward(one.far)
        one.both(one.far, one.near)
    for number in range(inner + 1):
        turn, odd = (inner + 1) // 2, inner % 2  # from here on weights wait, to fill what would be a bubble
        one.backward(one.far, split=number > turn or (number == turn and bool(odd)))
        one.backward(one.near, split=number >= turn)
    for _ in range(rest):
        one.weights()
        one.backward(one.near, split=True)
    while one.late:
        one.weights()
    return tuple(one.actions)
