"""Reckon with closed forms: MFU, fleet, duration, price, recomputation"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from simulator.planning import Answer, ask, questions, swing
from simulator.study.planning import complete, defaults_of, option_name, read_input, read_swing

_EXAMPLES = {
    "mfu": "trainsim plan mfu --model llama-2-7b --gpu h100-sxm --tokens-per-s 9600 --sequence-length 4096",
    "flops": "trainsim plan flops --parameters 405B --tokens 15.6T",
    "duration": "trainsim plan duration --flops 6.35e24 --gpus 16384 --gpu h100-sxm --swing mfu=0.3..0.5",
    "gpus": "trainsim plan gpus --flops 6.35e24 --days 30 --gpu h100-sxm",
    "gpu-hours": "trainsim plan gpu-hours --parameters 70B --tokens 15T --gpu h100-sxm",
    "implied-mfu": "trainsim plan implied-mfu --flops 3.79e25 --hours 30.84M --peak 989e12",
    "step": "trainsim plan step --flops-per-token 2.5e12 --tokens 16M --gpus 16384 --gpu h100-sxm",
    "price": "trainsim plan price --parameters 70B --tokens 15T --gpu h100-sxm --decode-batch 1",
    "recompute": "trainsim plan recompute --model gpt3-175b --sequence-length 2048 --tp 8 --pp 8 --gpu a100-sxm",
    "checkpoint": "trainsim plan checkpoint --cost '30 s' --mttf '3 h'",
    "margin": "trainsim plan margin",
}

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Answer a question by its formula, every step shown. Example: " + _EXAMPLES["gpus"],
)


def _verb(name: str, question: Callable[..., Answer]) -> Callable[..., None]:
    """A command whose options are the question's inputs."""
    keys = list(inspect.signature(question).parameters)

    def run(**options: Any) -> None:
        sweep, as_json = options.pop("swing"), options.pop("as_json")
        defaults = defaults_of(options.pop("gpu"), options.pop("precision"), options.pop("model"))
        given = {key: read_input(key, text) for key, text in options.items() if text is not None}
        key, low, high = read_swing(sweep) if sweep else ("", 0.0, 0.0)
        if key:
            given.setdefault(key, (low + high) / 2)
        inputs = complete(name, given, defaults)
        answer = ask(name, **inputs)
        moved = []
        if key:
            rest = {one: value for one, value in inputs.items() if one != key}
            moved = swing(name, key, low, high, **rest)
        _print(answer, key, moved, as_json)

    options: list[tuple[str, Any, Any]] = [
        (key, Annotated[str | None, typer.Option(option_name(key))], None) for key in keys
    ]
    options += [
        ("gpu", Annotated[str | None, typer.Option("--gpu", help="Peak, price, HBM of a GPU.")], None),
        ("precision", Annotated[str, typer.Option("--precision", help="Of the peak.")], "bf16"),
        ("model", Annotated[str | None, typer.Option("--model", help="Sizes of a bundled model.")], None),
        ("swing", Annotated[str | None, typer.Option("--swing", metavar="INPUT=LOW..HIGH")], None),
        ("as_json", Annotated[bool, typer.Option("--json", help="Print JSON.")], False),
    ]
    kind = inspect.Parameter.KEYWORD_ONLY
    seen = {
        key: inspect.Parameter(key, kind, default=default, annotation=hint) for key, hint, default in options
    }
    run.__signature__ = inspect.Signature(list(seen.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {key: one.annotation for key, one in seen.items()}
    about = " ".join((question.__doc__ or "").split())
    run.__doc__ = f"{about}\n\nExample: {_EXAMPLES.get(name, f'trainsim plan {name}')}"
    return run


for _name, _question in questions().items():
    app.command(_name)(_verb(_name, _question))


def _print(answer: Answer, key: str, moved: list[tuple[float, Answer]], as_json: bool) -> None:
    from simulator.cli.options import print_json
    from simulator.report.figures import figure

    if as_json:
        rows = [{key: value, "answer": one.value, "unit": one.unit} for value, one in moved]
        print_json(answer.to_dict() | ({"swing": rows} if moved else {}))
        return
    print(f"{answer.question} = {answer.formula}")
    width = max((len(step.name) for step in answer.steps), default=0)
    for step in answer.steps:
        print(f"  {step.name:<{width}}  {figure(step.value)} {step.unit}".rstrip())
    print(f"answer: {figure(answer.value)} {answer.unit}".rstrip())
    for note in answer.notes:
        print(f"  {note}")
    for value, one in moved:
        print(f"  {key} = {value:<8.4g} {figure(one.value)} {one.unit}".rstrip())
