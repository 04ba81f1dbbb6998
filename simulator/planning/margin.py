"""Why 15% are added before a number is named."""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.planning.answer import Answer, Step, question
from simulator.planning.checkpoint import daly_s, lost


@question("margin")
def margin(
    gpus: float = 16384, failures_per_day: float = 7.76, checkpoint_s: float = 5.0, restart_s: float = 300.0,
    evaluation: float = 0.02, spare: float = 0.02, mfu_slack: float = 0.05,
) -> Answer:  # fmt: skip
    """The parts of the margin: failures, saves, evaluations, spare nodes, an MFU below the planned one.

    Defaults: 419 unexpected interruptions in 54 days (The Llama 3 herd of models, arXiv:2407.21783, table 5).
    """
    for name, value in {"evaluation": evaluation, "spare": spare, "mfu_slack": mfu_slack}.items():
        if not 0 <= value < 1:
            raise SpecError.of(name, f"{value!r}: expected 0 or more and less than 1")
    if failures_per_day < 0 or checkpoint_s <= 0:
        raise SpecError.of("failures_per_day", f"{failures_per_day!r}: expected 0 or more")
    mttf = 86400.0 / failures_per_day if failures_per_day else float("inf")
    failed = lost(daly_s(checkpoint_s, mttf), checkpoint_s, mttf, restart_s) if failures_per_day else 0.0
    if failed >= 1:
        raise SpecError.of("failures_per_day", f"{failures_per_day!r}: the job would never get on")
    kept = (1 - failed) * (1 - evaluation) * (1 - spare) * (1 - mfu_slack)
    steps = (
        Step("saving, work done twice, restarts", failed),
        Step("evaluation and data pauses", evaluation),
        Step("spare nodes", spare),
        Step("MFU below the planned one", mfu_slack),
        Step("what is left of the time", kept),
    )
    inputs = {
        "gpus": gpus, "failures_per_day": failures_per_day, "checkpoint_s": checkpoint_s, "restart_s": restart_s,
        "evaluation": evaluation, "spare": spare, "mfu_slack": mfu_slack,
    }  # fmt: skip
    notes = ("the usual 15% covers the parts above; take more where failures or MFU are worse",)
    return Answer("margin", "1 / product of what is left - 1", inputs, steps, 1 / kept - 1, "", notes)
