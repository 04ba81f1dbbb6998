"""Max-min sharing, collectives and fabrics: theory first, then what people measured."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import FileFormatError, SpecError
from simulator.formats.nccl_tests import read_nccl_tests
from simulator.hardware import gpu, gpus
from simulator.hardware.nics import nic, nics
from simulator.network.activity import BUS_FACTORS
from simulator.network.collectives import algorithms, plan, wire
from simulator.network.collectives.tree import edges, parents
from simulator.network.fabric import Fabric, build
from simulator.network.fluid import max_min
from simulator.scenario import load_topology, topologies
from simulator.spec import Topology
from simulator.study.collectives import read_sizes

DATA = Path(__file__).parent / "data"


def fabric_of(name: str, count: int) -> Fabric:
    topology = load_topology(name)
    return build(topology, count, gpu(topology.gpu))


# -------------------------------------------------------------------------------------- fair sharing


@st.composite
def networks(
    draw: st.DrawFn,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """capacity, indptr, links, coefficients, caps, weights of a small random network."""
    count = draw(st.integers(1, 6))
    flows = draw(st.integers(1, 7))
    figure = st.floats(0.5, 10)
    capacity = np.array(draw(st.lists(figure, min_size=count, max_size=count)))
    ways = [
        draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
        for _ in range(flows)
    ]
    indptr = np.cumsum([0, *(len(way) for way in ways)])
    links = np.concatenate([np.array(way) for way in ways])
    coefficients = np.array(draw(st.lists(figure, min_size=len(links), max_size=len(links))))
    caps = np.array(draw(st.lists(st.one_of(st.just(np.inf), figure), min_size=flows, max_size=flows)))
    weights = np.array(draw(st.lists(st.floats(0.5, 3), min_size=flows, max_size=flows)))
    return capacity, indptr, links, coefficients, caps, weights


def by_linear_programs(capacity, indptr, links, coefficients, caps, weights) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Lexicographic max-min with SciPy's HiGHS: raise the lowest level, fix whom it binds, go on."""
    from scipy.optimize import linprog

    flows = len(caps)
    use = np.zeros((len(capacity), flows))
    for flow in range(flows):
        mine = slice(indptr[flow], indptr[flow + 1])
        use[links[mine], flow] += coefficients[mine]
    fixed = np.full(flows, np.nan)
    while np.isnan(fixed).any():
        open_ = np.isnan(fixed)

        def best(objective: np.ndarray, least: float, open_: np.ndarray = open_) -> np.ndarray:
            # variables: rates of all flows, then the level
            rows = [np.append(row, 0.0) for row in use]
            limits = list(capacity)
            for flow in np.flatnonzero(open_):
                row = np.zeros(flows + 1)
                row[flow], row[-1] = -1.0, weights[flow]
                rows.append(row)
                limits.append(0.0)
            bounds = [
                (0, None if np.isinf(caps[f]) else caps[f]) if open_[f] else (fixed[f], fixed[f])
                for f in range(flows)
            ]
            bounds.append((least, None))
            found = linprog(objective, A_ub=np.array(rows), b_ub=limits, bounds=bounds, method="highs")
            assert found.success
            return np.asarray(found.x)

        level = best(np.append(np.zeros(flows), -1.0), 0.0)[-1] * (1 - 1e-10)
        for flow in np.flatnonzero(open_):
            objective = np.zeros(flows + 1)
            objective[flow] = -1.0
            most = best(objective, level)[flow]
            if most <= level * weights[flow] * (1 + 1e-7):
                fixed[flow] = level * weights[flow]
    return fixed


@settings(max_examples=80)
@given(networks())
def test_progressive_filling_is_what_linear_programs_find(network: tuple[np.ndarray, ...]) -> None:
    np.testing.assert_allclose(max_min(*network), by_linear_programs(*network), rtol=1e-6)


@given(networks())
def test_every_flow_is_capped_or_has_a_full_link(network: tuple[np.ndarray, ...]) -> None:
    capacity, indptr, links, coefficients, caps, _ = network
    rates = max_min(*network)
    owner = np.repeat(np.arange(len(rates)), np.diff(indptr))
    load = np.bincount(links, weights=coefficients * rates[owner], minlength=len(capacity))
    assert (load <= capacity * (1 + 1e-9)).all()
    full = load >= capacity * (1 - 1e-9)
    for flow, rate in enumerate(rates):
        mine = links[indptr[flow] : indptr[flow + 1]]
        assert rate >= caps[flow] * (1 - 1e-9) or full[mine].any()


# --------------------------------------------------------------------------------------- collectives


