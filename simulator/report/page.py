"""A diagnosis as one page that needs nothing else: no network, no library; light or dark, by mouse or keys.

The waterfall and the tables are plain HTML; the timeline and the heat map are drawn from data inside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any, Final

from simulator.analysis import causes as names
from simulator.report.diagnosis import SUSPECTS
from simulator.report.figures import share, time_unit, time_with_unit
from simulator.report.page_data import LAUNCHING, heat_data, timeline_data
from simulator.study import removals
from simulator.study.finding import Diagnosis

#: cause -> its colour's name in data/diagnosis.css
_COLOURS: Final = {
    names.MODEL: "model", names.BELOW_PEAK: "below-peak", names.CONTENTION: "contention",
    names.SLOW_GPUS: "slow", names.RECOMPUTE: "recompute", names.OPTIMIZER: "optimizer",
    names.BUBBLE: "bubble", names.WAITING: "waiting", names.COPIES: "copies", names.LOADER: "loader",
    names.LAUNCH: "launch", names.SYNC: "sync", names.GARBAGE: "garbage", names.CHECKPOINT: "checkpoint",
    names.STALL: "stall", names.UNEXPLAINED: "unexplained",
    **{names.exposed(axis): axis for axis in names.AXES},
    "dataloader": "loader", "launches": "launch", "host synchronisation": "sync", "checkpoints": "checkpoint",
    "recomputation": "recompute", removals.NO_OVERLAP: "dp", removals.LOADS: "waiting",
    removals.UNEVEN: "bubble", removals.ROOFLINE: "below-peak", removals.MEMORY: "model",
    "exposed communication": "dp", "compute": "below-peak", LAUNCHING: "host",
}  # fmt: skip

_LEAST: Final = 5e-4


def page(found: Diagnosis, ranks: Iterable[int] | None = None) -> str:
    """HTML. `ranks`: of the timeline; SpecError for those without a lane of their own."""
    drawn = timeline_data(found, ranks)
    heat = _with_ends(heat_data(found))
    sections = [
        _figures(found),
        _verdict(found),
        _waterfall(found),
        _timeline(found, drawn),
        _heat(heat),
        _reading(found),
    ]
    data = {"timeline": _with_colours(drawn), "heat": heat}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">\n"
        f"<title>{escape(found.title)}</title>\n<style>\n{_file('diagnosis.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#causes">Skip to the causes</a>\n<main>\n'
        f"<h1>{escape(found.title)}</h1>\n" + "\n".join(sections) + "\n</main>\n"
        f'<script type="application/json" id="data">{text}</script>\n'
        f"<script>\n{_file('diagnosis.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return (files("simulator.report") / "data" / name).read_text(encoding="utf-8")


def colour(cause: str) -> str:
    """Name of a cause's colour."""
    if cause.startswith("fault"):
        return "slow"
    return _COLOURS.get(cause, "group" if cause.startswith("exposed") else "unexplained")


def _swatch(cause: str) -> str:
    return f'<span class="swatch" style="background:var(--{colour(cause)})"></span>'


def _with_colours(drawn: dict[str, Any]) -> dict[str, Any]:
    shown = ["compute" if name == names.BELOW_PEAK else name for name in drawn["causes"]]
    return {**drawn, "names": shown, "classes": [colour(name) for name in drawn["causes"]]}


def _with_ends(heat: dict[str, Any]) -> dict[str, Any]:
    """With `most` of each measure, where its colours end: the largest difference, at least 2%, at most 25%."""
    measures = []
    for one in heat["measures"]:
        values = [abs(value) for row in one["against"] for value in row if value is not None]
        measures.append({**one, "most": min(0.25, max([0.02, *values]))})
    return {**heat, "measures": measures}


# ----------------------------------------------------------------------------------------- sections


def _figures(found: Diagnosis) -> str:
    shown = [("step seen", time_with_unit(found.step_s))]
    if not math.isnan(found.step_predicted_s):
        shown = [
            ("step predicted", time_with_unit(found.step_predicted_s)),
            *shown,
            ("to explain", time_with_unit(found.to_explain_s)),
            ("MFU", share(found.mfu)),
        ]
    shown.append(("GPU idle", share(found.idle.share)))
    parts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="figures">{parts}</dl>'


