"""Compare scenarios: where the difference goes"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.cli.options import AllowOom, JsonOption, SetOption, overrides, print_json, show


def command(
    scenarios: Annotated[list[str], typer.Argument(help="Two or more scenarios; or one, with --set.")],
    settings: SetOption = None,
    as_json: JsonOption = False,
    allow_oom: AllowOom = False,
) -> None:
    """Print the waterfalls of scenarios side by side. With one scenario and --set: without and with it.

    Example: trainsim compare gpt2-xl-ddp --set overlap.grad_reduce=false
    """
    from simulator.errors import SpecError
    from simulator.study.simulate import simulate

    changes: dict[str, Any] = dict(overrides(settings))
    if len(scenarios) == 1 and changes:
        results = [simulate(scenarios[0], allow_oom=allow_oom)]
        results.append(simulate(scenarios[0], allow_oom=allow_oom, **changes))
        names = ["as it is", "changed"]
    elif len(scenarios) > 1:
        results = [simulate(one, allow_oom=allow_oom, **changes) for one in scenarios]
        names = [result.scenario for result in results]
    else:
        raise SpecError.of("compare", "one scenario: expected two, or --set")
    if as_json:
        print_json([{"name": name, **result.to_dict()} for name, result in zip(names, results, strict=True)])
        return
    from simulator.report.sweep_table import comparison

    show(comparison(results, names))
