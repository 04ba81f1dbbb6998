"""Chrome trace events out of a JSON file, gzipped or not, one at a time and in bounded memory."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

from simulator.errors import Finding, SpecError

_CHUNK: Final = 1 << 22  # bytes read at once
_LONGEST: Final = 1 << 26  # characters: no event nor header is longer
_between = re.compile(r"[\s,]*").match


def _unpacked(raw: IO[bytes], packed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw


class EventFile:
    """The events of one file; `head` fills with the other keys of the top level as they are passed.

    Reads `{"traceEvents": [...], ...}` and the bare list `[...]`. Iterating raises SpecError, with
    the line, for a file that cannot be read, is cut off, is no JSON, or holds no trace events.
    """

    def __init__(self, path: Path):
        self.path = path
        self.head: dict[str, Any] = {}
        decoder: Any = json.JSONDecoder(strict=False)
        self._scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text, self._at, self._line, self._ended = "", 0, 1, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                with _unpacked(raw, packed) as stream:
                    yield from self._top(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._bad(f"the gzip data is damaged or cut off ({error}): copy the file again") from error
        except OSError as error:
            raise self._bad(f"cannot be read: {error.strerror or error}") from error

    def _top(self, stream: IO[bytes]) -> Iterator[dict[str, Any]]:
        first = self._peek(stream)
        if first == "[":
            self._at += 1
            yield from self._events(stream)
            return
        if first != "{":
            raise self._bad(f"starts with {first!r}: expected JSON of trace events")
        self._at += 1
        found = False
        while (sign := self._peek(stream)) != "}":
            if sign != '"':
                raise self._bad(
                    f"{sign!r} where a key is due: damaged JSON" if sign else "the file is cut off"
                )
            key = self._value(stream)
            if self._peek(stream) != ":":
                raise self._bad(f"no ':' after the key {key!r}: damaged JSON")
            self._at += 1
            if key == "traceEvents":
                if self._peek(stream) != "[":
                    raise self._bad("traceEvents: expected a list of events")
                self._at += 1
                found = True
                yield from self._events(stream)
            else:
                self._peek(stream)
                self.head[key] = self._value(stream)
        if not found:
            keys = ", ".join(list(self.head)[:4]) or "nothing"
            raise self._bad(f"no traceEvents, only {keys}: expected the JSON of a profiler trace")

    def _events(self, stream: IO[bytes]) -> Iterator[dict[str, Any]]:
        scan = self._scan
        while True:
            sign = self._peek(stream)
            if sign == "]":
                self._at += 1
                return
            if sign != "{":
                raise self._bad(
                    f"{sign!r} where an event is due: damaged JSON" if sign else "the file is cut off"
                )
            text, at = self._text, self._at
            try:
                while True:  # as many as the buffer holds
                    event, at = scan(text, at)
                    yield event
                    self._at = at
                    place = _between(text, at)
                    at = at if place is None else place.end()
                    if text[at : at + 1] != "{":
                        break
                self._at = at
            except (json.JSONDecodeError, StopIteration) as error:
                self._more(stream, error)

    def _value(self, stream: IO[bytes]) -> Any:
        while True:
            try:
                value, at = self._scan(self._text, self._at)
            except (json.JSONDecodeError, StopIteration) as error:
                self._more(stream, error)
                continue
            if at < len(self._text) or self._ended:  # a number at the end may go on
                self._at = at
                return value
            self._fill(stream)

    def _more(self, stream: IO[bytes], error: Exception) -> None:
        """Read on after an error, which may come from the buffer's end; raise it if it does not."""
        if self._ended or len(self._text) - self._at > _LONGEST:
            offset = error.pos if isinstance(error, json.JSONDecodeError) else self._at
            if isinstance(error, StopIteration) and isinstance(error.value, int):
                offset = error.value
            self._at = offset
            message = error.msg if isinstance(error, json.JSONDecodeError) else "no value"
            cut = not self._text[offset:].strip() or "Unterminated" in message
            raise self._bad("the file is cut off" if cut else f"damaged JSON ({message})") from error
        self._fill(stream)

    def _fill(self, stream: IO[bytes]) -> None:
        chunk = stream.read(_CHUNK)
        self._ended = not chunk
        self._line += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + self._decode.decode(chunk, final=self._ended)
        self._at = 0

    def _peek(self, stream: IO[bytes]) -> str:
        """The next sign that is neither blank nor comma; empty at the end."""
        while True:
            place = _between(self._text, self._at)
            if place is not None:
                self._at = place.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._fill(stream)

    def _bad(self, message: str) -> SpecError:
        line = self._line + self._text.count("\n", 0, self._at)
        return SpecError(Finding("", message, str(self.path), line))