def _verdict(found: Diagnosis) -> str:
    unit = time_unit(max([cause.seconds for cause in found.causes], default=found.step_s))
    most = max([cause.seconds for cause in found.causes], default=1.0)
    rows = []
    every = False
    for cause in found.causes:
        if cause.cause in removals.ALWAYS and not every:
            every = True
            rows.append('<tr class="every"><th scope="rowgroup" colspan="6">What every run has</th></tr>')
        points = f"{cause.mfu_points:.1f}" if cause.mfu_points > 0 else ""
        advice = f"{cause.advice[:1].upper()}{cause.advice[1:]}." if cause.advice else ""
        style = f"width:{100 * cause.seconds / most:.1f}%;background:var(--{colour(cause.cause)})"
        bar = f'<span class="bar" style="{style}"></span>'
        rows.append(
            f'<tr><th scope="row">{_swatch(cause.cause)}{escape(cause.cause)}</th>'
            f'<td class="n">{unit.of(cause.seconds)} {unit.name}</td><td class="n">{points}</td>'
            f'<td class="share">{bar}</td>'
            f"<td>{escape(cause.confidence.partition(':')[0])}</td><td>{escape(advice)}</td></tr>"
        )
    if not rows:
        rows = ['<tr><td colspan="6">Nothing above 0.2% of the step.</td></tr>']
    return (
        f'<h2 id="causes">Causes by worth</h2>\n<p class="dim">{escape(_how(found))}</p>\n'
        '<div class="wide"><table>\n<thead><tr><th scope="col">cause</th><th scope="col" class="n">worth, a step</th>'
        '<th scope="col" class="n">points of MFU</th><th scope="col"><span class="dim">worth</span></th>'
        '<th scope="col">confidence</th><th scope="col">what to do</th></tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _how(found: Diagnosis) -> str:
    if found.worth is None:
        return " ".join(found.notes) or "What a replay of the trace saves without each."
    worth = found.worth
    ways = {
        "single": "What the step gains when the run is made again without each, alone.",
        "cumulative": "What the step gains when each is removed after those before it, in a fixed order.",
        "shapley": "Shapley values: what the step gains, mean over orders of removal.",
    }
    whole = f"All removed: {time_with_unit(worth.all_s)} of {time_with_unit(worth.gap_s)} to explain."
    return f"{ways[worth.method]} {whole}"


def _waterfall(found: Diagnosis) -> str:
    unit = time_unit(found.step_s)
    rows, at = [], 0.0
    for item in found.waterfall:
        if abs(item.seconds) < _LEAST * found.step_s:
            at += item.seconds
            continue
        start = 100 * min(at, at + item.seconds) / found.step_s
        width = 100 * abs(item.seconds) / found.step_s
        rows.append(
            f'<span role="rowheader">{escape(item.name)}</span>'
            f'<span class="track" role="cell"><span style="left:{start:.2f}%;width:{width:.2f}%;'
            f'background:var(--{colour(item.name)})"></span></span>'
            f'<span class="n" role="cell">{unit.of(item.seconds)} {unit.name}'
            f'<span class="points dim">, {item.mfu_points:.1f}%</span></span>'
        )
        at += item.seconds
    rows.append(
        f'<span class="total" role="rowheader">step</span><span class="track" role="cell"></span>'
        f'<span class="n total" role="cell">{unit.of(found.step_s)} {unit.name}</span>'
    )
    body = "\n".join(f'<div role="row" style="display:contents">{row}</div>' for row in rows)
    return (
        '<h2>Where the step went</h2>\n<p class="dim">Each second in one item; the items add up to the step.</p>\n'
        f'<div class="fall" role="table" aria-label="Waterfall of the step">\n{body}\n</div>'
    )


def _timeline(found: Diagnosis, drawn: dict[str, Any]) -> str:
    unit = time_unit(found.step_s)
    used = sorted({one for lane in drawn["lanes"] for row in lane["rows"] for one in row["cause"]})
    keys = "".join(
        f'<li><span style="background:var(--{colour(drawn["causes"][one])})"></span>'
        f"{'compute' if drawn['causes'][one] == names.BELOW_PEAK else escape(drawn['causes'][one])}</li>"
        for one in used
    )
    steps = "".join(
        f'<option value="{at}">step {number}: {unit.of((end - start) * drawn["tick_s"])} {unit.name}</option>'
        for at, (number, start, end) in enumerate(drawn["steps"])
    )
    return (
        "<h2>Timeline of chosen ranks</h2>\n"
        '<p class="dim">Of each rank the GPU: what ran, and gaps by their cause; below, communication (waiting for '
        "the last member, then moving bytes) and the host. "
        f"It begins at {drawn['start_s']:.3f} s.</p>\n"
        '<div class="tools"><button type="button" id="closer">Zoom in</button>'
        '<button type="button" id="wider">Zoom out</button><button type="button" id="whole">All</button>'
        f'<label>Show <select id="step"><option value="">all</option>{steps}</select></label>'
        '<span class="dim">or <kbd>+</kbd> <kbd>-</kbd> <kbd>Home</kbd> <kbd>Page Up</kbd> <kbd>Page Down</kbd>, '
        "arrows to read; drag to move, Ctrl and wheel to zoom</span></div>\n"
        '<canvas id="timeline" tabindex="0" role="application" aria-label="Timeline. Arrow keys read, plus and minus '
        'zoom, Page Up and Page Down move, Home shows all." aria-describedby="timeline-said"></canvas>\n'
        f'<p class="said" id="timeline-said" aria-live="polite"></p>\n<ul class="keys">{keys}</ul>\n'
        "<noscript><p>The timeline and the heat map need scripts; all else is here.</p></noscript>"
    )


def _heat(heat: dict[str, Any]) -> str:
    if not heat["ranks"]:
        return ""
    left = f" {heat['left_out']:,} ranks that stand out less are left out." if heat["left_out"] else ""
    options = "".join(
        f'<option value="{at}">{escape(one["name"])}</option>' for at, one in enumerate(heat["measures"])
    )
    return (
        '<h2>Ranks by step</h2>\n<p class="dim">Each rank in each step against the median of its stage: redder is '
        f"longer, bluer is shorter.{left}</p>\n"
        f'<div class="tools"><label>Show <select id="measure">{options}</select></label>'
        '<span class="dim" id="heat-scale"></span></div>\n'
        '<canvas id="heat" tabindex="0" role="application" aria-label="Heat map of ranks and steps. Arrow keys read a '
        'cell." aria-describedby="heat-said"></canvas>\n<p class="said" id="heat-said" aria-live="polite"></p>'
    )


def _reading(found: Diagnosis) -> str:
    return "\n".join(
        ["<h2>What was read</h2>", *_host_table(found), *_collective_table(found), *_suspect_table(found)]
    )


def _table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]], words: int = 1) -> Iterator[str]:
    """A table whose first column heads its rows; figures right, from column `words` on."""
    cells = "".join(
        f'<th scope="col"{" class=n" if at >= words else ""}>{escape(one)}</th>'
        for at, one in enumerate(head)
    )
    yield f'<div class="wide"><table>\n<caption>{escape(title)}</caption><thead><tr>{cells}</tr></thead><tbody>'
    for first, *rest in rows:
        others = "".join(
            f"<td{' class=n' if at >= words else ''}>{escape(one)}</td>" for at, one in enumerate(rest, 1)
        )
        yield f'<tr><th scope="row">{escape(first)}</th>{others}</tr>'
    yield "</tbody></table></div>"