@pytest.mark.parametrize("ranks", [64, 256, 1024])
def test_a_ring_takes_the_textbook_time(ranks: int) -> None:
    """1 GiB at 50 GB/s and 500 ns a hop: 2 (n - 1) / n S / B + 2 (n - 1) latency."""
    topology = Topology(
        "one GPU a node",
        "cloud",
        {"gpus_per_node": 1, "nics": 1, "nic_bandwidth": "50 GB/s", "nic_latency": "250 ns"},
    )
    fabric = build(topology, ranks, gpu("h100-sxm"))
    size = 2.0**30
    found = plan(fabric, "all-reduce", range(ranks), size, algorithm="ring", protocol="ideal")
    expected = 2 * (ranks - 1) / ranks * size / 50e9 + 2 * (ranks - 1) * 500e-9
    assert found.alone_s(fabric.capacity_bytes_per_s) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", sorted(algorithms()))
@pytest.mark.parametrize("nodes", [1, 2, 5, 8])
def test_an_algorithm_sends_what_it_receives(name: str, nodes: int) -> None:
    """Bytes into each GPU's links equal bytes out, over all GPUs of the group."""
    fabric = fabric_of("dgx-h100", 8 * nodes)
    algorithm = algorithms()[name]
    kind = algorithm.kinds[0]
    if kind == "send-recv":
        return
    found = plan(fabric, kind, range(8 * nodes), 1e9, algorithm=name, protocol="ideal")
    names = [fabric.link_name(int(link)) for link in found.links]
    up = sum(b for n, b in zip(names, found.bytes, strict=True) if n.endswith("/up"))
    down = sum(b for n, b in zip(names, found.bytes, strict=True) if n.endswith("/down"))
    assert up == pytest.approx(down)


def test_double_trees_cover_all_nodes_and_swap_leaves() -> None:
    for nodes in range(2, 40):
        assert sum(parent < 0 for parent in parents(nodes)) == 1
        child, _ = edges(nodes)
        assert len(child) == 2 * (nodes - 1)


@settings(max_examples=15)
@given(st.permutations(list(range(16))))
def test_the_order_of_a_group_does_not_matter(order: list[int]) -> None:
    fabric = fabric_of("dgx-a100", 16)
    one, other = (plan(fabric, "all-reduce", group, 1e8) for group in (range(16), order))
    assert one.alone_s(fabric.capacity_bytes_per_s) == pytest.approx(
        other.alone_s(fabric.capacity_bytes_per_s)
    )


def test_many_groups_at_once_load_what_each_loads() -> None:
    fabric = fabric_of("dgx-a100", 64)
    rails = np.arange(64).reshape(8, 8).T
    group, link, load = wire(fabric, "all-reduce", rails, algorithm="ring")
    for number, members in enumerate(rails):
        one = plan(fabric, "all-reduce", members.tolist(), 1e6, algorithm="ring", protocol="ideal")
        mine = group == number
        total = np.bincount(link[mine], weights=load[mine], minlength=fabric.n_links)
        np.testing.assert_array_equal(np.flatnonzero(total), one.links)
        np.testing.assert_allclose(total[one.links] * 1e6, one.bytes)


@settings(max_examples=25)
@given(st.floats(1, 1e10))
def test_more_bytes_never_take_less_time(size: float) -> None:
    fabric = fabric_of("dgx-h100", 32)
    choice = {"algorithm": "ring", "protocol": "Simple"}
    one, other = (
        plan(fabric, "all-reduce", range(32), s, **choice).alone_s(fabric.capacity_bytes_per_s)
        for s in (size, 2 * size)
    )
    assert other >= one


def busbw(name: str, count: int, size: float, **choice: str) -> float:
    fabric = fabric_of(name, count)
    found = plan(fabric, "all-reduce", range(count), size, **choice)
    return size / found.alone_s(fabric.capacity_bytes_per_s) * BUS_FACTORS["all-reduce"](count) / 1e9


@pytest.mark.parametrize(
    ("cluster", "gpus", "algorithm", "measured"),
    [
        ("dgx-h100", 8, "ring", 370),  # NVIDIA GTC24 S62129
        ("dgx-h100", 8, "nvls", 480),  # the same
        ("dgx-a100", 8, "ring", 232),  # the same
        ("dgx-a100", 64, "ring", 192),  # the same, several nodes of 8 x 200 Gb/s
        ("dgx-h100", 64, "auto", 380),  # the same, several nodes of 8 x 400 Gb/s
        ("dgx-h200", 32, "ring", 364.87),  # stas00/ml-engineering, network/README.md: four H200 nodes
        ("dgx-h200", 8, "nvls", 473.1),  # the same, one node
        ("dgx-b200", 8, "nvls", 838.0),  # the same
        ("dgx-b200", 8, "ring", 682.2),  # the same
        ("hgx-a100-4nic", 24, "ring", 96),  # 3 nodes of 8 x A100-40G with 4 x 200 Gb/s (NVIDIA/nccl-tests)
    ],
)
def test_large_sizes_reach_the_published_busbw(
    cluster: str, gpus: int, algorithm: str, measured: float
) -> None:
    assert busbw(cluster, gpus, 8 * 2.0**30, algorithm=algorithm) == pytest.approx(measured, rel=0.10)


