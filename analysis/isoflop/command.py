# SPDX-License-Identifier: Apache-2.0
"""`isoflop`: the best size and tokens by compute, from runs at equal compute; a page, figures, CSV and JSON."""
from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from analysis.csv_files import csv_text
from analysis.errors import UserError
from analysis.isoflop.draw import draw_laws, draw_losses
from analysis.isoflop.experiments import make_budgets, read_source
from analysis.isoflop.minimum import curve_of
from analysis.isoflop.noise import LEVEL, interval
from analysis.isoflop.page import (
    FORM_NAMES, Fit, answers_section, document, form_sentences, form_sheet, held_out_section, laws_sentences, laws_sheet,
    lowest_law, minima_sentences, minima_sheet,
)
from analysis.isoflop.parametric import fit_form
from analysis.isoflop.power import PowerLaw, law_of_minima
from analysis.isoflop.questions import Answer, Estimate, HeldOut, Rate, hold_out, of_budget, of_target, read_rate
from analysis.report.document import Drawing, Section, html_text
from analysis.runs import FloatArray
from analysis.study.record import is_study_folder
from analysis.style import save
from analysis.subject import subject_of_runs
from analysis.tables import output_folder, path_lines, sanitized, text_table, write_report

SEED = 1  # equal runs give equal intervals
DRAWS = 1000


@dataclass(frozen=True)
class Asked:
    """What the command line asks beside the fit."""

    budgets: Sequence[float] = ()
    losses: Sequence[float] = ()
    plan: Path | None = None
    flops_per_second: float | None = None
    without: Sequence[str] = ()
    draws: int = DRAWS


def fit_of(names: Sequence[str], asked: Asked) -> Fit:
    rate = read_rate(asked.plan, asked.flops_per_second)
    source = read_source(names, asked.without)
    budgets = make_budgets(source.experiments)
    curves = [curve_of(budget) for budget in budgets]
    random = np.random.default_rng(SEED)
    law = law_of_minima(curves, asked.draws, random)
    fitted = fit_form(source.experiments, asked.draws, random)
    answers = [answer for compute in asked.budgets for answer in of_budget(compute, law, fitted, budgets)]
    answers += [answer for loss in asked.losses for answer in of_target(loss, law, fitted, budgets)]
    return Fit(source, curves, law, fitted, hold_out(curves, random), answers, rate, asked.draws)


def ends(draws: FloatArray) -> list[float] | None:
    return list(interval(draws)) if len(draws) else None


def law_json(law: PowerLaw) -> dict[str, Any]:
    return {"scale": law.scale, "exponent": law.exponent, "exponent_interval": ends(law.draws[:, 1])}


def estimate_json(each: Estimate) -> dict[str, Any]:
    return {"value": each.value, "interval": ends(each.draws)}


def answer_json(each: Answer, rate: Rate | None) -> dict[str, Any]:
    found = {name: estimate_json(getattr(each, name)) for name in ("compute", "parameters", "tokens", "loss")}
    hours = {"device_hours": estimate_json(rate.hours(each.compute))} if rate else {}
    return {"asked": each.asked, "by": each.by, **found, **hours, "reach": each.reach}


def held_out_json(found: HeldOut) -> dict[str, Any]:
    size, loss = found.measured
    return {"compute": found.curve.budget.compute, "parameters_predicted": found.parameters, "parameters_measured": size,
            "loss_predicted": found.loss, "loss_measured": loss, "loss_errors_of_runs": found.errors}


