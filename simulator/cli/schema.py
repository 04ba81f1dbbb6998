"""Print the JSON Schema of scenario files, for editors."""

from __future__ import annotations

from simulator.cli.options import print_json


def command() -> None:
    """Print the JSON Schema of scenario files.

    Example: trainsim schema > scenario.schema.json
    """
    from simulator.scenario import schema

    print_json(schema())
