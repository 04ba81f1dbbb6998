"""Options and habits that verbs share."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from simulator.errors import Finding, ScenarioError, SpecError

ScenarioArgument = Annotated[
    str, typer.Argument(help="Scenario: path of a file, or a bundled name.", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override a field; may be given several times."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AllowOom = Annotated[bool, typer.Option("--allow-oom", help="Simulate even what does not fit in memory.")]


def overrides(settings: list[str] | None) -> dict[str, str]:
    """Dotted paths and values of `--set` options. Raises ScenarioError for what is no such thing."""
    result = {}
    for setting in settings or []:
        path, equals, value = setting.partition("=")
        if not equals or not path.strip():
            raise ScenarioError(Finding("--set", f"'{setting}': expected a.b=value"))
        result[path.strip()] = value
    return result


def read_ranks(option: str, text: str | None, world: int | None = None) -> list[int] | None:
    """Ranks as in 0,8,17; None for none given. Raises SpecError for what are no ranks of a world."""
    if text is None:
        return None
    try:
        ranks = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise SpecError.of(option, f"'{text}': expected numbers, as in 0,8,17") from error
    for rank in ranks:
        if rank < 0 or (world is not None and rank >= world):
            most = "0 or more" if world is None else f"from 0 to {world - 1}"
            raise SpecError.of(option, f"{rank}: expected a rank {most}")
    return ranks


def print_json(value: Any) -> None:
    """Print a value as JSON; no NaN or infinity gets out."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def show(renderable: Any) -> None:
    """Print with rich, in 80 columns where the terminal is not wider or there is none."""
    from rich.console import Console

    console = Console(highlight=False)
    console = Console(highlight=False, width=max(80, console.width) if console.is_terminal else 80)
    console.print(renderable)


def check_writable(path: Path | None) -> None:
    """Raise SpecError, before any work, if a file cannot be written there."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise SpecError.of(str(path), "is a folder: expected the name of a file to write")
    if not folder.is_dir():
        raise SpecError.of(str(path), f"cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise SpecError.of(str(path), f"cannot be written: no permission in {folder}")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all: written beside, then renamed."""
    check_writable(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SpecError.of(str(path), f"cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise SpecError.of(str(path), f"cannot be written: {error.strerror}") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def progress(total: int, what: str, *, after_s: float = 2.0) -> Iterator[Callable[..., None]]:
    """A progress bar on the terminal's error stream, once the work takes longer than `after_s`.

    Its caller may give another total with what is done.
    """
    if not sys.stderr.isatty():
        yield lambda done, total=0: None
        return
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task = bar.add_task(what, total=total)
    began, shown = time.monotonic(), False

    def done(count: int, total: int | None = None) -> None:
        nonlocal shown
        if not shown and time.monotonic() - began > after_s:
            bar.start()
            shown = True
        bar.update(task, completed=count, total=total)

    try:
        yield done
    finally:
        if shown:
            bar.stop()
