"""Show a pipeline schedule: order, bubble, micro-batches in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, whole_file


def command(
    name: Annotated[
        str, typer.Argument(help="gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2, zb-v or dualpipe.")
    ],
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 4,
    micro_batches: Annotated[int, typer.Option(min=1)] = 8,
    virtual_stages: Annotated[int, typer.Option(min=1)] = 1,
    svg: Annotated[Path | None, typer.Option(help="Draw it into a file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a schedule over time, with forward, input and weight passes of one unit each.

    F forward, B backward of two units, I and W the backward's halves; a letter after the number is the
    chunk; passes in one bracket run side by side.

    Example: trainsim schedule interleaved-1f1b --pp 4 --micro-batches 8 --virtual-stages 2
    """
    from simulator.parallel.schedules import find_schedule
    from simulator.parallel.schedules.unit_time import unit_times

    check_writable(svg)
    plan = find_schedule(name)
    virtual = plan.virtual_stages or virtual_stages
    timed = unit_times(plan, pp, micro_batches, virtual)
    in_flight = [
        sum(plan.in_flight(s, pp, micro_batches, virtual)) * plan.copies / virtual for s in range(pp)
    ]
    if svg is not None:
        from simulator.report.schedule_svg import draw

        title = (
            f"{name}: {pp} stages, {micro_batches} micro-batches, bubble {100 * timed.bubble_fraction:.1f}%"
        )
        with whole_file(svg) as stream:
            stream.write(draw(timed, title).encode())
    if as_json:
        print_json(
            {
                "schedule": name,
                "length": timed.length,
                "bubble_fraction": timed.bubble_fraction,
                "in_flight": in_flight,
                "stages": [
                    [
                        {
                            "kind": a.kind,
                            "micro_batch": a.micro_batch,
                            "chunk": a.chunk,
                            "beside": a.beside,
                            "start": start,
                            "end": end,
                        }
                        for a, start, end in stage
                    ]
                    for stage in timed.stages
                ],
            }
        )
        return
    for number, line in enumerate(timed.drawing()):
        print(f"stage {number:<2} {line}")
    print(f"bubble {100 * timed.bubble_fraction:.1f}% of the time beside the work")
    if plan.copies > 1:
        print(
            f"each part of the model stands {plan.copies} times; stages that mirror each other share gradients"
        )
    print("in flight by stage: " + ", ".join(f"{held:g}" for held in in_flight))
