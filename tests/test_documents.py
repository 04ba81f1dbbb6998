"""Packed documents: the work of attention by micro-batch and rank, against counts token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import scenario, setting, values

from simulator import load, simulate
from simulator.engine.loads import packed
from simulator.errors import ScenarioError
from simulator.spec import Distribution, Documents

LENGTH = 64


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=5).map(tuple),
    chunks=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 99),
)
def test_work_is_that_of_queries_counted_token_by_token(
    lengths: tuple[int, ...], chunks: int, seed: int
) -> None:
    found = packed(Documents(lengths=lengths), LENGTH, (1,), np.random.default_rng(seed), chunks)[0]
    draws = np.random.default_rng(seed)
    seen: list[float] = []  # keys before each token in its document, half of its own counted
    while len(seen) < LENGTH:
        seen += [place + 0.5 for place in range(int(draws.choice(np.array(lengths, float), (1,))[0]))]
    by_chunk = np.array(seen[:LENGTH]).reshape(chunks, -1).sum(axis=1)
    assert found == pytest.approx(by_chunk / (LENGTH**2 / 2))


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("kind", ["ring", "all-gather", "all-to-all"])
def test_mirrored_chunks_balance_one_document_and_not_many(cp: int, kind: str) -> None:
    def factors(documents: dict[str, Any]) -> np.ndarray[Any, Any]:
        made = setting(
            parallelism={"cp": cp, "cp_kind": kind}, batch__documents=documents,
            batch__sequence_length=4096, batch__micro_batch=1, batch__global_batch=32,
        )  # fmt: skip
        array = made.loads["attention"](0)
        return np.asarray(array[0, made.mesh.groups("cp")])  # of the first micro-batch, by group and rank

    whole = factors({"distribution": "constant", "mean": 4096})
    assert whole == pytest.approx(1.0)
    many = factors({"distribution": "lognormal", "mean": 700, "cv": 1.5})
    assert len(set(many.mean(axis=1))) == len(many)  # groups work on sequences of their own
    alike = np.ptp(many, axis=1) < 1e-12
    assert alike.all() if kind == "all-to-all" else not alike.any()


def test_lengths_of_a_corpus_are_drawn_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("1024\n1024\n\n1024\n")
    (tmp_path / "run.yaml").write_text(
        "model: gpt2\ncluster: {topology: dgx-a100, gpus: 8}\n"
        "batch: {sequence_length: 1024, micro_batch: 1, global_batch: 8, documents: {lengths: lengths.txt}}\n"
    )
    made = load(str(tmp_path / "run.yaml"))
    assert made.batch.documents == Documents(lengths=(1024, 1024, 1024))
    one = simulate(made).step_times_s
    assert one == pytest.approx(
        simulate(str(tmp_path / "run.yaml"), **{"batch.documents": None}).step_times_s, rel=1e-9
    )


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ({"lengths": "nowhere.txt"}, "cannot be read"),
        ({"lengths": []}, "one length or more"),
        ({"lengths": [3, 0]}, "documents.lengths"),
        ({"lengths": [3], "distribution": "constant", "mean": 3}, "not both"),
        ({"distribution": "lognormal"}, "documents.mean: missing"),
        ({"mean": 3}, "documents.distribution: missing"),
    ],
)
def test_lengths_that_cannot_be_are_refused(documents: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario(batch__documents=documents)


def test_a_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("12\n-3\n")
    with pytest.raises(ScenarioError, match="line 2: '-3': expected one length a line"):
        load(values(batch__documents={"lengths": str(file)}))


def test_spread_of_lengths_makes_stragglers() -> None:
    def waits(cv: float) -> float:
        long = {"sequence_length": 8192, "micro_batch": 1, "global_batch": 32}
        documents = {"distribution": "lognormal", "mean": 2000, "cv": cv}
        result = simulate(values(batch={**long, "documents": documents}))
        return result.item("waiting for a slower rank").seconds

    assert waits(2.0) > 2 * waits(0.3)
    assert Documents(Distribution("constant", 3.0)).lengths == ()
