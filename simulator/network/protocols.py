"""Transport protocols: what a step costs, and what part of a link's bytes is payload.

NCCL's LL puts a flag beside every 4 bytes, LL128 beside every 120; Simple sends bare data and pays with
memory fences at each step. Latencies are NCCL's own table (data/protocols.toml). `ideal` is a network
without software: links' latencies and bare bytes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from simulator.errors import FileFormatError, SpecError, nearest


@dataclass(frozen=True, slots=True)
class Protocol:
    """`payload`: part of the bytes on the wire that is data, by kind of link ("nvlink", "pcie", "net").

    `base_s`, `hop_s`: by algorithm, and by algorithm and kind of link. `most_bytes`: a group does not use
    it above so many bytes a rank (0: any).
    """

    name: str
    payload: Mapping[str, float]
    base_s: Mapping[str, float]
    hop_s: Mapping[str, Mapping[str, float]]
    most_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Transport:
    """The physical part: what of a link's rate is reached, SMs and the like; see data/protocols.toml."""

    reached: Mapping[str, float]
    sms: Mapping[str, float]
    ramp_bytes: Mapping[str, float]
    nvls_reached: float
    launch_s: float = 0.0  # from the kernel's start to the first step
    lone_reached: float = 1.0  # of a NIC's rate, by a group with one member a node


@cache
def _data() -> Mapping[str, object]:
    folder = files("simulator.network") / "data"
    return tomllib.loads((folder / "protocols.toml").read_text(encoding="utf-8"))


@cache
def protocols() -> Mapping[str, Protocol]:
    """All protocols by name."""
    entries: Mapping[str, Mapping[str, object]] = _data()["protocols"]  # type: ignore[assignment]
    return {
        name: Protocol(
            name=name,
            payload=entry["payload"],  # type: ignore[arg-type]
            base_s=entry["base_s"],  # type: ignore[arg-type]
            hop_s=entry["hop_s"],  # type: ignore[arg-type]
            most_bytes=float(entry.get("most_bytes", 0.0)),  # type: ignore[arg-type]
        )
        for name, entry in entries.items()
    }


@cache
def transport(kind: str) -> Transport:
    """Constants of a machine's transport: "ideal", or by the generation of its NVLink."""
    entries: Mapping[str, Mapping[str, object]] = _data()["transports"]  # type: ignore[assignment]
    return _transport(entries[kind])


def read_overlay(path: Path) -> Transport:
    """Constants that `trainsim calibrate` wrote. Raises FileFormatError."""
    try:
        return _transport(tomllib.loads(path.read_text(encoding="utf-8"))["transport"])
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: not TOML: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path}: not an overlay of trainsim calibrate: {error!r} is missing"
        ) from error


def _transport(entry: Mapping[str, object]) -> Transport:
    return Transport(
        reached=entry["reached"],  # type: ignore[arg-type]
        sms=entry["sms"],  # type: ignore[arg-type]
        ramp_bytes=entry["ramp_bytes"],  # type: ignore[arg-type]
        nvls_reached=float(entry["nvls_reached"]),  # type: ignore[arg-type]
        launch_s=float(entry["launch_s"]),  # type: ignore[arg-type]
        lone_reached=float(entry["lone_reached"]),  # type: ignore[arg-type]
    )


def find_protocol(name: str) -> Protocol:
    """The protocol `name`; SpecError with the nearest name."""
    known = protocols()
    if name not in known:
        raise SpecError.of("protocol", f"'{name}': unknown protocol{nearest(name, known)}")
    return known[name]
