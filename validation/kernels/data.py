"""Measured kernels that others published, and which of them are held back from fits.

kernels.csv: fractions of the dense peak from SimuMax 1.2's system files (B200 SXM, A100 PCIe);
forward-kernels.csv: median times from Vidur's profiling data (Agrawal et al., MLSys 2024; A100 and H100
SXM); attention.csv: FLOP rates read off flash-attention's plots (A100 and H100 SXM), 16,384 tokens and a
hidden size of 2048 each. SimuMax counts attention's FLOPs over the whole square of scores; half of it is
worked through.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.model.blocks import Kernel

HERE = Path(__file__).parent
GPUS = {
    "a100_sxm_80g": "a100-sxm",
    "h100_sxm_80g": "h100-sxm",
    "b200_sxm": "b200-sxm",
    "a100_pcie_80g": "a100-pcie",
}
#: HBM bytes for each element of the output: bf16 written; fp32 or bf16 read and written.
WRITTEN = {"bf16": 2.0, "accumulate-fp32": 8.0, "accumulate-bf16": 4.0}
#: Bytes that a streaming kernel moves for each of m x n elements, in 16-bit types.
STREAMED = {"rmsnorm": 4, "layernorm": 4, "gelu": 4, "residual_add": 6, "swiglu": 6}
#: The kernels measured: PyTorch's layer norm, vLLM's RMSNorm and SwiGLU.
STREAMING = {"rmsnorm": "norm-scalar", "layernorm": "norm-torch", "swiglu": "gate-scalar"}
#: Attention on B200 takes this long however few heads there are: the host's time, not the kernel's.
HOST_BOUND_S = {"forward": 108e-6, "backward": 125e-6}
PASSES = {"sdp_fwd": "forward", "sdp_bwd": "backward"}


@dataclass(frozen=True, slots=True)
class Row:
    gpu: str
    op: str
    kernel: Kernel
    written: float  # bytes of output traffic an element; GEMM
    time_s: float
    kernels: tuple[Kernel, ...] = ()  # measured together, where more than one

    @property
    def held(self) -> bool:
        """Not fitted: an odd first byte of the SHA-256 of GPU and shape, whatever layout or type."""
        text = f"{self.gpu}:{self.kernel.shape}"
        return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


def rows() -> Iterator[Row]:
    """All measured kernels, in the order of the files."""
    yield from map(_timed, _read("forward-kernels.csv"))
    yield from filter(_device_bound, map(_fraction, _read("kernels.csv")))
    yield from map(_plotted, _read("attention.csv"))


def _device_bound(row: Row) -> bool:
    kind, _, way = row.op.partition(" ")
    return not (kind == "attention" and row.gpu == "b200-sxm" and row.time_s < HOST_BOUND_S[way])


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _timed(row: dict[str, str]) -> Row:
    m, n, k = (int(row[key]) for key in ("m_tokens", "n", "k"))
    gpu, op, time_s = GPUS[row["gpu"]], row["op"], float(row["time_us"]) * 1e-6
    if op == "gemm":
        return Row(gpu, op, Kernel(op, op, 2.0 * m * n * k, 0.0, (m, n, k, 1), layout="TN"), 2.0, time_s)
    kind = STREAMING.get(op, "elementwise")
    return Row(gpu, op, Kernel(op, kind, 0.0, float(STREAMED[op] * m * n), (m, n)), 0.0, time_s)


def _fraction(row: dict[str, str]) -> Row:
    shape = dict(part.split("=") for part in row["shape"].split(", "))
    gpu, op, written = GPUS[row["gpu"]], row["op"], 2.0
    if op == "matmul":
        m, n, k, b = (int(shape[key]) for key in ("m", "n", "k", "b"))
        layout, counted = shape["layout"], 2.0 * m * n * k * b
        if shape["accumulate"] == "True":
            written = WRITTEN[f"accumulate-{shape['out_dtype']}"]
            layout += "-accumulate"
        kernel, op = Kernel("gemm", "gemm", counted, 0.0, (m, n, k, b), layout=layout), "gemm"
    elif op == "group_matmul":
        groups, tokens, n, k = (int(shape[key]) for key in ("ng", "M", "N", "K"))
        counted, stage = 2.0 * groups * tokens * n * k, shape["stage"]
        op, layout = f"grouped-gemm {stage}", "TN"
        sizes = (groups, tokens, n, k)
        if stage == "bwd_grad_act":
            sizes, layout = (groups, tokens, k, n), "NN"
        elif stage == "bwd_grad_w":
            sizes = (groups, n, k, tokens)
            layout = "NT-accumulate" if shape["main_grad_dtype"] == "fp32" else "NT-accumulate-bf16"
        kernel = Kernel(op, "grouped-gemm", counted, 0.0, sizes, layout=layout)
    else:
        names = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
        batch, length, heads, kv_heads, head, v_head = (int(shape[key]) for key in names)
        op = PASSES[op]
        counted = 2.0 * batch * heads * length**2 * (head + v_head) * (2.5 if op == "backward" else 1.0)
        scores = (batch, heads, kv_heads, length, length, head, v_head)
        kernel, op = Kernel(op, f"cudnn-{op}", counted / 2, 0.0, scores, layout="causal"), f"attention {op}"
    time_s = counted / (float(row["peak_tflops"]) * 1e12 * float(row["fraction_of_peak"]))
    return Row(gpu, op, kernel, written, time_s)


def _plotted(row: dict[str, str]) -> Row:
    """`fwd+bwd` is one figure for both passes."""
    length, head, causal = int(row["seqlen"]), int(row["head_dim"]), row["causal"] == "True"
    batch, heads = 16384 // length, 2048 // head
    flops = 4.0 * batch * heads * length**2 * head * (0.5 if causal else 1.0)
    name, layout = row["implementation"], "causal" if causal else "full"
    sizes = (batch, heads, heads, length, length, head, head)
    forward = Kernel("attention", f"{name}-forward", flops, 0.0, sizes, layout=layout)
    backward = Kernel("attention", f"{name}-backward", 2.5 * flops, 0.0, sizes, layout=layout, launches=3)
    kernels = (forward,) if row["pass"] == "forward" else (forward, backward)
    time_s = sum(one.flops for one in kernels) / (float(row["tflops"]) * 1e12)
    return Row(row["gpu"], f"{name} {row['pass']}", forward, 0.0, time_s, kernels)
