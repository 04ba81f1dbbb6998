"""Figures for people: the same unit down a column, bars, shares, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time for a whole column, with its decimals."""

    name: str
    seconds: float
    decimals: int

    def of(self, seconds: float) -> str:
        """The figure without the unit.

        >>> Unit("ms", 1e-3, 1).of(0.0123)
        '12.3'
        """
        return f"{seconds / self.seconds:,.{self.decimals}f}"


def time_unit(whole_s: float) -> Unit:
    """The unit in which a whole of `whole_s` seconds and its parts read well."""
    for name, seconds in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if whole_s >= seconds:
            decimals = 1 if whole_s >= 100 * seconds else 2 if whole_s >= 10 * seconds else 3
            return Unit(name, seconds, decimals)
    return Unit("ns", 1e-9, 1)


def time_with_unit(seconds: float) -> str:
    """
    >>> time_with_unit(0.8123), time_with_unit(7.2531)
    ('812.3 ms', '7.253 s')
    """
    unit = time_unit(seconds)
    return f"{unit.of(seconds)} {unit.name}"


def share(part: float) -> str:
    """A part of 1 as a percentage; small ones keep a figure.

    >>> share(0.3821), share(0.0004)
    ('38.2%', '0.04%')
    """
    percent = 100 * part
    return f"{percent:.2f}%" if 0 < abs(percent) < 0.1 else f"{percent:.1f}%"


def count(number: float) -> str:
    """
    >>> count(1234567.8), count(12.345)
    ('1,234,568', '12.3')
    """
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def bar(part: float, width: int, *, unicode: bool = True, track: bool = False) -> str:
    """A bar of `part` (0 to 1) of `width` characters, to an eighth of a character.

    `track`: dots show what is missing to the whole.

    >>> bar(0.5, 4, unicode=False), bar(0.5, 4, unicode=False, track=True)
    ('##', '##..')
    """
    part = min(1.0, max(0.0, part))
    if unicode:
        eighths = round(part * width * 8)
        drawn = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    else:
        drawn = "#" * round(part * width)
    return drawn.ljust(width, "·" if unicode else ".") if track else drawn


def figure(value: float) -> str:
    """A figure that may be of any size: four significant digits, thousands apart.

    >>> figure(6193.2), figure(0.3453), figure(6.35e24), figure(7.08e-7)
    ('6,193', '0.3453', '6.350e+24', '7.080e-07')
    """
    if value != 0 and (abs(value) >= 1e9 or abs(value) < 1e-3):
        return f"{value:.3e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
