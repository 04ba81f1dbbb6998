"""The command line: one file a verb, imported when its verb is called.

A verb's file has a function `command` with Typer's annotations, or a Typer application `app` for verbs
with verbs of their own. The first line of its docstring is its help in the list of verbs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_GROUPS: Final = {
    "Run": ("simulate", "diagnose", "compare", "sweep", "draws", "accept"),
    "Reckon": ("memory", "plan", "validate"),
    "Scenarios": ("check", "new", "schema", "list", "import"),
    "Parts": (
        *("collective", "calibrate", "cluster", "import-topology", "kernel", "schedule"),
        "job",
    ),
}

_USAGE: Final = """\
Usage: trainsim VERB [OPTIONS]

A discrete-event simulator of distributed training: step time, MFU, and where
each lost second went.

Example: trainsim simulate gpt2-xl-ddp
"""


def _file_of(verb: str) -> Path | None:
    name = verb.replace("-", "_")
    here = Path(__file__).parent
    for candidate in (f"{name}.py", f"{name}_.py"):
        if verb and (here / candidate).is_file():
            return here / candidate
    return None


def verbs() -> tuple[str, ...]:
    """Names of all verbs."""
    return tuple(verb for group in _GROUPS.values() for verb in group if _file_of(verb))


def _summary(verb: str) -> str:
    file = _file_of(verb)
    assert file is not None
    with file.open(encoding="utf-8") as stream:
        return stream.readline().strip().strip('"').rstrip(".")


def _help() -> str:
    lines = [_USAGE]
    for title, group in _GROUPS.items():
        known = [verb for verb in group if _file_of(verb)]
        if known:
            lines.append(f"{title}:")
            lines += [f"  {verb:<16} {_summary(verb)}" for verb in known]
            lines.append("")
    lines.append("trainsim VERB --help explains a verb. Exit codes: 0 fine, 1 a finding that was asked")
    lines.append("to fail on, 2 bad input.")
    return "\n".join(lines)


def _application(verb: str) -> Any:
    import typer

    file = _file_of(verb)
    assert file is not None
    module: Any = import_module(f"simulator.cli.{file.stem}")
    if hasattr(module, "app"):
        return module.app
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(module.command)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `trainsim` command: 0 fine, 1 a finding to fail on, 2 bad input."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print(_help())
        sys.exit(0)
    if given[0] == "--version":
        from simulator import __version__

        print(f"trainsim {__version__}")
        sys.exit(0)
    from simulator.errors import TrainsimError, nearest

    verb, *rest = given
    if verb not in verbs():
        _refuse(f"'{verb}': no such verb{nearest(verb, verbs())}")
    try:
        _application(verb)(args=rest, prog_name=f"trainsim {verb}")
    except TrainsimError as error:
        _refuse(*str(error).splitlines())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _refuse(*messages: str) -> None:
    for message in messages:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
