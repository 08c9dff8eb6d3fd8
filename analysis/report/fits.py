# SPDX-License-Identifier: Apache-2.0
"""How speed-ups grow with ranks: the serial fraction of Karp and Flatt, fits of Amdahl and Gustafson.

Ranks and speed-ups are those of the base: p = ranks / ranks of the base, S = speed-up over it.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

from analysis.scaling import Group

Points = Sequence[tuple[float, float]]  # (p, S), p above 1


@dataclass(frozen=True)
class Fit:
    """`serial` is the share that does not get faster; `worst` the largest deviation of S from the fit, as a
    share of S."""

    law: str
    serial: float
    worst: float

    @property
    def limit(self) -> float:
        """The speed-up that more ranks approach under Amdahl's law."""
        return 1.0 / self.serial if self.serial > 0 else math.inf


def karp_flatt(p: float, speed_up: float) -> float:
    """The serial fraction that a speed-up on p > 1 ranks shows (Karp and Flatt 1990, eq. 2)."""
    return (1.0 / speed_up - 1.0 / p) / (1.0 - 1.0 / p)


def amdahl(p: float, serial: float) -> float:
    """Speed-up with a fixed problem (Amdahl 1967)."""
    return 1.0 / (serial + (1.0 - serial) / p)


def gustafson(p: float, serial: float) -> float:
    """Speed-up with a problem that grows with the ranks (Gustafson 1988)."""
    return p - serial * (p - 1.0)


def fit_amdahl(points: Points) -> Fit:
    """Least squares in 1/S - 1/p = s (1 - 1/p), which is linear in s."""
    xs = [1.0 - 1.0 / p for p, _ in points]
    ys = [1.0 / speed_up - 1.0 / p for p, speed_up in points]
    serial = sum(x * y for x, y in zip(xs, ys)) / sum(x * x for x in xs)
    return Fit("Amdahl", serial, worst_of(points, lambda p: amdahl(p, serial)))


def fit_gustafson(points: Points) -> Fit:
    """Least squares in p - S = s (p - 1)."""
    xs = [p - 1.0 for p, _ in points]
    serial = sum(x * (p - speed_up) for x, (p, speed_up) in zip(xs, points)) / sum(x * x for x in xs)
    return Fit("Gustafson", serial, worst_of(points, lambda p: gustafson(p, serial)))


def worst_of(points: Points, law: Callable[[float], float]) -> float:
    return max(abs(law(p) / speed_up - 1.0) for p, speed_up in points)


def points_of(group: Group) -> list[tuple[float, float]]:
    """Of the fastest layout of each rank count above the base's."""
    return [(case.ranks / group.base.ranks, group.speed_up(case)) for case in group.best
            if case.ranks > group.base.ranks]


def fit_of(group: Group) -> Fit | None:
    """Amdahl's law for strong scaling, Gustafson's for weak; none without a rank count that is faster than the base."""
    points = points_of(group)
    if group.kind not in ("strong", "weak") or all(speed_up <= 1.0 for _, speed_up in points):
        return None
    return fit_amdahl(points) if group.kind == "strong" else fit_gustafson(points)
