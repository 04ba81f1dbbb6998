"""Dumps of real machines and fabrics become topologies that build; broken ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import call

from simulator.errors import FileFormatError
from simulator.formats.ibnetdiscover import read_ibnetdiscover
from simulator.formats.nccl_xml import read_nccl_xml
from simulator.formats.nvidia_smi_topo import read_topo
from simulator.hardware import gpu
from simulator.network.collectives import plan
from simulator.network.fabric import build
from simulator.scenario import load_topology

TOPO = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tPXB\tSYS\t0-63\t0
GPU1\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tPXB\tSYS\t0-63\t0
GPU2\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tNV12\tNODE\tSYS\t0-63\t0
GPU3\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tNV12\tNODE\tSYS\t0-63\t0
GPU4\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tNV12\tSYS\tPXB\t64-127\t1
GPU5\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tNV12\tSYS\tPXB\t64-127\t1
GPU6\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tNV12\tSYS\tNODE\t64-127\t1
GPU7\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\tNV12\t X \tSYS\tNODE\t64-127\t1
mlx5_0\tPXB\tPXB\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tSYS\tSYS\tPXB\tPXB\tNODE\tNODE\tSYS\t X

Legend:
  X    = Self
"""
XML = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="16.0 GT/s" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" latency="0" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x060400" link_speed="16.0 GT/s" link_width="16">
      <pci busid="0000:21:00.0" class="0x030200" link_speed="16.0 GT/s" link_width="16">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:22:00.0" class="0x020700" link_speed="16.0 GT/s" link_width="16">
        <nic><net name="mlx5_1" dev="1" speed="200000" latency="0" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>
"""
IB = """\
vendid=0x2c9
Switch\t40 "S-1"\t\t# "leaf1" enhanced port 0 lid 1 lmc 0
[1]\t"H-a0"[1](a0) \t\t# "nodea mlx5_0" lid 4 4xHDR
[2]\t"H-b0"[1](b0) \t\t# "nodeb mlx5_0" lid 5 4xHDR
[3]\t"H-a1"[1](a1) \t\t# "nodea mlx5_1" lid 6 4x???
[4]\t"H-b1"[1](b1) \t\t# "nodeb mlx5_1" lid 7 4xHDR

Ca\t1 "H-a0"\t\t# "nodea mlx5_0"
[1](a0) \t"S-1"[1]\t\t# lid 4 lmc 0 "leaf1" lid 1 4xHDR
Ca\t1 "H-a1"\t\t# "nodea mlx5_1"
[1](a1) \t"S-1"[3]\t\t# lid 6 lmc 0 "leaf1" lid 1 4x???
Ca\t1 "H-b0"\t\t# "nodeb mlx5_0"
[1](b0) \t"S-1"[2]\t\t# lid 5 lmc 0 "leaf1" lid 1 4xHDR
Ca\t1 "H-b1"\t\t# "nodeb mlx5_1"
[1](b1) \t"S-1"[4]\t\t# lid 7 lmc 0 "leaf1" lid 1 4xHDR
"""
DUMPS = {"topo.txt": TOPO, "nccl.xml": XML, "ib.txt": IB}


@pytest.mark.parametrize("name", DUMPS)
def test_an_imported_dump_builds_and_runs_a_collective(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    dump, output = tmp_path / name, tmp_path / "out.yaml"
    dump.write_text(DUMPS[name])
    code, _, err = call(capsys, "import-topology", str(dump), "-o", str(output))
    assert code == 0
    assert "guessed" in err
    assert "# guessed" in output.read_text()
    topology = load_topology(output)
    count = {"topo.txt": 16, "nccl.xml": 4, "ib.txt": 4}[name]
    fabric = build(topology, count, gpu(topology.gpu))
    assert plan(fabric, "all-reduce", range(count), 1e8).alone_s(fabric.capacity_bytes_per_s) > 0


def test_affinity_and_links_are_read(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TOPO)
    found = read_topo(tmp_path / "t")
    assert found.parameters["nic_affinity"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (found.gpu, found.parameters["nvlink"], found.parameters["sockets"]) == ("a100-sxm", "switch", 2)
    (tmp_path / "x").write_text(XML)
    nccl = read_nccl_xml(tmp_path / "x")
    assert nccl.parameters["nic_affinity"] == [0, 1]
    assert nccl.parameters["nic_bandwidth"] == "200 Gb/s"
    (tmp_path / "i").write_text(IB)
    fabric = read_ibnetdiscover(tmp_path / "i")
    assert any("???" in guess for guess in fabric.guessed)


@pytest.mark.parametrize("name", DUMPS)
@pytest.mark.parametrize("kept", [0.0, 0.2, 0.6])
def test_a_dump_that_is_cut_off_is_refused(tmp_path: Path, name: str, kept: float) -> None:
    dump = tmp_path / name
    dump.write_text(DUMPS[name][: int(kept * len(DUMPS[name]))])
    reader = {"topo.txt": read_topo, "nccl.xml": read_nccl_xml, "ib.txt": read_ibnetdiscover}[name]
    with pytest.raises(FileFormatError, match=name):
        reader(dump)


def test_something_else_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"\x00\xff")
    assert call(capsys, "import-topology", str(dump))[0] == 2
    dump.write_text("hello")
    assert call(capsys, "import-topology", str(dump))[0] == 2
