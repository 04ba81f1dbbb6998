"""Ranks, coordinates and groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import SpecError
from simulator.parallel.mesh import GROUPS, Mesh, build_mesh
from simulator.spec import Parallelism

AXES = ("tp", "cp", "ep", "shard", "dp", "pp")
meshes = st.builds(
    lambda order, sizes: Mesh(tuple(order), tuple(sizes)),
    st.permutations(AXES),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)


@given(meshes, st.data())
@settings(max_examples=60, deadline=None)
def test_coordinates_and_rank_are_inverse(mesh: Mesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.ranks - 1))
    assert mesh.rank(**mesh.coordinates(rank)) == rank
    for axis in mesh.axes:
        assert mesh.coordinate_array(axis)[rank] == mesh.coordinates(rank)[axis]


@given(meshes, st.sampled_from(sorted(GROUPS)))
@settings(max_examples=60, deadline=None)
def test_groups_partition_the_ranks_and_share_all_other_coordinates(mesh: Mesh, group: str) -> None:
    table = mesh.groups(group)
    assert sorted(table.ravel().tolist()) == list(range(mesh.ranks))
    assert table.shape[1] == mesh.size(group)
    assert (np.diff(table, axis=1) > 0).all()
    outside = [axis for axis in mesh.axes if axis not in GROUPS[group]]
    for axis in outside:
        values = mesh.coordinate_array(axis)[table]
        assert (values == values[:, :1]).all()
    index = mesh.group_of(group)
    assert all(rank in table[index[rank]] for rank in range(mesh.ranks))


@given(meshes)
@settings(max_examples=30, deadline=None)
def test_going_around_an_axis_comes_back(mesh: Mesh) -> None:
    for axis, size in zip(mesh.axes, mesh.sizes, strict=True):
        rank = 0
        for _ in range(size):
            rank = mesh.shift(rank, axis, 1)
        assert rank == 0


def test_tensor_parallel_ranks_are_neighbours_in_the_usual_order() -> None:
    mesh = build_mesh(Parallelism(tp=8, pp=2, dp=4))
    assert mesh.groups("tp")[0].tolist() == list(range(8))
    assert mesh.groups("dp")[0].tolist() == [0, 8, 16, 24]
    assert mesh.groups("pp")[0].tolist() == [0, 32]


def test_experts_are_carved_out_of_data_parallelism() -> None:
    mesh = build_mesh(Parallelism(dp=8, ep=4))
    assert mesh.ranks == 8
    assert mesh.groups("ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups("expert-dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.size("dp") == 8


def test_hybrid_sharding_shares_one_copy_in_a_node() -> None:
    mesh = build_mesh(Parallelism(dp=16, sharding="hsdp"), gpus_per_node=8)
    assert mesh.size("shard") == 8
    assert mesh.groups("replica")[0].tolist() == [0, 8]


@pytest.mark.parametrize(
    ("parallelism", "path"),
    [
        (Parallelism(dp=6, ep=4), "parallelism.ep"),
        (Parallelism(dp=6, sharding="hsdp", shard_group=4), "parallelism.shard_group"),
        (Parallelism(order=("tp", "dp")), "parallelism.order"),
    ],
)
def test_what_does_not_divide_is_refused(parallelism: Parallelism, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_mesh(parallelism)
    assert caught.value.findings[0].path == path
