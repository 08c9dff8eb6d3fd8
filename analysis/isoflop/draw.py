# SPDX-License-Identifier: Apache-2.0
"""The figures of `isoflop`: losses by size with their parabolas, and the best size and tokens by compute."""
from __future__ import annotations

from typing import Callable, Sequence

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.isoflop.minimum import INSIDE, Curve
from analysis.isoflop.noise import LEVEL, interval
from analysis.isoflop.parametric import Form
from analysis.isoflop.power import PowerLaw, usable
from analysis.isoflop.words import flops_text
from analysis.style import Axes, Figure, add_head, add_legend, look_of_run, plt
from analysis.ticks import round_log_axis, widened

POINTS = 121  # of a line
GREY, LAW, FORM = "#555555", "#0072B2", "#D55E00"


def draw_curve(axes: Axes, curve: Curve, index: int) -> None:
    colour, _, marker = look_of_run(index)
    runs = curve.budget.experiments
    axes.plot([each.parameters for each in runs], [each.loss for each in runs], linestyle="none", marker=marker, markersize=6,
              color=colour, zorder=3)
    x = np.linspace(curve.x[0], curve.x[-1], POINTS)
    axes.plot(np.exp(x + curve.centre), [curve.at(each) for each in x], color=colour, linewidth=1.4)
    if curve.state == INSIDE:
        axes.plot(curve.parameters, curve.loss, marker="*", markersize=13, markerfacecolor="none", markeredgecolor=colour,
                  markeredgewidth=1.4, zorder=4)


def draw_losses(curves: Sequence[Curve], subject: str) -> Figure:
    figure, axes = plt.subplots(figsize=(8.0, 5.6))
    sizes = [size for curve in curves for size in curve.budget.sizes]
    round_log_axis(axes, "x", *widened(min(sizes), max(sizes)))
    handles = []
    for index, curve in enumerate(curves):
        draw_curve(axes, curve, index)
        colour, _, marker = look_of_run(index)
        handles.append(Line2D([], [], color=colour, marker=marker, label=f"{flops_text(curve.budget.compute)} FLOPs"))
    handles.append(Line2D([], [], linestyle="none", marker="*", markersize=12, markerfacecolor="none", markeredgecolor=GREY,
                          label="lowest point of a parabola between the sizes"))
    axes.set_xlabel("parameters N (log)")
    axes.set_ylabel("final loss (nats per token)")
    top = add_head(figure, "Loss by size at equal compute", subject)
    figure.tight_layout(rect=(0.0, add_legend(figure, handles), 1.0, top))
    return figure


def draw_law(axes: Axes, law: PowerLaw, computes: Sequence[float], ran: tuple[float, float]) -> None:
    """Dashed where no budget ran."""
    x = np.geomspace(computes[0], computes[-1], POINTS)
    if len(law.draws):
        low, high = np.array([interval(law.drawn_at(each)) for each in x]).T
        axes.fill_between(x, low, high, color=LAW, alpha=0.18, linewidth=0.0)
    inside = (x >= ran[0] / 1.001) & (x <= ran[1] * 1.001)
    y = np.array([law.at(each) for each in x])
    axes.plot(x, y, color=LAW, linestyle="--", linewidth=1.2)
    axes.plot(x[inside], y[inside], color=LAW, linewidth=1.8)


def draw_form(axes: Axes, best: Callable[[float], float], computes: Sequence[float]) -> None:
    x = np.geomspace(computes[0], computes[-1], POINTS)
    axes.plot(x, [best(each) for each in x], color=FORM, linestyle=":", linewidth=1.8)


def panel(axes: Axes, curves: Sequence[Curve], law: PowerLaw, ends: tuple[float, float], name: str) -> None:
    """`name`: parameters or tokens."""
    ran = curves[0].budget.compute, curves[-1].budget.compute
    draw_law(axes, law, ends, ran)
    axes.plot([curve.budget.compute for curve in usable(curves)], [getattr(curve, name) for curve in usable(curves)],
              linestyle="none", marker="*", markersize=12, markerfacecolor="none", markeredgecolor=LAW, markeredgewidth=1.4, zorder=4)
    axes.plot([curve.budget.compute for curve in curves], [getattr(curve.budget.lowest, name) for curve in curves],
              linestyle="none", marker="o", markersize=5, color=GREY, zorder=3)
    low, high = axes.dataLim.intervaly
    if ends[1] > 1.001 * ran[1]:
        axes.axvspan(ran[1], ends[1], color="#f1f1f1", zorder=0)
    round_log_axis(axes, "y", *widened(low, high))
    round_log_axis(axes, "x", *widened(*ends), units=False)
    axes.set_xlabel("compute C (FLOPs; log)")


def law_handles(law: PowerLaw, form: Form) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=LAW, linewidth=1.8, label="power law of the minima"),
        Line2D([], [], color=LAW, linestyle="--", linewidth=1.2, label="its continuation: EXTRAPOLATED, nothing ran (grey)")]
    if len(law.draws):
        handles.append(Patch(facecolor=LAW, alpha=0.18, label=f"{LEVEL:.0%} interval"))
    handles += [Line2D([], [], linestyle="none", marker="*", markersize=12, markerfacecolor="none", markeredgecolor=LAW,
                       label="minimum of a parabola"),
                Line2D([], [], linestyle="none", marker="o", markersize=5, color=GREY, label="lowest run")]
    if form.is_law:
        handles.append(Line2D([], [], color=FORM, linestyle=":", linewidth=1.8, label="L = E + A / N^a + B / D^b"))
    return handles


def draw_laws(curves: Sequence[Curve], law: PowerLaw, form: Form, asked: Sequence[float], subject: str) -> Figure:
    """From the least to the largest of budgets that ran and were asked for."""
    computes = [curve.budget.compute for curve in curves] + list(asked)
    ends = min(computes), max(computes)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 5.4))
    for axes, each, index, name in ((left, law, 0, "parameters"), (right, law.of_tokens, 1, "tokens")):
        if form.is_law:
            draw_form(axes, lambda compute, index=index: form.best(compute)[index], ends)  # type: ignore[misc]
        panel(axes, curves, each, ends, name)
        axes.set_title(f"best {name} {'N' if index == 0 else 'D'} (log)", loc="left")
    top = add_head(figure, f"Best size and tokens by compute: N ~ C^{law.exponent:.3f}, D ~ C^{law.of_tokens.exponent:.3f}", subject)
    figure.tight_layout(rect=(0.0, add_legend(figure, law_handles(law, form)), 1.0, top), w_pad=2.5)
    return figure
