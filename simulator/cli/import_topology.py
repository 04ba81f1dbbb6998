"""Import a machine or a fabric: nvidia-smi topo, NCCL XML, ibnetdiscover"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import check_writable, whole_file


def command(
    dump: Annotated[Path, typer.Argument(help="nvidia-smi topo -m text, NCCL XML or ibnetdiscover output.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Topology file to write.")] = None,
) -> None:
    """Turn a dump into a topology file; what was guessed is said, and stands in the file.

    Example: trainsim import-topology topo.txt -o my-node.yaml
    """
    import sys

    from simulator.errors import FileFormatError
    from simulator.formats.ibnetdiscover import read_ibnetdiscover
    from simulator.formats.nccl_xml import read_nccl_xml
    from simulator.formats.nvidia_smi_topo import read_topo
    from simulator.formats.topology_text import read_text
    from simulator.scenario.clusters import topology_of
    from simulator.scenario.source import parse

    check_writable(output)
    text = read_text(dump)
    if text.lstrip().startswith("<"):
        found = read_nccl_xml(dump)
    elif "GPU0" in text:
        found = read_topo(dump)
    elif '"' in text and ("Switch" in text or "Ca" in text):
        found = read_ibnetdiscover(dump)
    else:
        raise FileFormatError(f"{dump}: neither nvidia-smi topo -m, NCCL's XML nor ibnetdiscover")
    written = found.to_yaml()
    topology_of(parse(written, str(output or dump)).values)  # what is written can be read
    for guess in found.guessed:
        print(f"guessed {guess}", file=sys.stderr)
    if output is None:
        print(written, end="")
        return
    with whole_file(output) as stream:
        stream.write(written.encode())
    print(f"{output} written", file=sys.stderr)
