"""Accept: what acceptance tests would find on a scenario's cluster"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption, ScenarioArgument, SetOption, overrides, print_json


def command(
    scenario: ScenarioArgument,
    settings: SetOption = None,
    gemm: Annotated[float, typer.Option(help="Least share of a healthy GPU's GEMMs.")] = 0.95,
    hbm: Annotated[float, typer.Option(help="Least share of a healthy GPU's memory stream.")] = 0.95,
    nvlink: Annotated[float, typer.Option(help="Least share of a healthy node's all-reduce.")] = 0.95,
    nic: Annotated[float, typer.Option(help="Least share of a healthy pair of NICs.")] = 0.95,
    all_reduce: Annotated[float, typer.Option(help="Least share of a healthy all-node all-reduce.")] = 0.90,
    burn: Annotated[float, typer.Option(help="Seconds that the GEMMs run.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """GEMM burn, HBM stream, NVLink and all-node all-reduce, NIC pairs: pass or fail; exit 1 on a fail.

    Example: trainsim accept slow-nic
    """
    from simulator.report.acceptance_table import report
    from simulator.study.acceptance import Thresholds, accept
    from simulator.study.simulate import load

    least = Thresholds(gemm, hbm, nvlink, nic, all_reduce)
    found = accept(load(scenario, dict(overrides(settings))), least, burn_s=burn)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(report(found))
    if not found.passed:
        raise typer.Exit(1)
