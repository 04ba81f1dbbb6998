"""Configurations of others become scenarios that load; what is not understood is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import call

from simulator import load

MEGATRON = """\
#!/bin/bash
torchrun pretrain_gpt.py \\
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
    --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3 \\
    --sequence-parallel --bf16 --swiglu --normalization RMSNorm --use-distributed-optimizer --lr 1e-4 \\
    --some-new-option 7
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
"""
DEEPSPEED = json.dumps(
    {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "cpu"}},
    }
)
CLUSTER = ("--set", "cluster.topology=dgx-h100", "--set", "cluster.gpus=32")


def test_megatron_arguments_become_a_scenario(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script, output = tmp_path / "pretrain.sh", tmp_path / "run.yaml"
    script.write_text(MEGATRON)
    code, _, err = call(capsys, "import", str(script), *CLUSTER, "-o", str(output))
    assert code == 0
    assert "--some-new-option" in err
    assert "no effect on time or memory: --lr\n" in err
    scenario = load(str(output))
    assert (scenario.parallelism.tp, scenario.parallelism.pp, scenario.parallelism.dp) == (2, 4, 4)
    assert scenario.parallelism.virtual_stages == 2
    assert scenario.parallelism.sharding == "zero-1"
    assert scenario.micro_batches == 8


def test_torchtitan_and_deepspeed_become_scenarios(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "titan.toml").write_text(TITAN)
    more = ("--set", "model=llama-3-8b", "--set", "batch.global_batch=16")
    code, _, _ = call(
        capsys, "import", str(tmp_path / "titan.toml"), *CLUSTER, *more, "-o", str(tmp_path / "a.yaml")
    )
    assert code == 0
    assert load(str(tmp_path / "a.yaml")).recompute.every == 2
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    more = ("--set", "model=gpt2-medium", "--set", "batch.sequence_length=1024")
    code, _, err = call(
        capsys, "import", str(tmp_path / "ds.json"), *CLUSTER, *more, "-o", str(tmp_path / "b.yaml")
    )
    assert code == 0
    assert "zero_optimization.offload_optimizer" in err
    assert load(str(tmp_path / "b.yaml")).parallelism.sharding == "zero-2"


HF = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 8192, "brand_new_field": 3,
}  # fmt: skip


def test_a_hugging_face_config_is_the_model_it_describes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from simulator.formats.huggingface import read_config
    from simulator.model.flops import parameters

    config = tmp_path / "config.json"
    config.write_text(json.dumps(HF))
    model, unknown = read_config(config)
    assert parameters(model).total == 8030261248
    assert unknown == ("brand_new_field",)
    assert "brand_new_field" in call(capsys, "import", str(config))[2]


@pytest.mark.parametrize(
    "change", [{"hidden_size": "wide"}, {"num_hidden_layers": None}, {"num_attention_heads": 33}]
)
def test_a_wrong_config_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, object]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**HF, **change}))
    code, _, err = call(capsys, "import", str(config))
    assert code == 2
    assert "config.json" in err


@pytest.mark.parametrize(
    ("name", "text"), [("a.sh", "nothing"), ("a.toml", "x = ["), ("a.json", "{"), ("a.sh", "--num-layers x")]
)
def test_a_broken_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert call(capsys, "import", str(tmp_path / name))[0] == 2
