# SPDX-License-Identifier: Apache-2.0
"""What the intervals of both fits are drawn from."""
from __future__ import annotations

import numpy as np

from analysis.runs import FloatArray

LEVEL = 0.95  # of all intervals


def drawn_noise(squares: float, free: int, shape: tuple[int, int], random: np.random.Generator) -> FloatArray:
    """Normal noise [draws, runs] of the variance `squares` / `free` that a fit leaves, where `free` is how many runs there are
    more than parameters. Each draw has a variance of its own, by chi-squared, since it is known from few runs (as in Student's
    t)."""
    widths = np.sqrt(squares / random.chisquare(free, shape[0]))
    return widths[:, None] * random.standard_normal(shape)


def interval(values: FloatArray) -> tuple[float, float]:
    """The middle LEVEL of some draws."""
    low, high = np.quantile(values, [0.5 * (1.0 - LEVEL), 0.5 * (1.0 + LEVEL)])
    return float(low), float(high)
