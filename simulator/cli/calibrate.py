"""Fit a cluster's network constants to nccl-tests output"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, check_writable, print_json, whole_file


def command(
    measured: Annotated[Path, typer.Argument(help="Output of nccl-tests (text or -J JSON).")],
    cluster: Annotated[str, typer.Option(help="Topology that was measured.")] = "dgx-h100",
    gpus: Annotated[int, typer.Option(min=2, help="GPUs that took part.")] = 8,
    kind: Annotated[str, typer.Option(help="The collective.")] = "all-reduce",
    algorithm: Annotated[str, typer.Option(help="The algorithm that NCCL used.")] = "ring",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Overlay file to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit what of the line rate is reached, the launch and the ramp; print the residuals.

    Example: trainsim calibrate all_reduce.txt --cluster dgx-a100 --gpus 8 -o my-node.toml
    """
    from simulator.formats.nccl_tests import read_nccl_tests
    from simulator.hardware import gpu
    from simulator.network import fabric as fabrics
    from simulator.scenario import load_topology
    from simulator.study.calibration import fit
    from simulator.units import show_time

    check_writable(output)
    topology = load_topology(cluster)
    fabric = fabrics.build(topology, gpus, gpu(topology.gpu))
    found = fit(fabric, kind, read_nccl_tests(measured).rows, algorithm)
    one = found.constants
    if output is not None:
        with whole_file(output) as stream:
            stream.write(found.to_toml(measured.name).encode())
    if as_json:
        rows = [
            {"size_bytes": size, "measured_s": seen, "fitted_s": ours, "error": error}
            for size, seen, ours, error in found.rows
        ]
        print_json(
            {
                "reached": one.reached[found.kind],
                "launch_s": one.launch_s,
                "ramp_bytes": one.ramp_bytes[found.kind],
                "median_error": found.median_error,
                "rows": rows,
            }
        )
        return
    print(f"{'size (B)':>12} {'measured':>10} {'fitted':>10} {'error':>7}")
    for size, seen, ours, error in found.rows:
        print(f"{size:>12.0f} {show_time(seen):>10} {show_time(ours):>10} {100 * error:>+6.1f}%")
    print(
        f"{found.kind}: {100 * one.reached[found.kind]:.1f}% of the line rate, launch {show_time(one.launch_s)}, "
        f"ramp {one.ramp_bytes[found.kind] / 1e6:.2f} MB; median error {100 * found.median_error:.1f}%"
    )
