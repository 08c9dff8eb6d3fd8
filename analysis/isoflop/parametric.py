# SPDX-License-Identifier: Apache-2.0
"""L = E + A / N^a + B / D^b, fitted by Huber's loss on log L (Hoffmann et al. 2022, section 3.3 and appendix D.3)."""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from analysis.isoflop.experiments import FLOPS, Experiment
from analysis.isoflop.noise import drawn_noise
from analysis.isoflop.lbfgs import Function, Rows, minimize
from analysis.runs import FloatArray

HUBER = 1e-3  # of log L, from which on a difference counts by its size and not by its square
FREE = 5  # parameters of the form
# The grid of starts: both exponents, log E, and the logarithms of both terms at the middle of the runs.
EXPONENTS, FLOORS, TERMS = (0.1, 0.3, 0.7, 1.5), (-1.0, 0.0, 0.5, 1.0), (-3.0, -1.0, 0.0, 2.0)
FIRST_STEPS, LAST_STEPS = 30, 600
KEPT = 40  # starts that are followed to their end
STARTS_OF_DRAW = 2


@dataclass(frozen=True)
class Form:
    """Of losses in nats, parameters and tokens."""

    floor: float  # E
    parameter_scale: float  # A
    token_scale: float  # B
    parameter_exponent: float  # a
    token_exponent: float  # b

    @property
    def is_law(self) -> bool:
        """Whether more parameters and more tokens lower the loss, towards a floor."""
        return all(0.0 < each < math.inf for each in (self.parameter_scale, self.token_scale, self.parameter_exponent,
                                                      self.token_exponent))

    def loss(self, parameters: float, tokens: float) -> float:
        return self.floor + self.parameter_scale / parameters ** self.parameter_exponent + \
            self.token_scale / tokens ** self.token_exponent

    @property
    def exponents(self) -> tuple[float, float]:
        """With which the best parameters and the best tokens grow with compute (their equation 4)."""
        total = self.parameter_exponent + self.token_exponent
        return self.token_exponent / total, self.parameter_exponent / total

    def best(self, compute: float) -> tuple[float, float]:
        """Parameters and tokens of the lowest loss at so many FLOPs."""
        of_parameters, _ = self.exponents
        total = self.parameter_exponent + self.token_exponent
        scale = (self.parameter_exponent * self.parameter_scale / (self.token_exponent * self.token_scale)) ** (1.0 / total)
        parameters = scale * (compute / FLOPS) ** of_parameters
        return parameters, compute / FLOPS / parameters

    def best_loss(self, compute: float) -> float:
        return self.loss(*self.best(compute))

    def compute_for(self, loss: float) -> float:
        """The fewest FLOPs with which that loss is reached; infinite at the floor and below."""
        if loss <= self.floor:
            return math.inf
        one = self.best_loss(1.0) - self.floor  # falls as a power of compute
        falls = self.parameter_exponent * self.token_exponent / (self.parameter_exponent + self.token_exponent)
        with np.errstate(over="ignore"):
            return float(np.exp(np.log(one / (loss - self.floor)) / falls))


@dataclass(frozen=True)
class Fitted:
    """`draws`: forms of drawn losses, without those that are no law; `share` of draws that are one."""

    form: Form
    deviation: float  # of log L, root mean square
    draws: list[Form]
    share: float


class Problem:
    """Parameters of a row: log A - a m, log B - b m', log E, a, b, where m and m' are the means of log N and log D."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        sizes, tokens = (np.log([getattr(each, name) for each in experiments]) for name in ("parameters", "tokens"))
        self.means = float(sizes.mean()), float(tokens.mean())
        self.sizes, self.tokens = sizes - self.means[0], tokens - self.means[1]
        self.targets = np.log([each.loss for each in experiments])

    def terms(self, points: FloatArray) -> FloatArray:
        """Logarithms of the three terms, [3, rows, runs]."""
        of_size = points[:, 0:1] - points[:, 3:4] * self.sizes
        of_tokens = points[:, 1:2] - points[:, 4:5] * self.tokens
        return np.stack([of_size, of_tokens, np.broadcast_to(points[:, 2:3], of_size.shape)])

    def logs(self, points: FloatArray) -> FloatArray:
        """log L, [rows, runs]."""
        return np.logaddexp.reduce(self.terms(points), axis=0)

    def huber(self, targets: FloatArray) -> Function:
        """The sum over runs; `targets` of all starts, or [starts, runs]."""
        def value(points: FloatArray, rows: Rows) -> tuple[FloatArray, FloatArray]:
            terms = self.terms(points)
            logs = np.logaddexp.reduce(terms, axis=0)
            away = logs - (targets[rows] if targets.ndim > 1 else targets)
            clipped = np.clip(away, -HUBER, HUBER)
            shares = np.exp(terms - logs) * clipped
            return np.sum(clipped * (away - 0.5 * clipped), axis=1), np.stack(
                [shares[0].sum(1), shares[1].sum(1), shares[2].sum(1), -(shares[0] * self.sizes).sum(1),
                 -(shares[1] * self.tokens).sum(1)], axis=1)

        return value

    def form(self, point: FloatArray) -> Form:
        with np.errstate(over="ignore"):
            scales = np.exp([point[2], point[0] + point[3] * self.means[0], point[1] + point[4] * self.means[1]])
        return Form(*map(float, scales), float(point[3]), float(point[4]))


def fit_point(problem: Problem) -> FloatArray:
    """The lowest end of all starts: all go some steps, the best of them on to their end."""
    starts = np.array([(of_size, of_tokens, floor, a, b) for of_size, of_tokens, floor, a, b in itertools.product(
        TERMS, TERMS, FLOORS, EXPONENTS, EXPONENTS)])
    function = problem.huber(problem.targets)
    points, values = minimize(function, starts, FIRST_STEPS)
    points, values = minimize(function, points[np.argsort(values, kind="stable")[:KEPT]], LAST_STEPS)
    return points[int(np.argmin(values))]


def draw_points(problem: Problem, point: FloatArray, draws: int, random: np.random.Generator) -> FloatArray:
    """Fits of losses that are drawn around those of the fit, as far from them as the runs are. Resampled differences would
    not do: Huber's loss takes several of them to zero."""
    logs = problem.logs(point[None])[0]
    targets = logs + drawn_noise(float(np.sum((problem.targets - logs) ** 2)), logs.size - FREE, (draws, logs.size), random)
    starts = np.repeat(point[None], draws * STARTS_OF_DRAW, axis=0)
    starts[draws:] += 0.1 * random.standard_normal(starts[draws:].shape)
    points, values = minimize(problem.huber(np.tile(targets, (STARTS_OF_DRAW, 1))), starts, LAST_STEPS)
    best = np.argmin(values.reshape(STARTS_OF_DRAW, draws), axis=0)
    return points.reshape(STARTS_OF_DRAW, draws, FREE)[best, np.arange(draws)]


def fit_form(experiments: Sequence[Experiment], draws: int, random: np.random.Generator) -> Fitted:
    problem = Problem(experiments)
    point = fit_point(problem)
    form = problem.form(point)
    deviation = float(np.sqrt(np.mean((problem.logs(point[None])[0] - problem.targets) ** 2)))
    if len(experiments) <= FREE or not form.is_law or draws == 0:
        return Fitted(form, deviation, [], 0.0)
    found = [problem.form(each) for each in draw_points(problem, point, draws, random)]
    laws = [each for each in found if each.is_law]
    return Fitted(form, deviation, laws, len(laws) / draws)
