# SPDX-License-Identifier: Apache-2.0
"""Tables and sentences of `isoflop`, made from the fit."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np

from analysis.isoflop.experiments import NEAR, Source
from analysis.isoflop.minimum import BEYOND, INSIDE, NONE, Curve
from analysis.isoflop.noise import LEVEL, interval
from analysis.isoflop.parametric import FREE, HUBER, Fitted
from analysis.isoflop.power import PowerLaw, power_law, usable
from analysis.isoflop.questions import Answer, Estimate, HeldOut, Rate
from analysis.isoflop.words import count_text, flops_text, hours_text, plain_text, range_text
from analysis.report.document import Document, Drawing, Section, Sheet
from analysis.runs import FINAL_LOSS
from analysis.tables import counted, number

PERCENT = f"{LEVEL:.0%}"
FORM_TEXT = "L = E + A / N^a + B / D^b"
STATES = {BEYOND: "has its lowest point beyond the sizes that ran", NONE: "opens downwards"}


@dataclass(frozen=True)
class Fit:
    """All that was found; `law` of the minima, `form` of all runs."""

    source: Source
    curves: list[Curve]
    law: PowerLaw
    fitted: Fitted
    held_out: HeldOut | None
    answers: list[Answer]
    rate: Rate | None
    draws: int


def minima_sheet(fit: Fit) -> Sheet:
    header = ["compute (FLOPs)", "runs", "N of the lowest run", "its loss", "N of the parabola's minimum", "D there", "D / N", "loss there",
              "minimum"]
    rows = [[flops_text(curve.budget.compute), str(len(curve.budget.experiments)), count_text(curve.budget.lowest.parameters),
             number(curve.budget.lowest.loss), count_text(curve.parameters), count_text(curve.tokens),
             number(curve.tokens / curve.parameters, 1), number(curve.loss), curve.state] for curve in fit.curves]
    return Sheet("The best size at each budget: the lowest run, and the minimum of a parabola in log N", header, rows)


def minima_sentences(fit: Fit) -> list[str]:
    out = []
    for curve in fit.curves:
        if curve.state != INSIDE:
            out.append(f"At {flops_text(curve.budget.compute)} FLOPs the parabola {STATES[curve.state]}: this budget is in no power law of "
                       f"minima. Models on the {side_of(curve)} side of {count_text(curve.budget.lowest.parameters)} parameters would show its "
                       "minimum.")
    found = usable(fit.curves)
    ratios = [curve.tokens / curve.parameters for curve in found]
    out.append(f"At the minima of {counted(len(found), 'budget')} the models saw {number(min(ratios), 1)} to {number(max(ratios), 1)} tokens "
               f"for each parameter (N: {fit.source.count}).")
    return out


def side_of(curve: Curve) -> str:
    sizes = curve.budget.sizes
    return "lower" if curve.budget.lowest.parameters - sizes[0] <= sizes[-1] - curve.budget.lowest.parameters else "upper"


def lowest_law(curves: Sequence[Curve]) -> PowerLaw:
    return power_law([curve.budget.compute for curve in curves], [curve.budget.lowest.parameters for curve in curves])


def laws_sheet(fit: Fit) -> Sheet:
    rows = []
    for what, law in (("minima of parabolas", fit.law), ("lowest runs", lowest_law(fit.curves))):
        for letter, each in (("N", law), ("D", law.of_tokens)):
            rows.append([f"{letter} = k C^p, {what}", plain_text(each.scale), number(each.exponent), range_text(each.draws[:, 1])])
    if fit.fitted.form.is_law:
        drawn = np.array([form.exponents for form in fit.fitted.draws]).reshape(-1, 2)
        form = fit.fitted.form
        for index, letter in enumerate("ND"):
            scale = form.best(1.0)[index]
            rows.append([f"{letter} = k C^p, {FORM_TEXT}", plain_text(scale), number(form.exponents[index]), range_text(drawn[:, index])])
    return Sheet("Power laws of the best parameters N and tokens D", ["law", "k", "p", f"p, {PERCENT} interval"], rows)


def laws_sentences(fit: Fit) -> list[str]:
    out = [f"With ten times the compute the best model is {number(10 ** fit.law.exponent, 2)} times as large and sees "
           f"{number(10 ** fit.law.of_tokens.exponent, 2)} times the tokens (minima of parabolas at {counted(len(usable(fit.curves)), 'budget')}"
           f"{f'; p of N {PERCENT}: {range_text(fit.law.draws[:, 1])}' if len(fit.law.draws) else ''})."]
    if len(fit.law.draws) and not 0.0 < interval(fit.law.draws[:, 1])[0] < interval(fit.law.draws[:, 1])[1] < 1.0:
        out.append("That interval reaches beyond 0 to 1: these runs do not show that both the best size and the best tokens grow with compute.")
    if not len(fit.law.draws):
        out.append("The power law of the minima has no interval: " + (
            "each budget has as many runs as a parabola has coefficients, so that nothing shows their spread." if
            sum(curve.free for curve in usable(fit.curves)) < 1 else
            f"with the spread of these runs, more than 1 % of {fit.draws} draws have a budget without a minimum." if fit.draws else
            "none was drawn (--draws 0)."))
    return out


FORM_NAMES = {"E": "floor", "A": "parameter_scale", "B": "token_scale", "a": "parameter_exponent", "b": "token_exponent"}


def form_sheet(fitted: Fitted) -> Sheet:
    def cells(field: str) -> list[str]:
        return [plain_text(getattr(fitted.form, field)), range_text(np.array([getattr(form, field) for form in fitted.draws]))]

    return Sheet(f"{FORM_TEXT}, losses in nats", ["parameter", "value", f"{PERCENT} interval"],
                 [[name, *cells(field)] for name, field in FORM_NAMES.items()])


def form_sentences(fit: Fit) -> list[str]:
    fitted = fit.fitted
    runs = len(fit.source.experiments)
    out = [f"{FORM_TEXT} differs from the losses of {counted(runs, 'run')} by {number(100 * fitted.deviation, 2)} % (root mean square)."]
    if not fitted.form.is_law:
        return [*out, "A term or an exponent of it is not above 0: more parameters or more tokens would not lower the loss, so no size and "
                      "no loss is predicted from it."]
    if runs <= FREE:
        out.append(f"{counted(runs, 'run')} are no more than its {FREE} parameters, so that nothing tests it and no interval is drawn.")
    elif fitted.share < 1.0 and fit.draws:
        out.append(f"{number(100 * (1 - fitted.share), 1)} % of {fit.draws} draws gave no law; they are left out of the intervals.")
    return out


def error_text(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %" if not math.isnan(measured) else "-"


def held_out_section(found: HeldOut | None) -> Section:
    title = "The largest budget, predicted from the others"
    if found is None:
        return Section(title, ["It cannot be held out: the other budgets have fewer than two minima between their sizes, or no "
                               f"{FORM_TEXT} with exponents above 0. Three budgets with minima are the fewest."])
    size, loss = found.measured
    worst = max(found.errors, key=abs)
    mean = sum(map(abs, found.errors)) / len(found.errors)
    rows = [["best parameters N, by the power law", count_text(found.parameters), count_text(size), error_text(found.parameters, size)],
            ["lowest loss (nats), by L(N, D)", number(found.loss), number(loss), error_text(found.loss, loss)]]
    said = [f"L(N, D) of the smaller budgets misses the losses of the {counted(len(found.errors), 'run')} at "
            f"{flops_text(found.curve.budget.compute)} FLOPs by {number(100 * mean, 2)} % in the mean and {number(100 * abs(worst), 2)} % at most."]
    return Section(title, points=said, sheets=[Sheet(f"Budget {flops_text(found.curve.budget.compute)} FLOPs", [
        "quantity", "predicted", "measured (parabola)", "error"], rows)])


def estimate_text(each: Estimate, text: Callable[[float], str]) -> str:
    return f"{text(each.value)} ({range_text(each.draws, text)})" if len(each.draws) else text(each.value)


def answers_sheet(answers: Sequence[Answer], rate: Rate | None) -> Sheet:
    header = ["asked", "by", "compute (FLOPs)", "parameters N", "tokens D", "loss (nats)", *(["device hours"] if rate else []), "reach"]
    rows = []
    for each in answers:
        hours = [estimate_text(rate.hours(each.compute), hours_text)] if rate else []
        rows.append([each.asked, each.by, estimate_text(each.compute, flops_text), estimate_text(each.parameters, count_text),
                     estimate_text(each.tokens, count_text), estimate_text(each.loss, number), *hours, each.reach])
    return Sheet(f"Answers; in brackets {PERCENT} intervals of the fit", header, rows)


def answers_section(fit: Fit) -> list[Section]:
    if not fit.answers:
        return []
    said = [f"Device hours are compute by {fit.rate.about}."] if fit.rate else []
    if any(each.reach.startswith("EXTRAPOLATED") for each in fit.answers):
        said.append("An extrapolated answer rests on the law alone: no run there tests it, and its interval holds only what the spread of the "
                    "runs makes uncertain.")
    return [Section("Answers", points=said, sheets=[answers_sheet(fit.answers, fit.rate)])]


def runs_sheet(fit: Fit) -> Sheet:
    form = fit.fitted.form
    rows = [[each.name, flops_text(curve.budget.compute), count_text(each.parameters), count_text(each.tokens), flops_text(each.compute),
             number(each.loss), number(100 * (form.loss(each.parameters, each.tokens) / each.loss - 1), 2)]
            for curve in fit.curves for each in curve.budget.experiments]
    return Sheet("Runs", ["run", "budget", "N", "D", "6 N D", "final loss", "L(N, D) / loss - 1 (%)"], rows)


def method(fit: Fit) -> list[str]:
    return [
        f"C = 6 N D is the compute of a run, with D its tokens and N its {fit.source.count}. Runs whose compute differs by less than "
        f"{100 * (NEAR - 1):.0f} % are of one budget.",
        "Minimum: a parabola in log N, by least squares over all runs of a budget (Hoffmann et al. 2022, Training Compute-Optimal Large "
        "Language Models, approach 2). Power laws: least squares in logarithms over the budgets whose minimum lies between their sizes; D = C / "
        "(6 N), so both exponents add up to one.",
        f"{FORM_TEXT}: the sum over all runs of Huber's loss of log L, delta {HUBER:g}, by L-BFGS from a grid of starts (approach 3 there). Its best "
        "size is N = G (C / 6)^(b / (a + b)), G = (a A / (b B))^(1 / (a + b)).",
        f"Intervals are of {fit.draws} draws: each draws the losses anew around the fit, with the spread of the runs and Student's factor, and "
        "fits them. That of the power laws is wider by as much as the budgets lie farther from the law than this spread explains. Errors that "
        "all runs share, such as a learning rate that suits one size better, are in no interval.",
        *([FINAL_LOSS] if fit.source.runs else [])]


def document(fit: Fit, losses: Drawing, laws: Drawing) -> Document:
    return Document("Scaling laws at equal compute", f"{fit.source.about}, {counted(len(fit.curves), 'budget')} from "
                    f"{flops_text(fit.curves[0].budget.compute)} to {flops_text(fit.curves[-1].budget.compute)} FLOPs.", [
        *answers_section(fit),
        Section("Best size at each budget", points=minima_sentences(fit), drawings=[losses], sheets=[minima_sheet(fit)]),
        Section("Power laws", points=laws_sentences(fit), drawings=[laws], sheets=[laws_sheet(fit)]),
        Section("Loss by parameters and tokens", points=form_sentences(fit), sheets=[form_sheet(fit.fitted)]),
        held_out_section(fit.held_out), Section("Runs", sheets=[runs_sheet(fit)]), Section("How it is measured", method(fit))])


