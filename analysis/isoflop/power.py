# SPDX-License-Identifier: Apache-2.0
"""Power laws of the best size and the best tokens, N = k C^p, with intervals that are drawn."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from analysis.errors import UserError
from analysis.isoflop.experiments import FEWEST_BUDGETS, FLOPS
from analysis.isoflop.minimum import INSIDE, Curve
from analysis.isoflop.noise import drawn_noise
from analysis.runs import FloatArray

MOST_LOST = 0.01  # share of draws without a minimum, from which on there is no interval


@dataclass(frozen=True)
class PowerLaw:
    """log N = `logarithm` + `exponent` log C; `draws` holds both of drawn losses, [draws, 2]."""

    logarithm: float
    exponent: float
    draws: FloatArray

    @property
    def scale(self) -> float:
        return math.exp(self.logarithm)

    def at(self, compute: float) -> float:
        return math.exp(self.logarithm + self.exponent * math.log(compute))

    def drawn_at(self, compute: float) -> FloatArray:
        return np.exp(self.draws[:, 0] + self.draws[:, 1] * math.log(compute))

    @property
    def of_tokens(self) -> PowerLaw:
        """D = C / (6 N), so that both exponents add up to one."""
        draws = np.stack([-math.log(FLOPS) - self.draws[:, 0], 1.0 - self.draws[:, 1]], axis=1)
        return PowerLaw(-math.log(FLOPS) - self.logarithm, 1.0 - self.exponent, draws)


NO_DRAWS = np.zeros((0, 2))


def fit_line(computes: Sequence[float], logs: FloatArray) -> FloatArray:
    """Logarithm of the scale and exponent, by least squares in logarithms; `logs` are [..., budgets]."""
    x = np.log(computes)
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    exponent = logs @ weights
    return np.stack([logs.mean(axis=-1) - exponent * x.mean(), exponent], axis=-1)


def power_law(computes: Sequence[float], sizes: Sequence[float]) -> PowerLaw:
    """Without intervals."""
    logarithm, exponent = fit_line(computes, np.log(sizes))
    return PowerLaw(float(logarithm), float(exponent), NO_DRAWS)


def scatter(computes: Sequence[float], logs: FloatArray, deviations: FloatArray) -> float:
    """How much farther the budgets lie from their law than the spread of the runs explains; at least 1."""
    free = len(computes) - 2
    if free < 1 or not np.all(deviations > 0):
        return 1.0
    logarithm, exponent = fit_line(computes, logs)
    away = (logs - logarithm - exponent * np.log(computes)) / deviations
    return max(1.0, math.sqrt(float(np.sum(away ** 2)) / free))


def drawn_minima(curves: Sequence[Curve], draws: int, random: np.random.Generator) -> FloatArray:
    """log N [draws, budgets] of the minima of drawn losses: those of the parabolas with the noise that all of them leave."""
    free = sum(curve.free for curve in curves)
    sizes = [len(curve.budget.experiments) for curve in curves]
    noise = drawn_noise(sum(curve.squares for curve in curves), free, (draws, sum(sizes)), random)
    parts = np.split(noise, np.cumsum(sizes)[:-1], axis=1)
    return np.stack([curve.places_of(curve.fitted + part) for curve, part in zip(curves, parts)], axis=1)


def usable(curves: Sequence[Curve]) -> list[Curve]:
    """Those with a minimum between their sizes."""
    return [curve for curve in curves if curve.state == INSIDE]


def law_of_minima(curves: Sequence[Curve], draws: int, random: np.random.Generator) -> PowerLaw:
    """Of all curves that have a minimum between their sizes. No draws, and so no interval, if every budget has as many runs as
    a parabola has coefficients, or if draws have no minimum."""
    found = usable(curves)
    if len(found) < FEWEST_BUDGETS:
        raise UserError(f"{len(found)} of {len(curves)} budgets have a parabola with a minimum between their sizes, and a law needs "
                        f"{FEWEST_BUDGETS}; add smaller or larger models on the side where the loss still falls")
    computes = [curve.budget.compute for curve in found]
    logs = np.log([curve.parameters for curve in found])
    logarithm, exponent = fit_line(computes, logs)
    law = PowerLaw(float(logarithm), float(exponent), NO_DRAWS)
    if sum(curve.free for curve in found) < 1 or draws == 0:
        return law
    minima = drawn_minima(found, draws, random)
    minima = minima[~np.isnan(minima).any(axis=1)]
    if len(minima) < (1.0 - MOST_LOST) * draws:
        return law
    wider = scatter(computes, logs, minima.std(axis=0))
    return PowerLaw(law.logarithm, law.exponent, fit_line(computes, logs + wider * (minima - logs)))