@pytest.mark.parametrize(
    ("name", "machine"), [("a100", "dgx-a100"), ("h100", "dgx-h100"), ("v100", "dgx1-v100")]
)
def test_all_reduces_in_a_node_match_rows_that_were_not_fitted(name: str, machine: str) -> None:
    with (DATA / f"allreduce-{name}.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    fabric = fabric_of(machine, 8)
    errors = []
    for row in rows[1::2]:  # the even rows were fitted
        size = float(row["size_bytes"])
        if size < 2**20:
            continue
        found = plan(fabric, "all-reduce", range(int(row["gpus"])), size, algorithm="ring")
        errors.append(found.alone_s(fabric.capacity_bytes_per_s) / float(row["time_us"]) * 1e6 - 1)
    assert np.median(np.abs(errors)) <= 0.10


def test_nics_in_use_set_the_speed() -> None:
    """NVIDIA/nccl issue 1250: 1, 2 and 4 GPUs a node, one NIC each: 0.27, 0.13, 0.067 s."""
    fabric = fabric_of("dgx-h100", 16)
    times = [
        plan(fabric, "all-reduce", [8 * n + g for n in range(2) for g in range(k)], 1e9).alone_s(
            fabric.capacity_bytes_per_s
        )
        for k in (1, 2, 4)
    ]
    assert times[0] / times[1] == pytest.approx(0.27 / 0.13, rel=0.12)
    assert times[1] / times[2] == pytest.approx(0.13 / 0.067, rel=0.12)


def test_the_slowest_hop_sets_a_ring_over_nvlink_pairs() -> None:
    """NVIDIA/nccl-tests issue 178: 8 x A100 PCIe in pairs: 2 GPUs 208 GB/s busbw, 3 GPUs 20."""
    fabric = fabric_of("a100-pcie-nvlink-pairs", 8)

    def speed(count: int) -> float:
        found = plan(fabric, "all-reduce", range(count), 4 * 2.0**30, algorithm="ring")
        return (
            4 * 2.0**30 / found.alone_s(fabric.capacity_bytes_per_s) * BUS_FACTORS["all-reduce"](count) / 1e9
        )

    assert speed(2) == pytest.approx(208, rel=0.2)
    assert speed(4) < 0.15 * speed(2)


# ------------------------------------------------------------------------------------------- fabrics


@pytest.mark.parametrize("name", topologies())
def test_a_bundled_topology_is_connected_and_routes_stay_on_links(name: str) -> None:
    topology = load_topology(name)
    per_node = topology.parameters.get("gpus_per_node", 8)
    assert isinstance(per_node, int)
    count = 4 if topology.family == "explicit" else 4 * per_node
    fabric = build(topology, count, gpu(topology.gpu))
    src = np.arange(count)
    indptr, links = fabric.routes(src, np.roll(src, -1))
    assert (np.diff(indptr) > 0).all()
    assert links.max() < fabric.n_links
    assert (fabric.capacity_bytes_per_s > 0).all()


def test_a_disconnected_fabric_is_refused() -> None:
    vertices = [
        {"name": "a/gpu0", "kind": "gpu"},
        {"name": "b/gpu0", "kind": "gpu"},
        {"name": "s", "kind": "switch"},
    ]
    edge = [{"from": "a/gpu0", "to": "s", "bandwidth": "10 GB/s"}]
    with pytest.raises(SpecError, match="connected"):
        build(Topology("x", "explicit", {"nodes": tuple(vertices), "edges": tuple(edge)}), 2, gpu("a100-sxm"))


@pytest.mark.parametrize("sizes", ["x", "0 B", "8GB..8B", "-1MiB", "8"])
def test_sizes_that_are_none_are_refused(sizes: str) -> None:
    with pytest.raises(SpecError):
        read_sizes(sizes)


def test_groups_that_cannot_be_are_refused() -> None:
    fabric = fabric_of("dgx-a100", 8)
    for group in ([0, 0], [0, 8], []):
        with pytest.raises(SpecError):
            plan(fabric, "all-reduce", group, 1e6)


# ----------------------------------------------------------------------------------------- catalogue


@pytest.mark.parametrize("name", gpus())
def test_a_gpu_carries_a_source_for_each_figure(name: str) -> None:
    found = gpu(name)
    wanted = (
        "memory",
        "memory_bandwidth",
        "nvlink_bandwidth",
        "peak_flops",
        "power",
        "sms",
        "clock",
        "l2",
        "price",
    )
    assert all(found.sources.get(figure) for figure in wanted)
    assert found.sources["constants"]


@pytest.mark.parametrize("name", nics())
def test_a_nic_carries_a_source_for_each_figure(name: str) -> None:
    assert all(len(nic(name).sources[figure]) > 10 for figure in ("bandwidth", "slot_bandwidth", "latency"))


# ---------------------------------------------------------------------------------------- nccl-tests

TEXT = """\
# nThread 1 nGpus 8 minBytes 1048576
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    44.21   23.72   41.51      0    43.9   23.89   41.80      0
  1073741824     268435456     float     sum      -1   8193.0  131.06  229.35      0  8190.0  131.1   229.43      0
# Avg bus bandwidth    : 135.0
"""


def test_nccl_tests_output_is_read(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.write_text(TEXT)
    rows = read_nccl_tests(file).rows
    assert [row.size_bytes for row in rows] == [2**20, 2**30]
    assert rows[1].time_s == pytest.approx(8.193e-3)


@pytest.mark.parametrize(
    "text",
    ["", "nothing of the kind", TEXT.replace("41.51      0 ", "41.51      7 "), '{"results": [{}]}', "{"],
)
def test_broken_nccl_tests_output_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "out.txt"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=r"out\.txt"):
        read_nccl_tests(file)


def test_calibration_finds_the_constants_that_made_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from test_cli import call

    fabric = fabric_of("dgx-a100", 8)
    lines = []
    for power in range(20, 31):
        time = plan(fabric, "all-reduce", range(8), 2.0**power, algorithm="ring").alone_s(
            fabric.capacity_bytes_per_s
        )
        time *= 1.25  # a slower machine
        lines.append(f"{2**power} {2**power // 4} float sum -1 {time * 1e6} 1.0 1.0 0 {time * 1e6} 1.0 1.0 0")
    table, overlay = tmp_path / "table.txt", tmp_path / "overlay.toml"
    table.write_text("\n".join(lines))
    code, out, err = call(capsys, "calibrate", str(table), "--cluster", "dgx-a100", "-o", str(overlay))
    assert code == 0, err
    assert "median error" in out
    same = (
        "collective",
        "all-reduce",
        "--cluster",
        "dgx-a100",
        "--algorithm",
        "ring",
        "--measured",
        str(table),
    )
    code, out, err = call(capsys, *same, "--overlay", str(overlay), "--json")
    assert code == 0, err
    import json

    assert np.median([abs(row["error"]) for row in json.loads(out)]) < 0.03


def test_two_flows_on_one_uplink_halve_a_ring() -> None:
    """NVIDIA/nccl issue 319: 8 nodes of 4 x 100 Gb/s: 43.5 GB/s on one switch; two switches can halve it."""
    node = {"gpus_per_node": 8, "nics": 4, "nic_bandwidth": "100 Gb/s"}

    def speed(topology: Topology, seed: int = 0) -> float:
        fabric = build(topology, 64, gpu("a100-sxm"), seed=seed)
        size = 8 * 2.0**30
        found = plan(fabric, "all-reduce", range(64), size, algorithm="ring")
        return size / found.alone_s(fabric.capacity_bytes_per_s) * BUS_FACTORS["all-reduce"](64) / 1e9

    one = speed(Topology("one switch", "cloud", node))
    assert one == pytest.approx(43.5, rel=0.12)
    two = Topology(
        "two switches", "leaf-spine", {**node, "nodes_per_leaf": 4, "switch_ports": 32, "ecmp": "hashed"}
    )
    speeds = [speed(two, seed) for seed in range(12)]
    assert max(speeds) <= one * 1.01
    assert min(speeds) == pytest.approx(one / 2, rel=0.12)


def test_a_bad_row_of_a_pairwise_matrix_is_a_node() -> None:
    """NVIDIA/nccl-tests issue 106: 49.3 GB/s for every pair with node 644, 86.8 to 88.4 for the others."""
    topology = Topology(
        "pairs",
        "leaf-spine",
        {"gpus_per_node": 8, "nics": 8, "nic_bandwidth": "92 Gb/s", "nodes_per_leaf": 2},
    )
    fabric = build(topology, 48, gpu("a100-sxm"))
    capacity = fabric.capacity_bytes_per_s.copy()
    for name in ("node3/nic*",):  # one node's NICs at the rate that its own pairs showed
        capacity[fabric.find_links(name)] *= 49.3 / 87.6

    def speed(a: int, b: int) -> float:
        group = [*range(8 * a, 8 * a + 8), *range(8 * b, 8 * b + 8)]
        size = 8 * 2.0**30
        found = plan(fabric, "all-reduce", group, size, algorithm="ring")
        return size / found.alone_s(capacity) * BUS_FACTORS["all-reduce"](16) / 1e9

    for a in range(6):
        for b in range(a + 1, 6):
            expected = 49.3 if 3 in (a, b) else 87.6
            assert speed(a, b) == pytest.approx(expected, rel=0.12)
