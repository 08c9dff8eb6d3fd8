# SPDX-License-Identifier: Apache-2.0
"""The plots of a study: lines, or bars beside each other, as the study describes them."""
from __future__ import annotations

import math
from collections import Counter
from typing import Sequence

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from analysis.json_files import LARGEST
from analysis.study.columns import CHANGE, Column, change_words
from analysis.study.record import DONE
from analysis.study.rows import Result, Row
from analysis.study.spec import Axis, Plot
from analysis.study.tabulate import axis_title, columns_of
from analysis.style import LOOK, MM_PER_INCH, RUN_COLOURS, Axes, Figure, add_head, add_legend, look_of_run, plt
from analysis.ticks import round_log_axis, set_ticks, short_number, widened

PANEL_INCHES = (5.0, 3.7)
NARROW_INCHES = 3.4  # of a panel, if there are more than three beside each other
LONG_LABEL = 10
GONE_HEIGHT = 0.96  # of a panel, where points without a value are marked
MOST_TEXTS = 16  # bars of a panel that carry their value
TEXT_SIZES = (5.5, 8.0)  # of these values, by the room of a bar
TEXT_WIDTH = 0.54  # of a character, as a share of its size
FAR = 0.5  # a least value above this share of the largest: lines need no zero


def numbers_of(labels: Sequence[str]) -> list[float] | None:
    """The labels as numbers above 0, if all of them are."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return None
    return numbers if all(0 < each < LARGEST for each in numbers) else None


def series_of(result: Result, plot: Plot, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By what is left of the axes that have several values; one without a name if nothing is."""
    left = [axis.name for axis in result.axes if len(axis.labels) > 1
            and axis.name not in (plot.x, plot.panels) and axis.name not in plot.where]
    found: dict[str, list[Row]] = {}
    common = Counter(label for axis in result.axes for label in axis.labels)  # fp32 can be of two axes
    for row in rows:
        words = [f"{axis_title(name)} {row.labels[name]}" if numbers_of([row.labels[name]])
                 or common[row.labels[name]] > 1 else row.labels[name]
                 for name in left if name in row.labels]
        found.setdefault(", ".join(words), []).append(row)
    order = {axis.name: axis.labels for axis in result.axes}
    places = {name: [order[axis].index(rows[0].labels[axis]) for axis in left if axis in rows[0].labels]
              for name, rows in found.items()}
    return {name: found[name] for name in sorted(found, key=places.__getitem__)}


def by_label(rows: Sequence[Row], axis: str) -> dict[str, Row]:
    return {row.labels[axis]: row for row in rows if axis in row.labels}


def mark_gone(axes: Axes, x: float, index: int) -> None:
    """A cross at the upper edge: there is a result, and no number."""
    axes.plot([x], [GONE_HEIGHT - 0.05 * (index % 5)], linestyle="none", marker="x", markersize=8,
              markeredgewidth=2.0, color=look_of_run(index)[0], transform=axes.get_xaxis_transform(), zorder=4,
              clip_on=False)


def draw_lines(axes: Axes, result: Result, plot: Plot, each: Column, series: dict[str, list[Row]]) -> None:
    axis = next(axis for axis in result.axes if axis.name == plot.x)
    numbers = numbers_of(axis.labels)
    places = dict(zip(axis.labels, numbers or range(len(axis.labels))))
    name, scale = each.name, each.scale
    heights: list[float] = []
    for index, rows in enumerate(series.values()):
        colour, dashes, marker = look_of_run(index)
        found = by_label(rows, plot.x)
        drawn = [(places[label], scale * result.value(row, name), row) for label, row in found.items()
                 if not math.isnan(result.value(row, name))]
        axes.plot([x for x, _, _ in drawn], [y for _, y, _ in drawn], color=colour, linestyle=dashes, marker=marker,
                  markersize=6)
        for x, _, row in drawn:
            if name in row.spread:
                axes.vlines(x, scale * row.spread[name][0], scale * row.spread[name][1], color=colour, linewidth=1.2)
        heights += [y for _, y, _ in drawn]
        for label, row in found.items():
            if row.state != DONE and math.isnan(result.value(row, name)):
                mark_gone(axes, places[label], index)
    set_x(axes, axis, numbers, "x" in plot.log)
    set_y(axes, heights, "y" in plot.log, zero=name.endswith("_bytes"))  # memory always from zero


