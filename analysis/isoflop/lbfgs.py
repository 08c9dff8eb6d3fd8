# SPDX-License-Identifier: Apache-2.0
"""L-BFGS (Liu and Nocedal 1989) from many starts at once: a fit of five parameters takes thousands of them."""
from __future__ import annotations

from typing import Any, Callable

import numpy as np
import numpy.typing as npt

from analysis.runs import FloatArray

Rows = npt.NDArray[np.integer[Any]]
# Takes points [rows, parameters] and the numbers of their starts; gives values [rows] and gradients [rows, parameters].
Function = Callable[[FloatArray, Rows], tuple[FloatArray, FloatArray]]

PAIRS = 8  # of the last steps and changes of the gradient
DECREASE = 1e-4  # of the value, as a share of what the slope promises
HALVINGS = 30
SAME = 1e-10  # a relative decrease that ends the search of a start
TINY = 1e-300


def dot(one: FloatArray, other: FloatArray) -> FloatArray:
    """Row by row, as a column."""
    return np.sum(one * other, axis=-1, keepdims=True)


class History:
    """The last steps and changes of the gradient of every row."""

    def __init__(self) -> None:
        self.pairs: list[tuple[FloatArray, FloatArray, FloatArray]] = []  # step, change, 1 / curvature

    def add(self, step: FloatArray, change: FloatArray) -> None:
        """A row whose curvature is not positive takes nothing from this pair."""
        curvature = dot(step, change)
        self.pairs.append((step, change, np.where(curvature > TINY, 1.0 / np.maximum(curvature, TINY), 0.0)))
        del self.pairs[:-PAIRS]

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        self.pairs = [(step[rows], change[rows], inverse[rows]) for step, change, inverse in self.pairs]

    def direction(self, gradient: FloatArray) -> FloatArray:
        """The two loops; downhill in every row."""
        found = -gradient
        scale = 1.0 / np.maximum(np.sqrt(dot(gradient, gradient)), 1.0)
        shares: list[FloatArray] = []
        for step, change, inverse in self.pairs[::-1]:
            shares.append(inverse * dot(step, found))
            found = found - shares[-1] * change
        for _, change, inverse in self.pairs:
            scale = np.where(inverse > 0.0, 1.0 / np.maximum(inverse * dot(change, change), TINY), scale)
        found = found * scale
        for (step, change, inverse), share in zip(self.pairs, shares[::-1]):
            found = found + step * (share - inverse * dot(change, found))
        return np.where(dot(found, gradient) < 0.0, found, -gradient)


def line_search(function: Function, rows: Rows, now: tuple[FloatArray, FloatArray, FloatArray],
                towards: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Point, value and gradient after a step that each row halves until its value falls far enough; a row whose value never
    does stays where it is."""
    points, values, gradients = (each.copy() for each in now)
    slope = dot(towards, now[2])[:, 0]
    waiting = np.arange(len(points))
    length = 1.0
    for _ in range(HALVINGS):
        tried = now[0][waiting] + length * towards[waiting]
        with np.errstate(over="ignore", invalid="ignore"):
            found, sloped = function(tried, rows[waiting])
            good = np.isfinite(found) & (found <= now[1][waiting] + DECREASE * length * slope[waiting])
        ended = waiting[good]
        points[ended], values[ended], gradients[ended] = tried[good], found[good], sloped[good]
        waiting = waiting[~good]
        if not waiting.size:
            break
        length *= 0.5
    return points, values, gradients


def minimize(function: Function, starts: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Points and values after at most so many steps of each start; a start ends when its value falls no more."""
    rows: Rows = np.arange(len(starts))
    points = starts.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        values, gradients = function(points, rows)
    found, reached = points.copy(), values.copy()
    history = History()
    for _ in range(most):
        new = line_search(function, rows, (points, values, gradients), history.direction(gradients))
        history.add(new[0] - points, new[2] - gradients)
        going = values - new[1] > SAME * np.abs(values)
        points, values, gradients = new
        found[rows], reached[rows] = points, values
        if not going.any():
            break
        rows, points, values, gradients = rows[going], points[going], values[going], gradients[going]
        history.keep(going)
    return found, reached
