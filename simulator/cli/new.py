"""Write a commented scenario to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import whole_file


def command(
    file: Annotated[Path | None, typer.Argument(help="Where to write it; the terminal if not given.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a scenario with every section explained.

    Example: trainsim new my-run.yaml
    """
    from simulator.errors import SpecError
    from simulator.scenario.template import TEMPLATE

    if file is None:
        print(TEMPLATE, end="")
        return
    if file.exists() and not force:
        raise SpecError.of(str(file), "exists already; --force overwrites it")
    with whole_file(file) as stream:
        stream.write(TEMPLATE.encode())
    print(f"{file} written; try: trainsim simulate {file}")