def set_x(axes: Axes, axis: Axis, numbers: list[float] | None, log: bool) -> None:
    if numbers and log:
        axes.set_xscale("log", base=2)
        axes.set_xlim(*widened(min(numbers), max(numbers), 0.08))
    places = list(numbers or range(len(axis.labels)))
    set_ticks(axes.xaxis, places, [short_number(each) if numbers else label
                                   for each, label in zip(places, axis.labels)])
    turn_labels(axes, axis.labels if not numbers else [])
    axes.set_xlabel(f"{axis_title(axis.name)}{' (log)' if numbers and log else ''}")


def turn_labels(axes: Axes, labels: Sequence[str]) -> None:
    if any(len(label) > LONG_LABEL for label in labels):
        for text in axes.get_xticklabels():
            text.set(rotation=35, ha="right", rotation_mode="anchor")


def set_y(axes: Axes, heights: Sequence[float], log: bool, zero: bool = True) -> None:
    """Room above for marks; from zero unless there are values below or the axis is logarithmic, or without
    `zero` if all values are far from it."""
    if not heights:
        axes.set_yticks([])
        return
    low, high = min(heights), max(heights)
    if log and low > 0:
        round_log_axis(axes, "y", *widened(low, high, 0.1))
    elif low < 0:
        room = 0.15 * (max(high, 0.0) - low)
        axes.set_ylim(low - room, max(high, 0.0) + room)
    elif not zero and FAR * high < low < high:
        axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    else:
        axes.set_ylim(0.0, 1.15 * high or 1.0)
    if not (log and low > 0):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def bar_text(result: Result, plot: Plot, row: Row, each: Column, short: bool = False) -> str:
    """The value; with `change` also what it is against the base, unless it has to be `short`."""
    text = each.text(result.value(row, each.name))
    change = result.relative(row, f"{each.name}{CHANGE}") if plot.change and not short else math.nan
    base = result.base_of(row)
    reported = [] if math.isnan(change) or base is None or base is row else [
        change_words(each, base.value(each.name), row.value(each.name))]
    return "\n".join([text, *reported, *([] if row.state == DONE else [row.state])])


def figure_inches(axes: Axes) -> float:
    """The width that add_head() will give the figure."""
    figure = axes.get_figure()
    if LOOK.size is None and LOOK.widths is None:
        return float(figure.get_figwidth())
    return (LOOK.size[0] if LOOK.size else LOOK.widths[axes.get_gridspec().ncols > 1] if LOOK.widths else 0.0) / MM_PER_INCH


def text_size(axes: Axes, slots: float, texts: Sequence[str]) -> float:
    """At which these texts fit beside each other, each above one of so many bars that fill the panel."""
    inches = axes.get_position().width * figure_inches(axes) / slots
    longest = max((len(line) for text in texts for line in text.split("\n")), default=1)
    return min(72.0 * inches / (TEXT_WIDTH * longest), LOOK.points(TEXT_SIZES[1]))


def texts_of(axes: Axes, result: Result, plot: Plot, each: Column, series: dict[str, list[Row]]) -> tuple[bool, float]:
    """Whether the texts of all bars have to be short, and their size."""
    slots = (len(next(axis for axis in result.axes if axis.name == plot.x).labels) + 0.2) * len(series) / 0.8
    short = False
    for short in (False, True):
        size = text_size(axes, slots, [bar_text(result, plot, row, each, short) for rows in series.values() for row in rows])
        if size >= LOOK.points(TEXT_SIZES[0]):
            break
    return short, max(size, LOOK.points(TEXT_SIZES[0]))


