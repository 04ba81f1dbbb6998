"""MFU from a step time or a rate of tokens, under every convention people use."""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.planning.answer import Answer, Step, positive, question

#: the band of frontier runs (Llama 3.1 405B: 0.38 to 0.43; arXiv:2407.21783, table 4)
BAND = (0.38, 0.43)


def conventions(
    parameters: float, embedding: float, layers: float, hidden: float, sequence_length: float
) -> dict[str, float]:
    """FLOPs a token, forward and backward, by convention. `hidden`: heads x head size."""
    scores = 12.0 * layers * hidden * sequence_length
    without = parameters - embedding
    return {
        "6N": 6.0 * parameters,
        "6N + 12 L h s (full attention)": 6.0 * parameters + scores,
        "6N + 6 L h s (causal half)": 6.0 * parameters + scores / 2,
        "6N without embeddings": 6.0 * without,
        "6N without embeddings + 12 L h s": 6.0 * without + scores,
        "6N without embeddings + 6 L h s": 6.0 * without + scores / 2,
    }


@question("mfu")
def mfu(
    parameters: float,
    peak: float,
    gpus: float = 1,
    tokens_per_s: float | None = None,
    step_time_s: float | None = None,
    tokens: float | None = None,
    layers: float = 0,
    hidden: float = 0,
    sequence_length: float = 0,
    embedding: float = 0,
    sparse_peak: float | None = None,
    published: float | None = None,
) -> Answer:
    """MFU in four lines, under all conventions; with `published`, which convention gave that figure."""
    positive(parameters, "parameters")
    if tokens_per_s is None:
        if step_time_s is None or tokens is None:
            raise SpecError.of("tokens_per_s", "missing: give it, or step_time and tokens a step")
        tokens_per_s = positive(tokens, "tokens") / positive(step_time_s, "step_time_s")
    rate = positive(tokens_per_s, "tokens_per_s")
    could = positive(gpus, "gpus") * positive(peak, "peak")
    known = conventions(parameters, embedding, layers, hidden, sequence_length)
    chosen = "6N + 12 L h s (full attention)" if layers and hidden and sequence_length else "6N"
    value = known[chosen] * rate / could
    steps = [
        Step("FLOPs a token", known[chosen], "FLOP"),
        Step("tokens a second", rate, "/s"),
        Step("FLOPs a second", known[chosen] * rate, "FLOP/s"),
        Step("GPUs x peak", could, "FLOP/s"),
    ]
    shown = {name: each * rate / could for name, each in known.items() if layers or "s" not in name[2:]}
    shown |= {"with full recomputation counted (not MFU)": known[chosen] * 4 / 3 * rate / could}
    sparse = sparse_peak or 2 * peak
    every = dict(shown)
    for name, figure in shown.items():
        every[f"{name}, sparse peak"] = figure * peak / sparse
    steps += [Step(name, figure) for name, figure in every.items()]
    inputs = {
        "parameters": parameters, "peak": peak, "gpus": gpus, "tokens_per_s": rate, "layers": layers,
        "hidden": hidden, "sequence_length": sequence_length, "embedding": embedding,
    }  # fmt: skip
    return Answer(
        "mfu",
        f"{chosen} x tokens/s / (GPUs x peak)",
        inputs,
        tuple(steps),
        value,
        "",
        _notes(value, published, every),
    )


def _notes(value: float, published: float | None, every: dict[str, float]) -> tuple[str, ...]:
    low, high = BAND
    where = "below" if value < low else "above" if value > high else "inside"
    notes = [
        f"{where} the band of frontier runs, {100 * low:.0f} to {100 * high:.0f}%; the rest is to explain"
    ]
    if value > 1:
        notes.append("above 1: an input is off, for nothing runs faster than its peak")
    if published is not None:
        name = min(every, key=lambda one: abs(every[one] - published))
        error = every[name] / published - 1
        notes.append(
            f"the published {100 * published:.1f}% is nearest to {name}: {100 * every[name]:.1f}% ({100 * error:+.1f}%)"
        )
    return tuple(notes)
