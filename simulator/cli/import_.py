"""Import a training configuration: Megatron-LM, torchtitan, DeepSpeed, Hugging Face"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, SetOption, check_writable, overrides, print_json, whole_file


def command(
    config: Annotated[
        Path, typer.Argument(help="Megatron-LM arguments, torchtitan TOML, DeepSpeed or HF JSON.")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Scenario file to write.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse (exit 2) a file with an option that is not understood.")
    ] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a configuration into a scenario. Every option is translated, listed as having no effect on
    time or memory, or listed as not understood; fields that are missing are listed too.

    Example: trainsim import pretrain.sh --set cluster.topology=dgx-h100 --set cluster.gpus=64 -o run.yaml
    """
    import json

    from simulator.errors import Finding, SpecError
    from simulator.formats.foreign import read_foreign
    from simulator.scenario.source import Source, override

    check_writable(output)
    found = read_foreign(config)
    source = Source(None, found.values)
    override(source, overrides(settings))
    if as_json:
        lists = ("unknown", "effectless", "missing", "assumed")
        print_json({"scenario": source.values, **{name: getattr(found, name) for name in lists}})
    elif found.effectless:
        _say("no effect on time or memory: " + ", ".join(found.effectless))
    if strict and found.unknown:
        raise SpecError([Finding(one, "not understood", file=str(config)) for one in found.unknown])
    if not as_json:
        for option in found.unknown:
            _say(f"not understood: {option}")
        for gap in found.missing:
            if not _there(source.values, gap.partition(":")[0]):
                _say(f"missing: {gap}")
        for guess in found.assumed:
            if guess.partition(":")[0] not in source.overridden:
                _say(f"assumed: {guess}")
    written = f"# Imported from {config.name}.\n" + "".join(
        f"{key}: {json.dumps(value)}\n" for key, value in source.values.items()
    )
    if output is None:
        print("" if as_json else written, end="")
        return
    with whole_file(output) as stream:
        stream.write(written.encode())
    _say(f"{output} written; trainsim check {output} says what it still needs")


def _say(text: str) -> None:
    print(textwrap.fill(text, 80, subsequent_indent="  ", break_long_words=False), file=sys.stderr)


def _there(values: object, path: str) -> bool:
    """Whether a dotted field is given."""
    for part in path.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True
