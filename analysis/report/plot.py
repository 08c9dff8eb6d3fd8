# SPDX-License-Identifier: Apache-2.0
"""The plot of a group of `report`: rate, speed-up, efficiency, and where the time of a step went."""
from __future__ import annotations

import math
from typing import Sequence

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.report.tables import title
from analysis.scaling import STACK, Case, Group
from analysis.step_time import COLOURS, HATCHES
from analysis.style import LOOK, Axes, Figure, add_head, plt
from analysis.subject import Machine, subject_text
from analysis.ticks import round_log_axis, set_ticks, widened

SKEW_COLOUR, SKEW_HATCH = "#FFFFFF", "xx"
MANY_BARS = 7
LINE, IDEAL = "#0072B2", "#767676"
LONGEST_LABEL = 18  # of a layout
LONGEST_RUN = 26
MOST_RANK_LABELS = 8
SMALLEST_PART = 1e-3  # of a step, to be named
SIDE_INCHES = 1.6  # of the legends


def colour_of(part: str) -> str:
    return COLOURS.get(part, SKEW_COLOUR)


def hatch_of(part: str) -> str | None:
    return SKEW_HATCH if part == "skew" else HATCHES.get(part)


def edge_of(part: str) -> str:
    return "#888888" if hatch_of(part) else "white"


def shown_counts(counts: Sequence[int]) -> list[int]:
    """Rank counts whose labels fit beside each other, the largest always."""
    apart = math.log2(counts[-1] / counts[0]) / MOST_RANK_LABELS
    kept: list[int] = []
    for count in reversed(counts):
        if not kept or math.log2(kept[-1] / count) >= apart:
            kept.append(count)
    return kept[::-1]


def rank_axis(axes: Axes, group: Group, values: dict[int, str] | None = None, what: str = "") -> None:
    """`values`, by rank count, are written below the counts, away from lines; `what` they are."""
    counts = sorted({case.ranks for case in group.cases})
    shown = shown_counts(counts)
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)
    set_ticks(axes.xaxis, shown, [f"{count}\n{values[count]}" if values else str(count) for count in shown])
    whose = "" if LOOK.widths else " of the fastest layout"  # captions of narrow figures say it
    axes.set_xlabel(f"ranks (log)\nsecond line: {what}{whose}" if values else "ranks (log)")


def draw_points(axes: Axes, group: Group, values: dict[int, float]) -> None:
    """The fastest layout of each rank count on a line, the others as hollow marks beside it."""
    best = group.best
    axes.plot([case.ranks for case in best], [values[id(case)] for case in best], color=LINE,
              marker="o", markersize=6, zorder=3)
    others = [case for case in group.cases if not any(case is one for one in best)]
    axes.plot([case.ranks for case in others], [values[id(case)] for case in others],
              linestyle="none", marker="s", markersize=6, markerfacecolor="white",
              markeredgecolor=LINE, zorder=3)


def draw_ideal(axes: Axes, group: Group, one_rank: float) -> tuple[float, float]:
    """The line on which so much per rank would lie; returns its ends."""
    counts = [min(case.ranks for case in group.cases), max(case.ranks for case in group.cases)]
    ends = [one_rank * count for count in counts]
    axes.plot(counts, ends, color=IDEAL, linestyle="--")
    return ends[0], ends[1]


def draw_rate(axes: Axes, group: Group) -> None:
    draw_points(axes, group, {id(case): case.tokens_per_second for case in group.cases})
    slow, fast = ([case.tokens_per_step / case.quartiles[end] for case in group.cases]
                  for end in (1, 0))
    axes.vlines([case.ranks for case in group.cases], slow, fast, color=LINE, linewidth=1.2)
    ends = draw_ideal(axes, group, group.base.tokens_per_second / group.base.ranks)
    rank_axis(axes, group)
    round_log_axis(axes, "y", *widened(min(*ends, *slow), max(*ends, *fast)))
    axes.set_title("tokens per second (log)", loc="left")


