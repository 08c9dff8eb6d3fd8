# SPDX-License-Identifier: Apache-2.0
"""The plot of a group of `report`: rate, efficiency, and where the time of a step went."""
from __future__ import annotations

import io
import re

import numpy as np
from matplotlib.patches import Patch

from analysis.report_tables import title, work_text
from analysis.scaling import STACK, Case, Group
from analysis.step_time import COLOURS, HATCHES
from analysis.style import Axes, Figure, plt

SKEW_COLOUR, SKEW_HATCH = "#FFFFFF", "...."
MANY_BARS = 7
LINE, IDEAL = "#0072B2", "#767676"
LONGEST_LABEL = 18


def colour_of(part: str) -> str:
    return COLOURS.get(part, SKEW_COLOUR)


def hatch_of(part: str) -> str | None:
    return SKEW_HATCH if part == "skew" else HATCHES.get(part)


def edge_of(part: str) -> str:
    return "#888888" if hatch_of(part) else "white"


def rank_axis(axes: Axes, group: Group) -> None:
    counts = sorted({case.ranks for case in group.cases})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    axes.set_xlabel("ranks")


def draw_points(axes: Axes, group: Group, values: dict[int, float]) -> None:
    """The fastest layout of each rank count on a line, the others as hollow marks beside it."""
    best = group.best
    axes.plot([case.ranks for case in best], [values[id(case)] for case in best], color=LINE,
              marker="o", markersize=6, label="fastest layout", zorder=3)
    others = [case for case in group.cases if not any(case is one for one in best)]
    if others:
        axes.plot([case.ranks for case in others], [values[id(case)] for case in others],
                  linestyle="none", marker="s", markersize=6, markerfacecolor="white",
                  markeredgecolor=LINE, label="other layouts", zorder=3)


def draw_rate(axes: Axes, group: Group) -> None:
    draw_points(axes, group, {id(case): case.tokens_per_second for case in group.cases})
    slow, fast = ([case.tokens_per_step / case.quartiles[end] for case in group.cases]
                  for end in (1, 0))
    axes.vlines([case.ranks for case in group.cases], slow, fast, color=LINE, linewidth=1.2)
    axes.plot([], [], linestyle="none", marker="|", markersize=11, color=LINE, label="quartiles")
    counts = np.array(sorted({case.ranks for case in group.cases}), dtype=float)
    per_rank = group.base.tokens_per_second / group.base.ranks
    axes.plot(counts, per_rank * counts, color=IDEAL, linestyle="--", label="ideal")
    rank_axis(axes, group)
    if counts.size > 1:
        axes.set_yscale("log", base=2)
    top = max(1.0, *(group.speed_up(case) for case in group.cases))
    powers = range(max(int(np.log2(top * group.base.ranks)), int(np.log2(counts[-1]))) + 1)
    ticks = [per_rank * 2.0 ** power for power in powers if 2.0 ** power >= counts[0] / 2.0]
    axes.set_yticks(ticks, [f"{tick:,.0f}" if tick >= 100 else f"{tick:,.3g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_title("tokens per second", loc="left")
    axes.legend(loc="upper left")


def draw_efficiency(axes: Axes, group: Group) -> None:
    values = {id(case): 100.0 * group.efficiency(case) for case in group.cases}
    axes.axhline(100.0, color=IDEAL, linestyle="--")
    draw_points(axes, group, values)
    for case in group.best:
        axes.annotate(f"{values[id(case)]:.0f}", (case.ranks, values[id(case)]), fontsize=9,
                      textcoords="offset points", xytext=(0, 7), ha="center")
    rank_axis(axes, group)
    axes.set_ylim(0.0, 1.15 * max(100.0, *values.values()))
    axes.set_title(f"efficiency (%), base {group.base.ranks} ({group.base.shape})", loc="left")


def short(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else text[:LONGEST_LABEL - 3] + "..."


def bar_name(group: Group, case: Case) -> str:
    """Ranks and layout; the run too where that is not enough."""
    name = f"{case.ranks}: {case.shape}"
    alike = [other for other in group.cases if other.shape == case.shape]
    return f"{name}\n{short(case.layout.run.label)}" if len(alike) > 1 else name


def draw_bars(axes: Axes, group: Group, shares: bool) -> None:
    """Bars of all parts: their tops are the step's time, or 100 %."""
    x = np.arange(len(group.cases))
    scale = np.array([100.0 / case.step_seconds if shares else 1e3 for case in group.cases])
    base = np.zeros(len(group.cases))
    for part in STACK:
        height = scale * np.array([case.parts[part] for case in group.cases])
        axes.bar(x, height, 0.7, bottom=base, color=colour_of(part), hatch=hatch_of(part),
                 edgecolor=edge_of(part), linewidth=0.4)
        base += height
    for place, top in zip(x, base if not shares else []):
        axes.annotate(f"{top:,.4g}", (place, top), textcoords="offset points", xytext=(0, 3),
                      ha="center", fontsize=9)
    axes.set_ylim(0.0, 100.0 if shares else 1.12 * float(base.max()))
    many = len(group.cases) >= MANY_BARS
    axes.set_xticks(x, [bar_name(group, case) for case in group.cases],
                    rotation=60 if many else 0, ha="right" if many else "center", fontsize=9)
    axes.set_xlim(-0.7, max(len(group.cases), 3) - 0.3)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("ranks: data x pipeline x tensor")
    axes.set_title("share of a median step (%)" if shares else "time of a median step (ms)",
                   loc="left")


def draw_group(number: int, group: Group) -> tuple[Figure, str]:
    """The figure, and the same as inline SVG."""
    width = min(20.0, max(11.5, 5.0 + 1.1 * len(group.cases)))
    figure, panels = plt.subplots(2, 2, figsize=(width, 9.0))
    draw_rate(panels[0, 0], group)
    draw_efficiency(panels[0, 1], group)
    draw_bars(panels[1, 0], group, shares=False)
    draw_bars(panels[1, 1], group, shares=True)
    figure.suptitle(f"{title(number, group)} ({work_text(group)})", x=0.01, ha="left", fontsize=12)
    figure.tight_layout(rect=(0.0, 0.0, 1.0 - 1.6 / width, 0.98), h_pad=2.0, w_pad=2.0)
    patches = [Patch(facecolor=colour_of(part), hatch=hatch_of(part), edgecolor="#888888",
                     label=part) for part in STACK]
    figure.legend(handles=patches[::-1], loc="lower right", labelspacing=0.6,
                  bbox_to_anchor=(0.995, 0.08))
    label = (f"Rate, efficiency and parts of a step of group {number}; the tables below hold the "
             "same numbers")
    return figure, inline_svg(figure, f"group{number}", label)