def _host_table(found: Diagnosis) -> Iterator[str]:
    rows = []
    for name, value in sorted(found.host.items(), key=lambda one: -one[1]):
        if value > 1e-4 * found.step_s:
            seen = "; ".join(
                f"{one.name} ({time_with_unit(one.length_s)} on rank {one.rank} at {one.start_s:.3f} s)"
                for one in found.evidence.get(name, ())
            )
            rows.append(
                (name, seen or "no span of the host", time_with_unit(value), share(value / found.step_s))
            )
    if not rows:
        yield "<p>The host never kept the GPU waiting.</p>"
        return
    middle, high, longest = (time_with_unit(value) for value in found.idle.quantiles_s())
    yield (
        f"<p>GPU idle {share(found.idle.share)} of the step, in {found.idle.count:,.1f} gaps a step: half below "
        f"{middle}, nine in ten below {high}, the longest {longest}.</p>"
    )
    yield from _table(
        "Host, while the GPU had nothing to run", ("what", "seen, the longest", "a step", "share"), rows, 2
    )


def _collective_table(found: Diagnosis) -> Iterator[str]:
    def time(value: float) -> str:
        return "?" if math.isnan(value) else time_with_unit(value)

    def rate(value: float) -> str:
        return "" if math.isnan(value) else f"{value / 1e9:.1f}"

    rows = []
    for axis, one in found.collectives.items():
        times = (one.total_s, one.overlapped_s, one.exposed_s, one.waiting_s, one.moving_s)
        rates = (
            (one.busbw_bytes_per_s, one.fabric_busbw_bytes_per_s) if axis != "all" else (math.nan, math.nan)
        )
        rows.append((axis, *map(time, times), *map(rate, rates)))
    if rows:
        head = ("axis", "total", "overlapped", "exposed", "waiting", "moving", "busbw, GB/s", "fabric's")
        yield from _table("Collectives, time of a step in which one is under way", head, rows)


def _suspect_table(found: Diagnosis) -> Iterator[str]:
    rows = [
        (SUSPECTS[name][0], "not in a trace" if math.isnan(value) else SUSPECTS[name][1],
         "?" if math.isnan(value) else share(value))
        for name, value in found.suspects.items()
    ]  # fmt: skip
    yield from _table("One metric a suspect", ("suspect", "share", "value"), rows, 2)
    if found.spread.get("sort", "everyone") != "everyone":
        yield f"<p>{escape(found.spread['text'][0].upper() + found.spread['text'][1:])}.</p>"
