"""No option of a foreign configuration is lost: translated, listed as without effect, listed as unknown, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_cli import call

from simulator import load
from simulator.errors import Finding, SpecError
from simulator.formats.foreign import Fields, Foreign, read_foreign

MEGATRON_BASE = {
    "num-layers": "24", "hidden-size": "2048", "num-attention-heads": "16", "seq-length": "2048",
    "max-position-embeddings": "2048", "micro-batch-size": "2", "global-batch-size": "64",
    "pipeline-model-parallel-size": "2",
}  # fmt: skip


def megatron(folder: Path, **options: str) -> Foreign:
    file = folder / "run.sh"
    given = {**MEGATRON_BASE, **{name.replace("_", "-"): value for name, value in options.items()}}
    file.write_text("pretrain_gpt.py " + " \\\n  ".join(f"--{name} {value}" for name, value in given.items()))
    return read_foreign(file)


def nested(dotted: str, value: object) -> dict[str, Any]:
    first, _, rest = dotted.partition(".")
    return {first: nested(rest, value) if rest else value}


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write(folder: Path, kind: str, option: str, value: object) -> Path:
    """A file of one option only."""
    file = folder / {"megatron": "a.sh", "torchtitan": "a.toml", "deepspeed": "a.json"}[kind]
    if kind == "megatron":
        file.write_text(f"--{option} '{as_text(value)}'\n")
    elif kind == "torchtitan":
        section, _, name = option.rpartition(".")
        file.write_text(f"[{section}]\n{name} = {json.dumps(value)}\n")
    else:
        file.write_text(json.dumps(nested(option, value)))
    return file


def known_options(folder: Path, kind: str) -> frozenset[str]:
    """All that a reader asks for."""
    asked: set[str] = set()
    check = Fields.check

    def remember(self: Fields) -> None:
        asked.update(self.known)
        check(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fields, "check", remember)
        megatron(folder)
        read_foreign(write(folder, kind, "some.option", 1))
    if kind == "megatron":
        return frozenset(asked)
    return frozenset(name for name in asked if "-" not in name and ("." in name or kind == "deepspeed"))


def outcome(file: Path) -> tuple[Foreign, tuple[Finding, ...]]:
    """What a file was read as, or what was found wrong with it."""
    try:
        return read_foreign(file), ()
    except SpecError as error:
        return Foreign(), error.findings


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("value", ["banana!", -3, 1e999, [["x"]]])
def test_a_value_without_meaning_is_refused_or_listed_for_every_known_option(
    tmp_path: Path, kind: str, value: object
) -> None:
    options = known_options(tmp_path, kind)
    assert len(options) > 25
    for option in sorted(options):
        if kind == "torchtitan" and value == 1e999:
            continue  # TOML writes infinity in another way
        file = write(tmp_path, kind, option, value)
        found, findings = outcome(file)
        listed = " ".join([*found.unknown, *found.missing])
        refused = any(option in finding.path for finding in findings)
        assert refused or option in listed or as_text(value) in listed, option
        assert all(str(file) == finding.file and finding.line for finding in findings), option
        assert all("expected" in finding.message for finding in findings), option


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed"])
def test_an_option_nobody_knows_is_listed(tmp_path: Path, kind: str) -> None:
    option = "parallelism.brand_new" if kind != "megatron" else "brand-new"
    found = read_foreign(write(tmp_path, kind, option, 7))
    assert any(option in one for one in found.unknown)


def test_strict_refuses_what_is_not_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, "torchtitan", "float8.brand_new", True)
    out = tmp_path / "out.yaml"
    code, _, err = call(capsys, "import", str(file), "--strict", "-o", str(out))
    assert code == 2
    assert "float8.brand_new" in err
    assert not out.exists()
    assert call(capsys, "import", str(file))[0] == 0


# -------------------------------------------------------------------------------------- what they mean


def test_block_recompute_is_of_the_first_layers_of_a_stage(tmp_path: Path) -> None:
    block = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": "1"}
    assert megatron(tmp_path, **block).values["recompute"] == {"first": 1}
    uniform = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": "1"}
    assert megatron(tmp_path, **uniform).values["recompute"] == "full"
    with pytest.raises(SpecError, match="--recompute-method"):
        megatron(tmp_path, recompute_granularity="full")


def test_dropout_and_positions_are_those_of_the_file_or_of_megatron(tmp_path: Path) -> None:
    model = megatron(tmp_path).values["model"]
    assert (model["dropout"], model["position"], model["norm"]) == (0.1, "learned", "layernorm")
    model = megatron(
        tmp_path, hidden_dropout="0", attention_dropout="0.0", position_embedding_type="rope"
    ).values["model"]
    assert (model["dropout"], model["position"]) == (0.0, "rope")
    with pytest.raises(SpecError, match="relative"):
        megatron(tmp_path, position_embedding_type="relative")


def test_experts_stand_where_the_pattern_says(tmp_path: Path) -> None:
    moe = {"num_experts": "8", "moe_router_topk": "2", "moe_layer_freq": "'([0]*3+[1]*21)'"}
    assert megatron(tmp_path, **moe).values["model"]["experts"]["dense_layers"] == [0, 1, 2]
    moe["moe_layer_freq"] = "2"
    assert megatron(tmp_path, **moe).values["model"]["experts"]["dense_layers"] == list(range(1, 24, 2))
    with pytest.raises(SpecError, match="the model 24"):
        megatron(tmp_path, **{**moe, "moe_layer_freq": "[1,1]"})


PASTED = """\
#!/bin/bash
# --num-layers 1 is only a comment
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-4}
TP=${1:-8}   # tensor parallel
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
GPT_MODEL_ARGS=(
    --num-layers 96 # layers
    --hidden-size=12288
    --data-path "/data/a b" 0.5 c
    --max-position-embeddings 2048
)
TRAINING_ARGS="
    --lr 6.0e-5 \\
    --bf16 \\
    --num-attention-heads 96
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS \\BLANK
    --tensor-model-parallel-size ${TP} --global-batch-size $((WORLD_SIZE*4)) \\
    --micro-batch-size '1' --seq-length 2048 --sequence-parallel 2>&1 | tee log.txt
