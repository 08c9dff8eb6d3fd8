# SPDX-License-Identifier: Apache-2.0
"""The best size at one budget: the lowest run, and the minimum of a parabola in log N (Hoffmann et al. 2022, approach 2)."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.isoflop.experiments import FLOPS, Budget
from analysis.runs import FloatArray

COEFFICIENTS = 3
INSIDE, BEYOND, NONE = "between the sizes", "beyond the sizes", "no minimum"


def vertex(coefficients: FloatArray) -> FloatArray:
    """Where parabolas [..., 3] are lowest; NaN of those that open downwards."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(coefficients[..., 2] > 0, -0.5 * coefficients[..., 1] / coefficients[..., 2], math.nan)


@dataclass(frozen=True)
class Curve:
    """L = c0 + c1 x + c2 x^2 with x = log N - `centre`, by least squares over the runs of a budget."""

    budget: Budget
    centre: float
    coefficients: FloatArray

    @property
    def x(self) -> FloatArray:
        return np.log(self.budget.sizes) - self.centre

    @property
    def design(self) -> FloatArray:
        return np.stack([np.ones_like(self.x), self.x, self.x ** 2], axis=1)

    @property
    def fitted(self) -> FloatArray:
        return self.design @ self.coefficients

    @property
    def squares(self) -> float:
        """Of the differences from the runs, summed."""
        return float(np.sum((self.fitted - [each.loss for each in self.budget.experiments]) ** 2))

    @property
    def free(self) -> int:
        return len(self.budget.experiments) - COEFFICIENTS

    @property
    def place(self) -> float:
        """x of the minimum, NaN if there is none."""
        return float(vertex(self.coefficients))

    @property
    def state(self) -> str:
        if math.isnan(self.place):
            return NONE
        return INSIDE if self.x[0] <= self.place <= self.x[-1] else BEYOND

    @property
    def parameters(self) -> float:
        return math.exp(self.place + self.centre) if self.state == INSIDE else math.nan

    @property
    def tokens(self) -> float:
        return self.budget.compute / FLOPS / self.parameters

    @property
    def loss(self) -> float:
        return self.at(self.place) if self.state == INSIDE else math.nan

    def at(self, x: float) -> float:
        return float(np.polynomial.polynomial.polyval(x, self.coefficients))

    def places_of(self, losses: FloatArray) -> FloatArray:
        """log N of the minima if the runs had these losses, [draws, runs]."""
        return vertex(losses @ np.linalg.pinv(self.design).T) + self.centre


def curve_of(budget: Budget) -> Curve:
    logs = np.log(budget.sizes)
    centre = float(logs.mean())
    found = Curve(budget, centre, np.zeros(COEFFICIENTS))
    return Curve(budget, centre, np.linalg.pinv(found.design) @ [each.loss for each in budget.experiments])
