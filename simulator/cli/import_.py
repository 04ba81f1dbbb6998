"""Import a training configuration: Megatron-LM, torchtitan, DeepSpeed, Hugging Face"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import SetOption, check_writable, overrides, whole_file


def command(
    config: Annotated[
        Path, typer.Argument(help="Megatron-LM arguments, torchtitan TOML, DeepSpeed or HF JSON.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Scenario file to write.")] = None,
    settings: SetOption = None,
) -> None:
    """Turn a configuration into a scenario; options that nobody knows and fields that are missing are listed.

    Example: trainsim import pretrain.sh --set cluster.topology=dgx-h100 --set cluster.gpus=64 -o run.yaml
    """
    import json

    from simulator.formats.foreign_configs import Foreign, deepspeed, megatron, torchtitan
    from simulator.formats.huggingface import read_config
    from simulator.formats.topology_text import read_text
    from simulator.scenario.source import Source, override

    check_writable(output)
    text = read_text(config)
    if config.suffix == ".toml":
        found = torchtitan(config)
    elif config.suffix == ".json" and "num_hidden_layers" not in text and "n_layer" not in text:
        found = deepspeed(config)
    elif config.suffix == ".json":
        _, unknown = read_config(config)
        found = Foreign({"model": str(config.resolve())}, list(unknown), ["cluster, batch: not in the file"])
    else:
        found = megatron(config)
    source = Source(None, found.values)
    override(source, overrides(settings))
    for option in found.unknown:
        print(f"not understood: {option}", file=sys.stderr)
    for gap in found.missing:
        if gap.partition(":")[0].partition(".")[0] not in source.values or "assumed" in gap:
            print(f"missing: {gap}", file=sys.stderr)
    written = f"# Imported from {config.name}.\n" + "".join(
        f"{key}: {json.dumps(value)}\n" for key, value in source.values.items()
    )
    if output is None:
        print(written, end="")
        return
    with whole_file(output) as stream:
        stream.write(written.encode())
    print(f"{output} written; trainsim check {output} says what it still needs", file=sys.stderr)
