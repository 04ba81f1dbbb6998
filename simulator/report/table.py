"""A result for people: a page of 80 columns, coloured on a terminal and plain elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from simulator.analysis.causes import MODEL, UNEXPLAINED
from simulator.analysis.result import Memory, RankResult, Result
from simulator.analysis.waterfall import Item
from simulator.report.figures import Unit, bar, count, share, time_unit, time_with_unit
from simulator.units import show_bytes, show_flops

if TYPE_CHECKING:
    from rich.console import RenderableType

#: items below this share of the step are left out of the page
_LEAST_POINTS: Final = 0.05
_BAR_WIDTH: Final = 24
_SHOWN_RANKS: Final = 5
#: ranks whose compute differs by less than this are called even
_EVEN: Final = 0.005


def page(result: Result, *, unicode: bool = True) -> RenderableType:
    """The whole page. `unicode`: bars of block characters, else of `#`."""
    parts: list[RenderableType] = [
        _title(result),
        _summary(result),
        Text(""),
        waterfall_table(result.waterfall, result.step_time_s, unicode=unicode),
    ]
    if result.memory is not None:
        parts += [Text(""), memory_table(result.memory, unicode=unicode)]
    parts += [Text(""), ranks_table(result)]
    if result.notes:
        parts += [Text(""), *(Text(note, style="dim") for note in result.notes)]
    return Group(*parts)


def _title(result: Result) -> Text:
    title = Text(result.scenario, style="bold")
    gpus = f"{result.gpus:,} GPU" + ("s" if result.gpus != 1 else "")
    title.append(f": {result.model} on {gpus}, {result.precision}", style="not bold")
    title.append(f" ({result.engine} engine)", style="dim")
    return title


def grid(*columns: str, indent: int = 2) -> Table:
    """A table without lines; a column is "left" or "right"."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(width=indent - 2 if indent > 2 else None)
    for side in columns:
        table.add_column(justify="right" if side == "right" else "left", no_wrap=True)
    return table


def _summary(result: Result) -> Table:
    table = grid("left", "right", "left")
    times = result.step_times_s
    table.add_row("", "step time", Text(time_with_unit(result.step_time_s), style="bold"),
                  _spread(result))  # fmt: skip
    peak = show_flops(result.peak_flops_per_gpu_per_s)
    table.add_row("", "MFU", Text(share(result.mfu), style="bold"),
                  f"of {peak} a GPU; HFU {share(result.hfu)}")  # fmt: skip
    name = result.sample
    per_s = result.tokens_per_s if name == "token" else result.samples_per_s
    table.add_row("", f"{name}s/s", Text(count(per_s), style="bold"),
                  f"{count(per_s / result.gpus)} a GPU; "
                  f"{show_flops(result.model_flops_per_gpu_per_s)} of the model")  # fmt: skip
    if len(times) > 1 and max(times) > 1.02 * result.step_time_median_s:
        slow = max(range(len(times)), key=times.__getitem__)
        table.add_row("", "slowest step", time_with_unit(times[slow]),
                      f"measured step {slow + 1} of {len(times)}")  # fmt: skip
    return table


def _spread(result: Result) -> str:
    times = result.step_times_s
    if len(times) == 1:
        return "one measured step"
    mean = result.step_time_s
    deviation = math.sqrt(sum((time - mean) ** 2 for time in times) / len(times))
    return (
        f"mean of {len(times)} steps; median {time_with_unit(result.step_time_median_s)}, "
        f"p95 {time_with_unit(result.step_time_p95_s)}, ±{share(deviation / mean if mean else 0)}"
    )


def waterfall_table(items: Iterable[Item], step_time_s: float, *, unicode: bool = True) -> Table:
    """From peak to MFU: seconds, points and a bar an item, what is too small left out."""
    unit = time_unit(step_time_s)
    table = grid("left", "right", "right", "left", indent=2)
    table.add_row("", Text("Where the step goes", style="bold"), Text(unit.name, style="dim"),
                  Text("%", style="dim"), "")  # fmt: skip
    shown = [item for item in items if abs(item.mfu_points) >= _LEAST_POINTS]
    most = max((item.mfu_points for item in shown), default=1.0)
    for item in shown:
        name = f"{item.name} (MFU)" if item.name == MODEL else item.name
        style = _style(item)
        table.add_row(
            "", Text(name, style=style), unit.of(item.seconds), f"{item.mfu_points:.1f}",
            Text(bar(item.mfu_points / most, _BAR_WIDTH, unicode=unicode), style=style),
        )  # fmt: skip
    table.add_row("", Text("step", style="bold"), unit.of(step_time_s), "100.0", "")
    return table


