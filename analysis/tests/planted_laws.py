# SPDX-License-Identifier: Apache-2.0
"""Runs drawn from a known law, and how often `isoflop` finds it within its intervals.

python3 -m analysis.tests.planted_laws [DRAWS]     default 100
"""
from __future__ import annotations

import math
import sys

import numpy as np

from analysis.isoflop.experiments import Experiment, make_budgets
from analysis.isoflop.minimum import curve_of
from analysis.isoflop.noise import interval
from analysis.isoflop.parametric import Fitted, Form, fit_form
from analysis.isoflop.power import PowerLaw, law_of_minima

# Besiroglu et al. 2024, Chinchilla Scaling: A Replication Attempt, table 1.
REPLICATION = Form(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
BUDGETS = (1e18, 3e18, 1e19, 3e19, 1e20)
SIZES = 7
FACTOR = 4.0  # from the best size to the smallest and the largest
SHIFT = 0.3  # of all sizes of a budget, in logarithms
FIELDS = ("floor", "parameter_scale", "token_scale", "parameter_exponent", "token_exponent")


def drawn_runs(form: Form, noise: float, random: np.random.Generator) -> list[Experiment]:
    """`noise`: of log L."""
    runs = []
    for compute in BUDGETS:
        shift = random.uniform(-SHIFT, SHIFT)
        for away in np.linspace(-math.log(FACTOR), math.log(FACTOR), SIZES):
            size = form.best(compute)[0] * math.exp(away + shift)
            tokens = compute / 6.0 / size
            runs.append(Experiment("", size, tokens, compute, form.loss(size, tokens) * math.exp(noise * random.standard_normal())))
    return runs


def law_holds(law: PowerLaw, form: Form) -> dict[str, bool]:
    """By exponent, and by the size and tokens at ten times the largest budget."""
    def holds(draws: np.ndarray, true: float) -> bool:
        low, high = interval(draws)
        return low <= true <= high

    far = 10.0 * BUDGETS[-1]
    return {"exponent of N": holds(law.draws[:, 1], form.exponents[0]), "exponent of D": holds(law.of_tokens.draws[:, 1], form.exponents[1]),
            "N at ten times the compute": holds(law.drawn_at(far), form.best(far)[0]),
            "D at ten times the compute": holds(law.of_tokens.drawn_at(far), form.best(far)[1])}


def form_holds(fitted: Fitted, form: Form) -> dict[str, bool]:
    ranges = {name: interval(np.array([getattr(each, name) for each in fitted.draws])) for name in FIELDS}
    ranges["exponent of N by the form"] = interval(np.array([each.exponents[0] for each in fitted.draws]))
    true = {name: getattr(form, name) for name in FIELDS} | {"exponent of N by the form": form.exponents[0]}
    return {name: low <= true[name] <= high for name, (low, high) in ranges.items()}


def count_held(draws: int, noise: float, with_form: bool, seed: int = 1) -> dict[str, int]:
    """In how many of the draws each figure of the planted law lay within its interval."""
    random = np.random.default_rng(seed)
    held: dict[str, int] = {}
    for _ in range(draws):
        runs = drawn_runs(REPLICATION, noise, random)
        found = law_holds(law_of_minima([curve_of(budget) for budget in make_budgets(runs)], 1000, random), REPLICATION)
        if with_form:
            found |= form_holds(fit_form(runs, 300, random), REPLICATION)
        for name, holds in found.items():
            held[name] = held.get(name, 0) + holds
    return held


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for spread in (0.0005, 0.002, 0.005):
        for figure, times in count_held(asked, spread, with_form=True).items():
            print(f"noise {100 * spread:g} %: {figure}: within its interval in {times} of {asked} draws")