def draw_bars(axes: Axes, result: Result, plot: Plot, each: Column, series: dict[str, list[Row]]) -> None:
    axis = next(axis for axis in result.axes if axis.name == plot.x)
    width = 0.8 / len(series)
    heights: list[float] = []
    texts = len(axis.labels) * len(series) <= MOST_TEXTS
    short, size = texts_of(axes, result, plot, each, series)
    for index, rows in enumerate(series.values()):
        for label, row in by_label(rows, plot.x).items():
            x = axis.labels.index(label) + (index - (len(series) - 1) / 2) * width
            value = each.scale * result.value(row, each.name)
            if math.isnan(value):
                if row.state != DONE:
                    mark_gone(axes, x, index)
                continue
            axes.bar(x, value, 0.92 * width, color=RUN_COLOURS[index % len(RUN_COLOURS)],
                     hatch="//" if index >= len(RUN_COLOURS) else None)
            heights.append(value)
            if texts:
                axes.annotate(bar_text(result, plot, row, each, short), (x, value), textcoords="offset points",
                              xytext=(0, 3 if value >= 0 else -3), ha="center", fontsize=size,
                              va="bottom" if value >= 0 else "top")
    set_ticks(axes.xaxis, list(range(len(axis.labels))), axis.labels)
    axes.set_xlim(-0.6, len(axis.labels) - 0.4)
    turn_labels(axes, axis.labels)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(axis_title(axis.name))
    set_y(axes, heights, "y" in plot.log)
    lines = max((bar_text(result, plot, row, each, short).count("\n") for rows in series.values() for row in rows), default=0)
    if lines and heights and "y" not in plot.log:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.08 * lines * (high - low))


def legend_of(result: Result, plot: Plot, series: dict[str, list[Row]],
              rows: Sequence[Row]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for index, name in enumerate(series):
        colour, dashes, marker = look_of_run(index)
        if len(series) > 1 and plot.kind == "bars":
            handles.append(Patch(facecolor=RUN_COLOURS[index % len(RUN_COLOURS)], label=name,
                                 hatch="//" if index >= len(RUN_COLOURS) else None))
        elif len(series) > 1:
            handles.append(Line2D([], [], color=colour, linestyle=dashes, marker=marker, label=name))
    states = dict.fromkeys(row.state for row in rows if row.state != DONE
                           and any(math.isnan(result.value(row, name)) for name in result.shown(plot.y)))
    if states:
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="x", markersize=8,
                              markeredgewidth=2.0, label=f"no value: {', '.join(states)}"))
    return handles


def draw_plot(result: Result, plot: Plot, subject: str) -> Figure:
    """A row of panels for each of `y`, a column for each value of `panels`."""
    rows = result.selected(plot.where)
    panel_axis = next((axis for axis in result.axes if axis.name == plot.panels), None)
    panels = [label for label in panel_axis.labels if any(row.labels.get(plot.panels) == label for row in rows)] \
        if panel_axis else [""]
    series = series_of(result, plot, rows)
    names = result.shown(plot.y)
    shape = (len(names), len(panels)) if panel_axis else (1, len(names))
    figure, grid = plt.subplots(*shape, squeeze=False, figsize=(
        max(7.0, (NARROW_INCHES if shape[1] > 3 else PANEL_INCHES[0]) * shape[1]), PANEL_INCHES[1] * shape[0] + 1.4))
    for number, (name, panel) in enumerate((name, panel) for name in names for panel in panels):
        axes = grid.flat[number]
        inside = {key: [row for row in members if not panel or row.labels.get(plot.panels) == panel]
                  for key, members in series.items()}
        each = columns_of(result, rows, [name])[0]
        (draw_bars if plot.kind == "bars" else draw_lines)(axes, result, plot, each, inside)
        axes.set_title(f"{each.title}{f', {axis_title(plot.panels)} {panel}' if panel else ''}"
                       f"{' (log)' if axes.get_yscale() == 'log' else ''}", loc="left")
    handles = legend_of(result, plot, series, rows)
    top = add_head(figure, plot.title, subject)
    figure.tight_layout(rect=(0.01, add_legend(figure, handles) if handles else 0.0, 1.0, top), h_pad=2.0, w_pad=2.0)
    return figure
