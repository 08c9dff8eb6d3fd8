# SPDX-License-Identifier: Apache-2.0
"""Round numbers on axes: 1k, 2k, 5k, never 43,860; 87,720."""
from __future__ import annotations

import math
from typing import Sequence

from matplotlib.axis import Axis
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullFormatter, NullLocator

from analysis.style import Axes

UNITS = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
LARGEST, SMALLEST = 1e12, 1e-3  # beyond them powers of ten
SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
LEADING = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0))
FEWEST, MOST = 3, 8
ENDS = (1e-150, 1e150)
WIDE, NARROW = 1000.0, 1.6  # ratios of the ends of an axis


def power_text(value: float) -> str:
    power = math.floor(math.log10(abs(value)) + 1e-9)
    leading = f"{value / 10.0 ** power:.3g}"
    ten = "10" + str(power).translate(SUPERSCRIPTS)
    return ten if leading == "1" else f"{leading} \u00d7 {ten}"


def tick_texts(ticks: Sequence[float], units: bool = True) -> list[str]:
    """Powers of ten for all ticks if one of them needs one; `units`: whether 20k may be written."""
    largest = LARGEST if units else UNITS[-1][0]
    plain = all(SMALLEST <= tick < largest for tick in ticks)
    return [short_number(tick) if plain else power_text(tick) for tick in ticks]


def short_number(value: float) -> str:
    """1,500 as 1500, 15,000 as 15k, 1,500,000 as 1.5M; very small and very large ones as powers."""
    if value != 0.0 and not SMALLEST <= abs(value) < LARGEST:
        return power_text(value)
    for unit, letter in UNITS:
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.4g}{letter}"
    return f"{value:.4g}"


def of_leading(leading: Sequence[float], low: float, high: float) -> list[float]:
    """Numbers from low to high that are one of `leading` times a power of ten."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    numbers = [float(f"{first:g}e{power}") for power in powers for first in leading]
    return [number for number in numbers if low * (1 - 1e-9) <= number <= high * (1 + 1e-9)]


def round_ticks(low: float, high: float) -> list[float]:
    """About three to eight round numbers between two positive ends of a logarithmic axis."""
    if high / low < NARROW:
        steps = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(f"{step:.6g}") for step in steps if low <= step <= high]
    for leading in LEADING[1 if high / low < WIDE else 0:]:
        ticks = of_leading(leading, low, high)
        if len(ticks) >= FEWEST:
            break
    stride = math.ceil(len(ticks) / MOST)
    return ticks[::stride]


def set_ticks(axis: Axis, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """These and no others."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(labels)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def round_log_axis(axes: Axes, which: str, low: float, high: float, units: bool = True) -> None:
    """Makes axis `x` or `y` logarithmic from low to high, both above 0, with round ticks; `units` as of
    tick_texts."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    ticks = round_ticks(low, high)
    set_ticks(axes.xaxis if which == "x" else axes.yaxis, ticks, tick_texts(ticks, units))


def widened(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """Ends of a logarithmic axis with room on both sides; equal ends are drawn apart, and none beyond ENDS."""
    low, high = (min(max(each, ENDS[0]), ENDS[1]) for each in (low, high))
    room = (high / low) ** share if high > low * 1.001 else 1.5
    return low / room, high * room
