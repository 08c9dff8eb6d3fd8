# SPDX-License-Identifier: Apache-2.0
"""Numbers of `isoflop` as tables show them."""
from __future__ import annotations

import math

from typing import Callable

from analysis.isoflop.noise import interval
from analysis.runs import FloatArray

SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
LARGEST = 1e15  # from which on powers of ten are read more easily


def flops_text(value: float) -> str:
    """Such as 5.76e23."""
    return "-" if math.isnan(value) else "no end" if math.isinf(value) else f"{value:.3g}".replace("e+", "e")


def count_text(value: float) -> str:
    """Of parameters and tokens, such as 72.2B."""
    if math.isnan(value) or math.isinf(value) or value >= LARGEST:
        return flops_text(value)
    for unit, letter in SUFFIXES:
        if value >= unit * (1.0 - 5e-4):
            return f"{value / unit:.3g}{letter}" if value < 999.5 * unit else f"{value / unit:.0f}{letter}"
    return f"{value:.3g}"


def hours_text(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return flops_text(value)
    return times_text(value)


def times_text(value: float) -> str:
    return f"{value:,.0f}" if 100.0 <= value < LARGEST else f"{value:.3g}"


def plain_text(value: float) -> str:
    """Four digits that count."""
    return "-" if math.isnan(value) else f"{value:.4g}".replace("e+", "e")


def range_text(values: FloatArray, text: Callable[[float], str] = plain_text) -> str:
    """Such as "0.48 to 0.52"; a dash without draws."""
    return " to ".join(text(end) for end in interval(values)) if len(values) else "-"