def json_text(fit: Fit) -> str:
    form = fit.fitted.form
    drawn = np.array([each.exponents for each in fit.fitted.draws]).reshape(-1, 2)
    content = {
        "format": 1, "compute": "6 N D", "parameters": fit.source.count, "level": LEVEL, "draws": fit.draws,
        "budgets": [{"compute": curve.budget.compute, "runs": [each.name for each in curve.budget.experiments],
                     "lowest_run": asdict(curve.budget.lowest), "minimum": curve.state, "parameters": curve.parameters,
                     "tokens": curve.tokens, "loss": curve.loss} for curve in fit.curves],
        "minima": {"N": law_json(fit.law), "D": law_json(fit.law.of_tokens)},
        "lowest_runs": {letter: law_json(law) for letter, law in zip("ND", (lowest_law(fit.curves), lowest_law(fit.curves).of_tokens))},
        "form": {"is_law": form.is_law, "deviation_of_log_loss": fit.fitted.deviation, **{
            name: {"value": getattr(form, key), "interval": ends(np.array([getattr(each, key) for each in fit.fitted.draws]))}
            for name, key in FORM_NAMES.items()},
            "exponents": {letter: {"value": form.exponents[index], "interval": ends(drawn[:, index])}
                          for index, letter in enumerate("ND")} if form.is_law else None},
        "held_out": held_out_json(fit.held_out) if fit.held_out else None,
        "answers": [answer_json(each, fit.rate) for each in fit.answers],
    }
    return json.dumps(sanitized(content), indent=2, allow_nan=False) + "\n"


def runs_csv(fit: Fit) -> str:
    return csv_text([{"budget": curve.budget.compute, **asdict(each), "form_loss": fit.fitted.form.loss(each.parameters, each.tokens)}
                     for curve in fit.curves for each in curve.budget.experiments])


def budgets_csv(fit: Fit) -> str:
    def known(value: float) -> float | str:
        return "" if math.isnan(value) else value

    return csv_text([{"compute": curve.budget.compute, "runs": len(curve.budget.experiments), "minimum": curve.state,
                      "parameters": known(curve.parameters), "tokens": known(curve.tokens), "loss": known(curve.loss),
                      "lowest_run": curve.budget.lowest.name, "lowest_run_parameters": curve.budget.lowest.parameters,
                      "lowest_run_loss": curve.budget.lowest.loss} for curve in fit.curves])


def section_text(section: Section) -> str:
    """As it is printed."""
    tables = [f"{sheet.caption}\n\n{text_table(sheet.header, sheet.rows)}" for sheet in section.sheets]
    return "\n".join([*tables, *section.paragraphs, *section.points])


def printed(fit: Fit) -> str:
    sections = [Section("", points=minima_sentences(fit), sheets=[minima_sheet(fit)]),
                Section("", points=laws_sentences(fit), sheets=[laws_sheet(fit)]),
                Section("", points=form_sentences(fit), sheets=[form_sheet(fit.fitted)]),
                held_out_section(fit.held_out), *answers_section(fit)]
    return "\n\n".join(map(section_text, sections))


def default_output(names: Sequence[str]) -> Path:
    """Of one study its own report/."""
    if len(names) == 1 and not names[0].endswith(".json"):
        for folder in (Path(names[0]), Path("runs") / names[0]):
            if is_study_folder(folder):
                return folder / "report"
    raise UserError("where shall the report of these runs be written? give --output DIR")


def isoflop(names: Sequence[str], output: Path, asked: Asked = Asked()) -> str:
    """Writes isoflop.html, .json, runs and budgets as CSV and two figures; returns what to print."""
    fit = fit_of(names, asked)
    subject = "; ".join(text for text in (fit.source.about, subject_of_runs(fit.source.runs)) if text)
    pictures = {
        "isoflop_losses": draw_losses(fit.curves, subject),
        "isoflop_laws": draw_laws(fit.curves, fit.law, fit.fitted.form,
                                  [each.compute.value for each in fit.answers if math.isfinite(each.compute.value)], subject)}
    drawings = [Drawing(name, pictures[name], caption, f"{caption} The table below holds the same numbers.") for name, caption in (
        ("isoflop_losses", "Marks: runs. Lines: parabolas in log N."),
        ("isoflop_laws", "Stars: minima of parabolas. Points: lowest runs. Dashes: where nothing ran."))]
    folder = output_folder(output)
    texts = {"isoflop.html": html_text(document(fit, *drawings)), "isoflop.json": json_text(fit), "isoflop_runs.csv": runs_csv(fit),
             "isoflop_budgets.csv": budgets_csv(fit)}
    written = [write_report(folder / name, text) for name, text in texts.items()]
    for name, figure in pictures.items():
        written += save(figure, folder / name)
    return "\n".join([printed(fit), "", *path_lines(written)])