"""


def test_a_pasted_script_is_read_as_a_shell_would(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(PASTED.replace("BLANK", " "))
    found = read_foreign(file)
    assert not found.unknown
    assert found.get("cluster.gpus") == 32
    assert found.get("model.layers") == 96
    assert found.get("model.hidden") == 12288
    assert found.get("model.heads") == 96
    assert found.get("parallelism.tp") == 8
    assert found.get("batch.global_batch") == 128
    assert found.get("precision") == "bf16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--num-layers $LAYERS", "LAYERS"),
        ("--num-layers 4\n--num-layers 8", "one value"),
        ("TP=2\nTP=4\nx --tensor-model-parallel-size $TP", "one value"),
        ("--bf16 7", "no value"),
        ("--num-layers 4 5", "at most one value"),
        ("--num-layers", "whole number"),
    ],
)
def test_what_has_no_one_meaning_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(text)
    with pytest.raises(SpecError, match=said) as caught:
        read_foreign(file)
    assert all(finding.line for finding in caught.value.findings)


def test_float8_of_torchtitan_is_fp8(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n')
    found = read_foreign(file)
    assert (found.values["precision"], found.values["model"]) == ("fp8", "llama-3.1-8b")


def test_auto_of_deepspeed_is_missing_and_no_number(tmp_path: Path) -> None:
    found = read_foreign(write(tmp_path, "deepspeed", "train_batch_size", "auto"))
    assert found.get("batch.global_batch") is None
    assert any("batch.global_batch" in gap and "auto" in gap for gap in found.missing)


def test_the_first_layers_of_each_stage_are_recomputed() -> None:
    from simulator.parallel.stages import stage_blocks

    scenario = load(
        {
            "model": "gpt2", "cluster": {"topology": "dgx-a100", "gpus": 2}, "recompute": {"first": 2},
            "batch": {"micro_batch": 1, "global_batch": 4, "sequence_length": 1024},
            "parallelism": {"pp": 2},
        }
    )  # fmt: skip
    for (blocks,) in stage_blocks(scenario):
        again = [
            any(piece.part == "recompute" for piece in block.backward)
            for block in blocks
            if block.kind == "layer"
        ]
        assert again == [True, True, False, False, False, False]


BRANCHED = """\
DTYPE="bf16"
NODES=2
MODEL_ARGS=(--num-layers 16 "--hidden-size 2048" --num-attention-heads 16 --norm-epsilon 1e-6)
if [[ "$DTYPE" == "fp8" ]]; then
    MODEL_ARGS+=("--fp8-format hybrid")
elif [ $NODES -gt 1 ] && [ "$DTYPE" != "fp32" ]; then
    MODEL_ARGS+=(--bf16)
    TP=4
else
    TP=8
fi
if [ -z "$DATA" ] || [[ "$TOKENIZER" == "MOCK" ]]; then
    DATA_ARGS=("--mock-data" "--split '99,1,0'" --vocab-size 128256)
else
    DATA_ARGS=("--data-path $DATA" --vocab-size 32000)
fi
case $AC in
  full) MODEL_ARGS+=(--recompute-granularity full --recompute-method uniform) ;;
esac
srun bash -c 'docker run --env A=1 --env B=2'
torchrun pretrain_gpt.py "${MODEL_ARGS[@]}" --tensor-model-parallel-size $TP --no-rope-fusion
"""


def test_branches_are_taken_as_far_as_the_script_decides_them(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(BRANCHED)
    found = read_foreign(file)
    assert found.get("precision") == "bf16"
    assert found.get("parallelism.tp") == 4
    assert (found.get("model.layers"), found.get("model.hidden")) == (16, 2048)
    unsure = {one.partition(":")[0] for one in found.unknown if "does not decide" in one}
    assert unsure == {"--vocab-size", "--recompute-granularity", "--recompute-method"}
    assert {"--env", "--no-rope-fusion"} <= set(found.unknown)
    assert found.get("recompute") is None


def test_a_variable_that_an_open_condition_sets_has_no_value(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("TP=2\nif $BIG; then TP=8; fi\nx --tensor-model-parallel-size $TP\n")
    with pytest.raises(SpecError, match="given one value"):
        read_foreign(file)


def test_what_became_of_every_option_is_in_the_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "run.sh"
    file.write_text("--num-layers 24 --hidden-size 2048 --lr 1 --brand-new")
    code, out, err = call(capsys, "import", str(file), "--json")
    found = json.loads(out)
    assert code == 0
    assert not err
    assert found["scenario"]["model"]["layers"] == 24
    assert (found["unknown"], found["effectless"]) == (["--brand-new"], ["--lr"])
