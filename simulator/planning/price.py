"""What a token costs: in training, and in decoding on the same GPU."""

from __future__ import annotations

from simulator.planning.answer import Answer, Step, part, positive, question
from simulator.planning.fleet import HOUR_S


@question("price")
def price(
    parameters: float,
    peak: float,
    price_per_hour: float,
    mfu: float = 0.4,
    tokens: float | None = None,
    bandwidth: float | None = None,
    decode_batch: float = 1,
    weight_bytes: float = 2,
) -> Answer:
    """Price of a training token and of a run; with `bandwidth`, of a decode token on the same GPU."""
    each = 6.0 * positive(parameters, "parameters")
    rate = positive(peak, "peak") * part(mfu, "mfu")
    a_second = positive(price_per_hour, "price_per_hour") / HOUR_S
    value = each / rate * a_second
    steps = [
        Step("FLOPs a token, 6 N", each, "FLOP"),
        Step("seconds of a GPU a token", each / rate, "s"),
        Step("price of a second", a_second, "USD"),
        Step("a training token", value, "USD"),
    ]
    notes = []
    if tokens is not None:
        steps.append(Step("the run", value * positive(tokens, "tokens"), "USD"))
    if bandwidth is not None:
        read = parameters * positive(weight_bytes, "weight_bytes")
        decode = read / positive(bandwidth, "bandwidth") / positive(decode_batch, "decode_batch") * a_second
        steps += [
            Step("bytes of weights read a decode step", read, "B"),
            Step("a decode token", decode, "USD"),
            Step("decode over training", decode / value),
        ]
        if decode > value:
            notes.append(
                "training reads each weight once for thousands of tokens and is bound by FLOPs; decoding "
                f"reads all weights for {decode_batch:g} token(s) and is bound by HBM"
            )
    inputs = {
        "parameters": parameters, "peak": peak, "price_per_hour": price_per_hour, "mfu": mfu, "tokens": tokens,
        "bandwidth": bandwidth, "decode_batch": decode_batch,
    }  # fmt: skip
    return Answer(
        "price", "6 N / (peak x MFU) x price an hour / 3600", inputs, tuple(steps), value, "USD", tuple(notes)
    )
