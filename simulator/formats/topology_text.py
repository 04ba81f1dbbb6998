"""What the importers of foreign topologies share: the imported fabric, and its YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import FileFormatError


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology as its file's fields; `guessed`: what the dump does not say and was assumed."""

    name: str
    family: str
    gpu: str
    source: str
    parameters: Mapping[str, Any]
    guessed: tuple[str, ...]

    def to_yaml(self) -> str:
        """The topology file, with what was guessed as comments."""
        lines = [f"# Imported from {self.source}.", *(f"# guessed: {guess}" for guess in self.guessed)]
        lines += [
            f"name: {self.name}",
            f"family: {self.family}",
            f"gpu: {self.gpu}",
            f"source: {self.source}",
        ]
        lines.append("parameters:")
        for key, value in self.parameters.items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                lines.append(f"  {key}:")
                lines += [f"    - {{{', '.join(f'{k}: {v}' for k, v in entry.items())}}}" for entry in value]
            elif isinstance(value, list):
                lines.append(f"  {key}: [{', '.join(str(one) for one in value)}]")
            else:
                lines.append(f"  {key}: {value}")
        return "\n".join(lines) + "\n"


def read_text(path: Path) -> str:
    """The text of a dump. Raises FileFormatError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8 text") from error


def gpu_by_nvlinks(links: int) -> str:
    """The GPU that has so many NVLinks: 6 V100, 12 A100, 18 H100 (data sheets)."""
    return "v100-sxm" if links <= 6 else "a100-sxm" if links <= 12 else "h100-sxm"
