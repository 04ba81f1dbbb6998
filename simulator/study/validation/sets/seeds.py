"""The statements that the project starts from, each from its inputs (validation/seeds/seeds.csv)."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.flops import parameters as count
from simulator.planning import ask
from simulator.planning.recompute import layer_bytes, layer_flops
from simulator.study.validation.base import Row, Task, table, validation_set

_PEAK = 989e12
_FLOPS = 6.35e24


def _days(mfu: float) -> float:
    return ask("duration", flops=_FLOPS, gpus=16384.0, peak=_PEAK, mfu=mfu).value


def _step(answer: str, name: str, **inputs: float) -> float:
    found = ask(answer, **inputs)
    return next(step.value for step in found.steps if step.name == name)


def _llama_mfu() -> float:
    """Llama 3.1 405B at 430 model TFLOP/s a GPU (arXiv:2407.21783, table 4), through tokens a second."""
    from simulator.model import model
    from simulator.spec import Transformer

    transformer = model("llama-3.1-405b")
    assert isinstance(transformer, Transformer)
    each = 6.0 * count(transformer).total + 12.0 * 126 * 16384 * 8192
    rate = 430e12 * 8192 / each
    return ask(
        "mfu", parameters=float(count(transformer).total), peak=_PEAK, gpus=8192.0, tokens_per_s=rate,
        layers=126.0, hidden=16384.0, sequence_length=8192.0,
    ).value  # fmt: skip


@validation_set("seeds")
def seeds() -> Iterator[Task]:
    """Every row of seeds.csv."""
    h, a, s = 12288.0, 96.0, 2048.0
    memory = layer_bytes(s, 1, h, a, 1, "none", False) / layer_bytes(s, 1, h, a, 1, "full", False)
    selective = 4 * s * s * h / (3 * layer_flops(s, 1, h))
    implied = ask("implied-mfu", flops=3.79e25, hours=30.84e6, peak=_PEAK).value
    price = ask("price", parameters=70e9, peak=_PEAK, price_per_hour=2.5).value
    rows = [
        Row("mfu", 0.43, _llama_mfu(), "", "MFU of Llama 3.1 405B on 8,192 H100", 0.02),
        Row("recompute", 4 / 3, (6 + 2) / 6, "", "8 N over 6 N", 1e-9),
        Row("recompute-memory", 10.0, memory, "x", "at least an order of magnitude", None),
        Row("selective-recompute", 0.05, selective, "", "at most 5%", None),
        Row("fleet-days", 11.3, _days(0.4), "days", "at MFU 0.4", 0.005),
        Row("fleet-days, MFU 0.5", 9.1, _days(0.5), "days", "at MFU 0.5", 0.005),
        Row("fleet-days, MFU 0.3", 15.1, _days(0.3), "days", "at MFU 0.3", 0.005),
        Row("fleet-gpus", 6193.0, ask("gpus", flops=_FLOPS, days=30.0, peak=_PEAK).value, "GPUs", "in 30 days", 0.005),
        Row(
            "fleet-gpus, with 15%", 7122.0,
            _step("gpus", "with 15% margin", flops=_FLOPS, days=30.0, peak=_PEAK), "GPUs", "with the margin", 0.005,
        ),
        Row(
            "fleet-gpus, power of two", 8192.0,
            _step("gpus", "with margin, next power of two", flops=_FLOPS, days=30.0, peak=_PEAK), "GPUs",
            "rounded up", 1e-9,
        ),
        Row("six-nd", 3.79e25, ask("flops", parameters=405e9, tokens=15.6e12).value, "FLOP", "6 N D", 0.005),
        Row("implied-mfu", 0.345, implied, "", "MFU", 0.0087),
        Row("token-price", 7.4e-7, price, "USD", "a token", 0.02),
        Row(
            "token-price, the run", 11.1e6,
            _step("price", "the run", parameters=70e9, peak=_PEAK, price_per_hour=2.5, tokens=15e12), "USD",
            "15e12 tokens", 0.02,
        ),
    ]  # fmt: skip
    ids = {entry["id"] for entry in table("seeds", "seeds")}
    assert ids <= {row.name.partition(",")[0] for row in rows}
    for row in rows:
        if row.name == "recompute-memory":
            row = Row(row.name, 10.0, memory, "x", row.metric, None if memory >= 10 else 0.0)  # noqa: PLW2901
        if row.name == "selective-recompute":
            row = Row(row.name, 0.05, selective, "", row.metric, None if selective < 0.05 else 0.0)  # noqa: PLW2901
        yield Task(row)
