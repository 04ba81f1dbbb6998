"""How often to save: Young (1974), Daly (2006)."""

from __future__ import annotations

import math

from simulator.planning.answer import Answer, Step, positive, question


def young_s(cost_s: float, mttf_s: float) -> float:
    """sqrt(2 d M): Young 1974, "A first order approximation to the optimum checkpoint interval"."""
    return math.sqrt(2 * cost_s * mttf_s)


def daly_s(cost_s: float, mttf_s: float) -> float:
    """The higher-order form of Daly 2006, "A higher order estimate of the optimum checkpoint interval"."""
    if cost_s >= 2 * mttf_s:
        return mttf_s
    ratio = math.sqrt(cost_s / (2 * mttf_s))
    return math.sqrt(2 * cost_s * mttf_s) * (1 + ratio / 3 + ratio**2 / 9) - cost_s


def lost(interval_s: float, cost_s: float, mttf_s: float, restart_s: float) -> float:
    """Share of time that saving, work done twice and restarts take, to first order."""
    return cost_s / interval_s + (interval_s / 2 + restart_s) / mttf_s


@question("checkpoint")
def checkpoint(
    cost_s: float, mttf_s: float | None = None, gpus: float | None = None,
    gpu_mttf_s: float | None = None, restart_s: float = 600.0,
) -> Answer:  # fmt: skip
    """The interval that loses least. The job's MTTF, or one GPU's over the number of GPUs."""
    if mttf_s is None:
        mttf_s = positive(gpu_mttf_s or 0, "gpu_mttf") / positive(gpus or 0, "gpus")
    positive(mttf_s, "mttf")
    young, daly = young_s(positive(cost_s, "cost"), mttf_s), daly_s(cost_s, mttf_s)
    share = lost(daly, cost_s, mttf_s, restart_s)
    steps = (
        Step("mean time to failure", mttf_s, "s"),
        Step("Young", young, "s"),
        Step("Daly", daly, "s"),
        Step("share of time lost at Daly's interval", share),
        Step("goodput", 1 - share),
    )
    inputs = {"cost_s": cost_s, "mttf_s": mttf_s, "restart_s": restart_s, "gpus": gpus}
    return Answer("checkpoint", "sqrt(2 d M), and Daly's higher order", inputs, steps, daly, "s")
