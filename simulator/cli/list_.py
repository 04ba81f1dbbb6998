"""List bundled models, GPUs, clusters and scenarios."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator.cli.options import JsonOption, print_json, show


def command(
    what: Annotated[str, typer.Argument(help="models, gpus, clusters, scenarios, stacks or faults.")],
    as_json: JsonOption = False,
) -> None:
    """List what comes with the simulator.

    Example: trainsim list models
    """
    from simulator.errors import SpecError, nearest

    if what not in _ROWS:
        raise SpecError.of("list", f"'{what}': nothing of that kind{nearest(what, _ROWS)}")
    rows = _ROWS[what]()
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for key, value in rows[0].items():
        table.add_column(
            key.replace("_", " "), justify="left" if isinstance(value, str) else "right", overflow="fold"
        )
    for row in rows:
        table.add_row(
            *(
                f"{v:,.4g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v
                for v in row.values()
            )
        )
    show(table)


def _models() -> list[dict[str, Any]]:
    from simulator.model import model, models
    from simulator.model.flops import parameters
    from simulator.spec import LayerList

    rows = []
    for name in models():
        one = model(name)
        if isinstance(one, LayerList):
            total = sum(layer.parameters * layer.repeat for layer in one.layers)
            rows.append({"model": name, "parameters_M": total / 1e6, "layers": len(one.layers), "hidden": 0})
        else:
            rows.append(
                {
                    "model": name,
                    "parameters_M": parameters(one).total / 1e6,
                    "layers": one.layers,
                    "hidden": one.hidden,
                }
            )
    return rows


def _gpus() -> list[dict[str, Any]]:
    from simulator.hardware import gpu, gpus

    return [
        {
            "gpu": name,
            "bf16_TFLOPs": gpu(name).peak_flops_per_s["bf16"] / 1e12,
            "memory_GB": gpu(name).memory_bytes / 1e9,
            "HBM_TB_per_s": gpu(name).memory_bandwidth_bytes_per_s / 1e12,
            "NVLink_GB_per_s": gpu(name).nvlink_bandwidth_bytes_per_s / 1e9,
            "USD_per_h": gpu(name).price_usd_per_hour,
        }
        for name in gpus()
    ]


def _clusters() -> list[dict[str, Any]]:
    from simulator.scenario import load_topology, topologies

    found = [load_topology(name) for name in topologies()]
    return [{"cluster": one.name, "family": one.family, "gpu": one.gpu} for one in found]


def _scenarios() -> list[dict[str, Any]]:
    from simulator.scenario import bundled, scenarios

    rows = []
    for name in scenarios():
        first = (bundled("scenarios") / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        rows.append({"scenario": name, "about": first.lstrip("# ")})
    return rows


def _stacks() -> list[dict[str, Any]]:
    from simulator.hardware import stack, stacks

    return [
        {"stack": name, "launch_us": stack(name).launch_time_s * 1e6, "source": stack(name).source}
        for name in stacks()
    ]


def _faults() -> list[dict[str, Any]]:
    from simulator.faults import kinds

    return [
        {
            "fault": name,
            "size": ", ".join(cls.__dataclass_fields__),
            "about": (cls.__doc__ or "").strip().partition("\n")[0],
        }
        for name, cls in sorted(kinds().items())
    ]


_ROWS = {
    "models": _models,
    "gpus": _gpus,
    "clusters": _clusters,
    "scenarios": _scenarios,
    "stacks": _stacks,
    "faults": _faults,
}
