"""Fabrics listed by hand: ranges, names, faults on their links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small import run

from simulator.errors import SpecError
from simulator.hardware import gpu as find_gpu
from simulator.network import fabric as fabrics
from simulator.network.fabric import Fabric
from simulator.scenario import load_topology

RANGES = """
name: pair
family: explicit
gpu: h100-sxm
parameters:
  nodes:
    - {name: "host{0..3}/gpu{0..1}", kind: gpu}
    - {name: "host{0..3}/nic0", kind: nic}
    - {name: switch0, kind: switch}
  edges:
    - {from: "host{0..3}/gpu{0..1}", to: "host{0..3}/nic0", bandwidth: 64 GB/s}
    - {from: "host{0..3}/nic0", to: switch0, bandwidth: 400 Gb/s, latency: 600 ns}
"""


def built(tmp_path: Path, text: str, gpus: int) -> Fabric:
    path = tmp_path / "pair.yaml"
    path.write_text(text, encoding="utf-8")
    topology = load_topology(str(path))
    return fabrics.build(topology, gpus, find_gpu(topology.gpu))


def test_ranges_count_out_and_count_in_step(tmp_path: Path) -> None:
    fabric = built(tmp_path, RANGES, 8)
    assert (fabric.n_gpus, fabric.n_nodes, fabric.nics_per_node) == (8, 4, 1)
    assert fabric.n_links == 2 * (8 + 4)
    indptr, links = fabric.routes([0, 0], [1, 7])
    assert np.diff(indptr).tolist() == [2, 4]
    assert all("host3" not in fabric.link_name(link) for link in links[:2])


def test_gpus_keep_the_names_they_were_listed_by(tmp_path: Path) -> None:
    fabric = built(tmp_path, RANGES, 8)
    assert [fabric.gpu_name(gpu) for gpu in (0, 1, 7)] == ["host0/gpu0", "host0/gpu1", "host3/gpu1"]
    graph = fabric.to_networkx()
    assert all(fabric.gpu_name(gpu) in graph for gpu in range(8))
    assert {name for name, about in graph.nodes(data=True) if "gpu" in about} == {
        fabric.gpu_name(gpu) for gpu in range(8)
    }


def test_a_range_that_counts_down_is_refused_by_place(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nodes\[0\].name.*\{3\.\.0\}"):
        built(tmp_path, RANGES.replace('"host{0..3}/gpu{0..1}", kind', '"host{3..0}/gpu{0..1}", kind'), 8)


def test_a_link_that_is_not_there_gets_names_that_are() -> None:
    fault = {"kind": "degraded-link", "link": "spine0", "factor": 0.5}
    with pytest.raises(SpecError, match=r"'spine0': no link .*for example, .*node0/"):
        run(faults=[fault])