def draw_speed_up(axes: Axes, group: Group) -> None:
    values = {id(case): group.speed_up(case) for case in group.cases}
    draw_points(axes, group, values)
    ends = draw_ideal(axes, group, 1.0 / group.base.ranks)
    rank_axis(axes, group, {case.ranks: f"{values[id(case)]:.2f}" for case in group.best}, "speed-up")
    low, high = widened(min(*ends, *values.values()), max(*ends, *values.values()))
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    ticks = [2.0 ** power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    set_ticks(axes.yaxis, ticks, [f"{tick:g}" for tick in ticks])
    axes.set_title(f"speed-up over {count_text(group.base.ranks)} (log)", loc="left")


def draw_efficiency(axes: Axes, group: Group) -> None:
    values = {id(case): 100.0 * group.efficiency(case) for case in group.cases}
    axes.axhline(100.0, color=IDEAL, linestyle="--")
    draw_points(axes, group, values)
    rank_axis(axes, group, {case.ranks: f"{values[id(case)]:.0f} %" for case in group.best}, "efficiency")
    axes.set_ylim(0.0, 1.15 * max(100.0, *values.values()))
    axes.set_title(f"efficiency (%), base {group.base.ranks_text}", loc="left")


def count_text(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def short(text: str) -> str:
    return text if len(text) <= LONGEST_RUN else text[:LONGEST_RUN - 3] + "..."


def bar_name(group: Group, case: Case) -> str:
    """The layout; the run too if that is not enough."""
    name = case.shape.replace(" x ", " x\n") if len(case.shape) > LONGEST_LABEL else case.shape
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
    for position, top in zip(x, base if not shares else []):
        axes.annotate(f"{top:,.0f}" if top >= 1000 else f"{top:.3g}", (position, top), textcoords="offset points", xytext=(0, 3),
                      ha="center", fontsize=LOOK.points(9))
    axes.set_ylim(0.0, 100.0 if shares else 1.12 * float(base.max()))
    many = len(group.cases) >= MANY_BARS
    axes.set_xticks(x, [bar_name(group, case) for case in group.cases],
                    rotation=60 if many else 0, ha="right" if many else "center", fontsize=LOOK.points(9))
    axes.set_xlim(-0.7, max(len(group.cases), 3) - 0.3)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("layout")
    axes.set_title("share of a median step (%)" if shares else "time of a median step (ms)",
                   loc="left")


def line_handles(group: Group) -> list[Line2D]:
    handles = [Line2D([], [], color=LINE, marker="o", label="fastest layout")]
    if len(group.best) < len(group.cases):
        handles.append(Line2D([], [], linestyle="none", marker="s", markerfacecolor="white",
                              color=LINE, label="other layouts"))
    return handles + [Line2D([], [], linestyle="none", marker="|", markersize=11, color=LINE, label="quartiles"),
                      Line2D([], [], color=IDEAL, linestyle="--", label="ideal")]


def part_handles(group: Group) -> list[Patch]:
    """Parts that can be seen in some bar, from the top."""
    seen = [part for part in STACK
            if any(case.parts[part] > SMALLEST_PART * case.step_seconds for case in group.cases)]
    return [Patch(facecolor=colour_of(part), hatch=hatch_of(part), edgecolor="#888888", label=part)
            for part in reversed(seen)]


def subject(group: Group) -> str:
    machines = [Machine(case.ranks, tuple(case.devices), tuple(case.hosts)) for case in group.cases]
    return subject_text([case.deck for case in group.cases], machines, ranks=False)


def draw_scaling(figure: Figure, group: Group) -> None:
    """Three panels of curves above two of bars."""
    grid = figure.add_gridspec(2, 6)
    for column, draw in enumerate((draw_rate, draw_speed_up, draw_efficiency)):
        draw(figure.add_subplot(grid[0, 2 * column:2 * column + 2]), group)
    draw_bars(figure.add_subplot(grid[1, :3]), group, shares=False)
    draw_bars(figure.add_subplot(grid[1, 3:]), group, shares=True)


def draw_layouts(figure: Figure, group: Group) -> None:
    """With one rank count there is no curve, only bars."""
    grid = figure.add_gridspec(1, 2)
    draw_bars(figure.add_subplot(grid[0, 0]), group, shares=False)
    draw_bars(figure.add_subplot(grid[0, 1]), group, shares=True)


def draw_group(group: Group) -> Figure:
    has_curves = group.kind != "single"
    width = min(20.0, max(12.5, 5.0 + 1.1 * len(group.cases)))
    figure = plt.figure(figsize=(width, 9.2 if has_curves else 5.2))
    (draw_scaling if has_curves else draw_layouts)(figure, group)
    top = add_head(figure, title(group), subject(group))
    right = 1.0 - LOOK.scale * SIDE_INCHES / figure.get_figwidth() if LOOK.widths else 1.0 - SIDE_INCHES / width
    figure.tight_layout(rect=(0.0, 0.0, right, top), h_pad=2.0, w_pad=1.5)
    legend = {"loc": "upper left", "labelspacing": 0.6, "borderaxespad": 0.0}
    if has_curves:
        figure.legend(handles=line_handles(group), bbox_to_anchor=(right, figure.axes[0].get_position().y1), **legend)
    figure.legend(handles=part_handles(group), bbox_to_anchor=(right, figure.axes[-1].get_position().y1), **legend)
    return figure
