# SPDX-License-Identifier: Apache-2.0
"""What a fit says of a budget or a target loss: size, tokens, loss and hours, and how far from the runs that is."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Sequence

import numpy as np

from analysis.errors import UserError
from analysis.isoflop.experiments import FLOPS, Budget
from analysis.isoflop.minimum import Curve
from analysis.isoflop.noise import LEVEL
from analysis.isoflop.parametric import Fitted, Form, fit_form
from analysis.isoflop.power import PowerLaw, law_of_minima, usable
from analysis.isoflop.words import range_text, times_text
from analysis.json_files import read_json
from analysis.runs import FloatArray

HOUR = 3600.0
PLANNED = {"ranks": int, "tokens_per_second": float, "matmul_parameters": int}
PLAN_ADVICE = "write it with hyperslab plan DECK --machine FILE --json FILE"
BY_LAWS, BY_FORM = "power laws of the minima", "L(N, D)"
EDGE = 1.001  # a budget that ran, in spite of rounding


@dataclass(frozen=True)
class Estimate:
    value: float
    draws: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device, as 6 N D counts them."""

    flops_per_second: float
    about: str

    def hours(self, compute: Estimate) -> Estimate:
        """Of devices, as of one that does all."""
        return Estimate(*(each / self.flops_per_second / HOUR for each in (compute.value, compute.draws)))


@dataclass(frozen=True)
class Answer:
    """`asked`, such as "budget 1e24"; `by` which fit; `reach`: where it lies beside the budgets that ran."""

    asked: str
    by: str
    compute: Estimate
    parameters: Estimate
    tokens: Estimate
    loss: Estimate
    reach: str


def read_rate(plan: Path | None, flops_per_second: float | None) -> Rate | None:
    if plan is not None and flops_per_second is not None:
        raise UserError("give --plan or --flops-per-second, not both")
    if flops_per_second is not None:
        return Rate(flops_per_second, f"{flops_per_second:.3g} FLOP/s a device, as given")
    if plan is None:
        return None
    content = read_json(plan, PLANNED, PLAN_ADVICE)
    ranks, tokens, size = (float(content[key]) for key in PLANNED)
    if min(ranks, tokens, size) <= 0:
        raise UserError(f"{plan} cannot be read (a number is not above 0); {PLAN_ADVICE}")
    rate = FLOPS * size * tokens / ranks
    return Rate(rate, f"{rate:.3g} FLOP/s a device, which {plan.name} predicts ({tokens:,.0f} tokens/s of {size:,.0f} parameters on "
                      f"{ranks:.0f} devices)")


def reach_of(compute: float, budgets: Sequence[Budget]) -> str:
    """Fits are checked by the runs between the least and the largest budget alone."""
    if math.isinf(compute):
        return "not reached"
    least, most = budgets[0].compute, budgets[-1].compute
    if compute > EDGE * most:
        return f"EXTRAPOLATED: {times_text(compute / most)} times the largest budget that ran"
    if compute < least / EDGE:
        return f"EXTRAPOLATED: {times_text(compute / least)} of the least budget that ran"
    return "between the budgets that ran"


def by_laws(asked: str, law: PowerLaw, compute: float, reach: str) -> Answer:
    return Answer(asked, BY_LAWS, Estimate(compute), Estimate(law.at(compute), law.drawn_at(compute)),
                  Estimate(law.of_tokens.at(compute), law.of_tokens.drawn_at(compute)), Estimate(math.nan), reach)


def of_form(form: Form, compute: float) -> tuple[float, float, float]:
    """Best parameters and tokens and their loss; infinite compute takes infinite ones."""
    return (*form.best(compute), form.best_loss(compute)) if math.isfinite(compute) else (math.inf, math.inf, form.floor)


def by_form(asked: str, fitted: Fitted, compute: float, drawn: Sequence[float], reach: str) -> Answer:
    """`drawn`: computes of the draws."""
    sizes, tokens, losses = np.array([of_form(form, each) for form, each in zip(fitted.draws, drawn)]).reshape(-1, 3).T
    one = of_form(fitted.form, compute)
    if any(each != compute for each in drawn):  # the loss was asked for
        return Answer(asked, BY_FORM, Estimate(compute, np.array(drawn)), Estimate(one[0], sizes), Estimate(one[1], tokens),
                      Estimate(one[2]), reach)
    return Answer(asked, BY_FORM, Estimate(compute), Estimate(one[0], sizes), Estimate(one[1], tokens), Estimate(one[2], losses), reach)


def of_budget(compute: float, law: PowerLaw, fitted: Fitted, budgets: Sequence[Budget]) -> list[Answer]:
    asked, reach = f"budget {compute:.4g}".replace("e+", "e"), reach_of(compute, budgets)
    found = [by_laws(asked, law, compute, reach)]
    return [*found, by_form(asked, fitted, compute, [compute] * len(fitted.draws), reach)] if fitted.form.is_law else found


def of_target(loss: float, law: PowerLaw, fitted: Fitted, budgets: Sequence[Budget]) -> list[Answer]:
    """An error if no compute reaches that loss."""
    form = fitted.form
    if not form.is_law:
        raise UserError(f"--target-loss {loss:g}: the runs are not fitted by L = E + A / N^a + B / D^b with exponents above 0, so no loss "
                        "can be predicted; give runs of more sizes and budgets")
    if loss <= form.floor:
        floors = np.array([each.floor for each in fitted.draws])
        raise UserError(f"--target-loss {loss:g} is not above the fitted floor E = {form.floor:.4f} ({LEVEL:.0%}: {range_text(floors)}), which "
                        "no size and no number of tokens passes; give a larger one")
    compute = form.compute_for(loss)
    reach = reach_of(compute, budgets)
    asked = f"loss {loss:g}"
    return [by_form(asked, fitted, compute, [each.compute_for(loss) for each in fitted.draws], reach),
            by_laws(asked, law, compute, reach)]


@dataclass(frozen=True)
class HeldOut:
    """The largest budget as the others predict it, beside what ran; NaN: no minimum there."""

    curve: Curve
    parameters: float
    loss: float
    errors: list[float]  # of the losses of its runs, by L(N, D), as shares

    @property
    def measured(self) -> tuple[float, float]:
        return self.curve.parameters, self.curve.loss


def hold_out(curves: Sequence[Curve], random: np.random.Generator) -> HeldOut | None:
    """None if the other budgets are too few for a law, or have no form."""
    others, last = curves[:-1], curves[-1]
    if len(usable(others)) < 2:
        return None
    experiments = [each for curve in others for each in curve.budget.experiments]
    form = fit_form(experiments, 0, random).form
    if not form.is_law:
        return None
    law, compute = law_of_minima(others, 0, random), last.budget.compute
    errors = [form.loss(each.parameters, each.tokens) / each.loss - 1.0 for each in last.budget.experiments]
    return HeldOut(last, law.at(compute), form.best_loss(compute), errors)
