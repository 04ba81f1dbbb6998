"""`nvidia-smi topo -m`: a matrix of how GPUs and NICs of one machine reach each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from simulator.errors import FileFormatError
from simulator.formats.topology_text import Imported, gpu_by_nvlinks, read_text

#: from near to far
_NEAR: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")


def read_topo(path: Path) -> Imported:
    """The machine as a node of a rail-optimised cluster. Raises FileFormatError."""
    rows, header = _matrix(path, read_text(path))
    gpus = [name for name in header if name.startswith("GPU")]
    nics = [name for name in header if not name.startswith("GPU")]
    links = [int(cell[2:]) for gpu in gpus for cell in rows[gpu][: len(gpus)] if cell.startswith("NV")]
    guessed = ["nic_bandwidth: the matrix names classes only, 200 Gb/s assumed"] if nics else []
    kind = _nvlink(gpus, rows)
    gpu = gpu_by_nvlinks(max(links)) if kind == "switch" else "v100-sxm" if kind == "mesh" else "a100-pcie"
    guessed.append(f"gpu: {gpu}, by the number of its NVLinks ({max(links, default=0)})")
    parameters: dict[str, object] = {"gpus_per_node": len(gpus), "nvlink": kind, "nics": len(nics)}
    if nics:
        affinity = [_nearest(rows[gpu][len(gpus) :]) for gpu in gpus]
        parameters |= {"nic_bandwidth": "200 Gb/s", "nic_affinity": affinity}
    sockets = len({_numa(rows[gpu][len(header) :]) for gpu in gpus})
    parameters["sockets"] = max(1, sockets)
    return Imported(
        path.stem, "rail-optimised", gpu, f"nvidia-smi topo -m ({path.name})", parameters, tuple(guessed)
    )


def _matrix(path: Path, text: str) -> tuple[dict[str, list[str]], list[str]]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if re.match(r"^\s*GPU0\b", line)), None)
    if start is None:
        raise FileFormatError(f"{path}: no header with GPU0: expected the output of nvidia-smi topo -m")
    header = [
        cell
        for cell in re.split(r"\s+", lines[start].strip())
        if re.match(r"GPU\d+$|NIC\d+$|mlx5_\d+$", cell)
    ]
    rows: dict[str, list[str]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        name, *cells = re.split(r"\s+", line.strip())
        if name not in header:
            break
        if len(cells) < len(header):
            raise FileFormatError(
                f"{path}:{number}: {name} has {len(cells)} of {len(header)} cells: cut off?"
            )
        rows[name] = cells
    missing = [name for name in header if name not in rows]
    if missing:
        raise FileFormatError(f"{path}: no row for {', '.join(missing)}: cut off?")
    return rows, header


def _nvlink(gpus: list[str], rows: dict[str, list[str]]) -> str:
    joined = [sum(cell.startswith("NV") for cell in rows[gpu][: len(gpus)]) for gpu in gpus]
    if len(gpus) > 1 and all(count == len(gpus) - 1 for count in joined) and len(gpus) != 4:
        return "switch"
    if not any(joined):
        return "none"
    if all(count == 1 for count in joined) and len(gpus) > 2:
        return "pairs"
    return "mesh" if len(gpus) == 8 and max(joined) < 7 else "switch"


def _nearest(cells: list[str]) -> int:
    ranked = [_NEAR.index(cell) if cell in _NEAR else len(_NEAR) for cell in cells]
    return min(range(len(ranked)), key=lambda i: ranked[i]) if ranked else 0


def _numa(cells: list[str]) -> str:
    return cells[1] if len(cells) > 1 else cells[0] if cells else ""