def _style(item: Item) -> str:
    if item.name == MODEL:
        return "green"
    return "red" if item.name == UNEXPLAINED else ""


def memory_table(memory: Memory, *, unicode: bool = True) -> Table:
    """What the fullest GPU holds, against its HBM."""
    table = grid("left", "right", "right", "left", indent=2)
    head = Text("Memory of the fullest GPU", style="bold")
    table.add_row("", head, "", Text("%", style="dim"), "")
    rows: tuple[tuple[str, float], ...] = (
        ("parameters", memory.parameters_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("backward of the fullest block", memory.working_bytes),
        ("buffers", memory.buffers_bytes),
    )
    rest = memory.peak_bytes - sum(size for _, size in rows)
    if rest > 0.005 * memory.peak_bytes:
        rows = (*rows, ("CUDA context, NCCL, rounding", rest))
    for name, size in rows:
        table.add_row("", name, show_bytes(size), *_of_capacity(size, memory, unicode=unicode))
    style = "" if memory.fits else "bold red"
    table.add_row("", Text("peak", style=style or "bold"),
                  Text(show_bytes(memory.peak_bytes), style=style),
                  *_of_capacity(memory.peak_bytes, memory, unicode=unicode))  # fmt: skip
    verdict = "" if memory.fits else "does not fit"
    table.add_row("", "HBM", show_bytes(memory.capacity_bytes), "100.0", Text(verdict, style="red"))
    return table


def _of_capacity(size: float, memory: Memory, *, unicode: bool) -> tuple[str, Text]:
    part = size / memory.capacity_bytes if memory.capacity_bytes else 0.0
    return f"{100 * part:.1f}", Text(bar(part, _BAR_WIDTH, unicode=unicode, track=True))


def ranks_table(result: Result) -> RenderableType:
    """The ranks that compute longest, or that all are even."""
    ranks = result.ranks
    compute = [rank.compute_s for rank in ranks]
    if not ranks or max(compute, default=0.0) <= 0:
        return Text("Ranks: no compute was recorded", style="dim")
    unit = time_unit(result.step_time_s)
    low, high = min(compute), max(compute)
    late = max(rank.lateness_s for rank in ranks)
    if high - low <= _EVEN * high and late <= _EVEN * result.step_time_s:
        apart = 1 - low / high
        within = f", within {share(apart)}" if apart >= 5e-4 else ""
        return Text(f"Ranks are even: each computes {unit.of(high)} {unit.name} a step{within}")
    return _slowest(ranks, unit, worth_naming_s=_EVEN * result.step_time_s)


def _slowest(ranks: tuple[RankResult, ...], unit: Unit, *, worth_naming_s: float) -> Table:
    """The longest compute first; `wait` and `late` as in RankResult."""
    stages = len({rank.stage for rank in ranks}) > 1
    folded = any(rank.multiplicity > 1 for rank in ranks)
    table = grid(*["right"] * 7, "left")
    head = ("rank", "node", "stage" if stages else "", "alike" if folded else "", "compute", "wait", "late")
    table.add_row("", *(Text(text, style="bold") for text in head),
                  Text(f"{unit.name} a step, slowest first", style="dim"))  # fmt: skip
    order = sorted(ranks, key=lambda rank: (-rank.compute_s, -rank.lateness_s, rank.rank))
    shown = dict.fromkeys(order[:_SHOWN_RANKS], "")
    latest = max(order, key=lambda rank: rank.lateness_s)
    if latest.lateness_s > worth_naming_s + max(rank.lateness_s for rank in shown):
        shown[latest] = "the latest"
    if len(order) > len(shown):
        shown[order[-1]] = "; ".join(filter(None, (shown.get(order[-1], ""), "least compute")))
    for rank, note in shown.items():
        times = (unit.of(rank.compute_s), unit.of(rank.wait_s), unit.of(rank.lateness_s))
        table.add_row("", str(rank.rank), str(rank.node), str(rank.stage) if stages else "",
                      f"{rank.multiplicity:,}" if folded else "", *times,
                      Text(note, style="dim"))  # fmt: skip
    return table
