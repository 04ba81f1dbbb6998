"""The command line: one function a verb, no logic."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `trainsim` command."""
    raise SystemExit("not yet")
