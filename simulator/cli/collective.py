"""Time a collective on a cluster, as nccl-tests prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, show, whole_file


def command(
    kind: Annotated[
        str,
        typer.Argument(help="all-reduce, reduce-scatter, all-gather, all-to-all, broadcast or send-recv."),
    ],
    cluster: Annotated[str, typer.Option(help="Topology: bundled name or path.")] = "dgx-h100",
    nodes: Annotated[int | None, typer.Option(help="Nodes; all their GPUs take part.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs, if not whole nodes.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Another GPU than the topology's.")] = None,
    size: Annotated[str, typer.Option(help="One size, or first..last in steps of two.")] = "8B..8GB",
    group: Annotated[
        str | None, typer.Option(help="Groups at once: N (consecutive GPUs) or rails (one GPU a node).")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="auto, or force one.")] = "auto",
    protocol: Annotated[str, typer.Option(help="auto, LL, LL128, Simple or ideal.")] = "auto",
    measured: Annotated[Path | None, typer.Option(help="nccl-tests output to compare with.")] = None,
    overlay: Annotated[Path | None, typer.Option(help="Constants from trainsim calibrate.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart (HTML; needs the extra 'plot').")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print time, algbw and busbw of a collective by size.

    With --group, all groups run at once and share what links they share. With --measured, the sizes are
    the measured ones and the last column is the error.

    Example: trainsim collective all-reduce --cluster dgx-h100 --nodes 16 --size 8B..8GB
    """
    from simulator.study.collectives import Question, rows

    check_writable(plot)
    question = Question(kind, cluster, nodes, gpus, gpu, size, group, algorithm, protocol, measured, overlay)
    found = rows(question)
    if plot is not None:
        from simulator.report.collective_plot import page

        with whole_file(plot) as stream:
            stream.write(page(found, f"{kind} on {cluster}").encode())
    if as_json:
        print_json([row.to_dict() for row in found])
        return
    from simulator.report.collective_table import table

    show(table(found, measured=measured is not None))
