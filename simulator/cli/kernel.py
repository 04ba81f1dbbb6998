"""Time one kernel on one GPU: bound, efficiency"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption, print_json


def command(
    op: Annotated[str, typer.Argument(help="gemm, attention, norm or elementwise.")],
    gpu: Annotated[str, typer.Option(help="A GPU of the catalogue.")] = "h100-sxm",
    m: Annotated[int, typer.Option(min=1)] = 4096,
    n: Annotated[int, typer.Option(min=1)] = 4096,
    k: Annotated[int, typer.Option(min=1)] = 4096,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    heads: Annotated[int, typer.Option(min=1)] = 32,
    head_dim: Annotated[int, typer.Option(min=1)] = 128,
    length: Annotated[int, typer.Option(min=1, help="Sequence length, for attention.")] = 4096,
    backward: Annotated[bool, typer.Option(help="The backward, for attention.")] = False,
    implementation: Annotated[str, typer.Option(help="flash1, flash2, flash3, triton or cudnn.")] = "flash2",
    precision: Annotated[str, typer.Option()] = "bf16",
    as_json: JsonOption = False,
) -> None:
    """Print how long a kernel takes, what bounds it, and the part of the peak that it reaches.

    Example: trainsim kernel gemm --m 8192 --n 8192 --k 8192 --gpu h100-sxm
    """
    from simulator.errors import SpecError, nearest
    from simulator.hardware import gpu as find_gpu
    from simulator.hardware import kernel_cost
    from simulator.model.blocks import Kernel
    from simulator.units import show_bandwidth, show_flops, show_time

    found = find_gpu(gpu)
    known = ("gemm", "attention", "norm", "elementwise")
    if op not in known:
        raise SpecError.of("op", f"'{op}': no such kernel{nearest(op, known)}")
    if precision.partition("-")[0] not in found.peak_flops_per_s:
        raise SpecError.of("--precision", f"'{precision}': {gpu} has no such units")
    if op == "gemm":
        flops, moved = 2.0 * m * n * k * batch, 2.0 * batch * (m * k + n * k + m * n)
        kernel = Kernel("gemm", "gemm", flops, moved, (m, n, k, batch), precision)
    elif op == "attention":
        way = "backward" if backward else "forward"
        flops = 2.0 * batch * heads * length * length * head_dim * (2.5 if backward else 1.0)
        moved = 2.0 * batch * length * heads * head_dim * 4
        shape = (batch, heads, heads, length, length, head_dim, head_dim)
        kernel = Kernel("attention", f"{implementation}-{way}", flops, moved, shape, precision)
    else:
        flops, moved = float(m * n), 4.0 * m * n
        kernel = Kernel(op, op, flops, moved, (m, n), precision)
    cost = kernel_cost(kernel, found)
    peak = found.peak_flops_per_s[precision.partition("-")[0]]
    bound = "compute" if cost.compute_s >= cost.memory_s else "memory"
    answer = {
        "gpu": gpu,
        "time_s": cost.duration_s,
        "bound": bound,
        "flops_per_s": flops / cost.duration_s,
        "part_of_peak": flops / cost.duration_s / peak,
        "bytes_per_s": moved / cost.duration_s,
        "part_of_bandwidth": moved / cost.duration_s / found.memory_bandwidth_bytes_per_s,
        "compute_s": cost.compute_s,
        "memory_s": cost.memory_s,
    }
    if as_json:
        print_json(answer)
        return
    print(f"{op} on {gpu}, {precision}: {show_time(cost.duration_s)}, bound by {bound}")
    print(
        f"  {show_flops(flops / cost.duration_s)}, {100 * flops / cost.duration_s / peak:.1f}% of the dense peak"
    )
    share = moved / cost.duration_s / found.memory_bandwidth_bytes_per_s
    print(f"  {show_bandwidth(moved / cost.duration_s)}, {100 * share:.1f}% of the HBM bandwidth")
