# SPDX-License-Identifier: Apache-2.0
"""`learning`: loss, perplexity and token accuracy against steps and against time."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from analysis.runs import (
    FloatArray, Metrics, best_value, find_runs, first_value, last_value, read_metrics, typical_rate,
)
from analysis.style import Axes, look_of_run, plt, save
from analysis.tables import number, output_folder, text_table

MAX_VALIDATION_ROWS = 25


@dataclass(frozen=True)
class Panel:
    """What one panel draws; `prefix` is empty for training, `validation_` for validation."""

    label: str
    values: Callable[[Metrics, str], FloatArray]
    log: bool = False


PANELS = (
    Panel("loss (nats per token)", lambda metrics, prefix: metrics.column(f"{prefix}loss")),
    Panel("perplexity", lambda metrics, prefix: metrics.perplexity(prefix), log=True),
    Panel("token accuracy (%)",
          lambda metrics, prefix: 100.0 * metrics.column(f"{prefix}token_accuracy")),
)


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Centred mean over `window` places, narrower at the ends; NaN does not count."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    sums = np.convolve(np.where(known, values, 0.0), kernel, mode="full")
    counts = np.convolve(known.astype(float), kernel, mode="full")
    start = (window - 1) // 2
    places = slice(start, start + values.size)
    with np.errstate(invalid="ignore"):
        return np.where(known, sums[places] / np.maximum(counts[places], 1.0), math.nan)


def smoothing_window(steps: int) -> int:
    """An odd number of steps, about a fiftieth of the run."""
    return 2 * (steps // 100) + 1


def time_unit(seconds: float) -> tuple[float, str]:
    """How many seconds the axis' unit has, and its name."""
    if seconds > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds > 300 else (1.0, "seconds")


def draw_run(axes: Axes, x: FloatArray, metrics: Metrics, panel: Panel, index: int) -> None:
    colour, dashes, marker = look_of_run(index)
    training = panel.values(metrics, "")
    window = smoothing_window(training.size)
    if window > 1:
        axes.plot(x, training, color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(x, smooth(training, window), color=colour, linestyle=dashes, linewidth=1.6)
    validation = panel.values(metrics, "validation_")
    measured = ~np.isnan(validation)
    axes.plot(x[measured], validation[measured], linestyle="none", marker=marker, markersize=5,
              markerfacecolor=colour, markeredgecolor="white", markeredgewidth=0.8, zorder=3)


def readable_log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    plain = ScalarFormatter()
    plain.set_scientific(high >= 1e5)
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend_handles(all_metrics: Sequence[Metrics]) -> list[Line2D]:
    handles: list[Line2D] = []
    for index, metrics in enumerate(all_metrics):
        colour, dashes, marker = look_of_run(index)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, marker=marker, markersize=5,
                              linewidth=1.6, label=metrics.run.label))
    if any(smoothing_window(len(metrics.rows)) > 1 for metrics in all_metrics):
        handles += [
            Line2D([], [], color="#555555", linewidth=1.6, label="training, smoothed"),
            Line2D([], [], color="#555555", linewidth=0.7, alpha=0.5, label="training, each step"),
        ]
    else:
        handles.append(Line2D([], [], color="#555555", linewidth=1.6, label="training"))
    handles.append(Line2D([], [], color="#555555", linestyle="none", marker="o", markersize=5,
                          label="validation (marks)"))
    return handles


def draw(all_metrics: Sequence[Metrics], axis_values: Sequence[FloatArray], axis_label: str,
         path: Path) -> Path:
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13.0, 4.6))
    for axes, panel in zip(panels, PANELS):
        for index, (metrics, x) in enumerate(zip(all_metrics, axis_values)):
            draw_run(axes, x, metrics, panel, index)
        axes.set_xlabel(axis_label)
        axes.set_title(panel.label, loc="left")
        if panel.log:
            readable_log_axis(axes)
    handles = legend_handles(all_metrics)
    columns = min(len(handles), 6)
    rows = math.ceil(len(handles) / columns)
    figure.tight_layout(rect=(0.0, 0.02 + 0.05 * rows, 1.0, 1.0), w_pad=2.5)
    figure.legend(handles=handles, loc="lower center", ncol=columns)
    return save(figure, path)


def run_numbers(metrics: Metrics) -> dict[str, str]:
    """The table's lines for one run, in order."""
    loss, validation = metrics.column("loss"), metrics.column("validation_loss")
    tail = loss[-min(20, loss.size):]
    tail_mean = float(np.nanmean(tail)) if not np.isnan(tail).all() else math.nan
    accuracy = metrics.column("token_accuracy")
    validation_accuracy = metrics.column("validation_token_accuracy")
    return {
        "last step": str(metrics.rows[-1]["step"]),
        "training loss, first (nats)": number(first_value(loss)),
        "training loss, last": number(last_value(loss)),
        "training loss, mean of last 20 steps": number(tail_mean),
        "training loss, best": number(best_value(loss)),
        "training perplexity, last": number(last_value(metrics.perplexity()), 2),
        "training token accuracy, last (%)": number(100 * last_value(accuracy), 2),
        "validation loss, first (nats)": number(first_value(validation)),
        "validation loss, last": number(last_value(validation)),
        "validation loss, best": number(best_value(validation)),
        "validation perplexity, last": number(last_value(metrics.perplexity("validation_")), 2),
        "validation token accuracy, last (%)": number(100 * last_value(validation_accuracy), 2),
        "tokens": number(last_value(metrics.column("tokens")), 0),
        "tokens/s, median": number(typical_rate(metrics), 0),
        "wall time (s)": number(last_value(metrics.column("wall_seconds")), 1),
    }


def validation_table(all_metrics: Sequence[Metrics]) -> str:
    """Validation losses by step, at most MAX_VALIDATION_ROWS of them, the last always."""
    by_run = [{int(step): value for step, value in
               zip(metrics.steps, metrics.column("validation_loss")) if not math.isnan(value)}
              for metrics in all_metrics]
    steps = sorted(set().union(*by_run))
    if not steps:
        return "No validation was measured."
    stride = math.ceil(len(steps) / MAX_VALIDATION_ROWS)
    shown = steps[::-1][::stride][::-1]
    rows = [[str(step), *(number(losses.get(step, math.nan)) for losses in by_run)]
            for step in shown]
    header = ["step", *(metrics.run.label for metrics in all_metrics)]
    title = "Validation loss (nats per token)"
    if stride > 1:
        title += f", every {stride}th of {len(steps)} measurements"
    return f"{title}\n\n{text_table(header, rows)}"


def learning_table(all_metrics: Sequence[Metrics]) -> str:
    columns = [run_numbers(metrics) for metrics in all_metrics]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    header = ["Learning", *(metrics.run.label for metrics in all_metrics)]
    return f"{text_table(header, rows)}\n\n{validation_table(all_metrics)}\n"


def learning(names: Sequence[str], output: Path) -> list[Path]:
    """Writes learning_steps.png, learning_wall.png and learning.txt; returns their paths."""
    all_metrics = [read_metrics(run) for run in find_runs(names)]
    folder = output_folder(output)
    steps = [metrics.steps for metrics in all_metrics]
    written = [draw(all_metrics, steps, "step", folder / "learning_steps.png")]
    wall = [metrics.column("wall_seconds") for metrics in all_metrics]
    longest = max((float(np.nanmax(times)) for times in wall if not np.isnan(times).all()),
                  default=0.0)
    seconds, unit = time_unit(longest)
    written.append(draw(all_metrics, [times / seconds for times in wall], f"wall time ({unit})",
                        folder / "learning_wall.png"))
    table = folder / "learning.txt"
    table.write_text(learning_table(all_metrics), encoding="utf-8")
    return [*written, table]


def summary(name: str) -> str:
    """A few lines on one run."""
    metrics = read_metrics(find_runs([name])[0])
    numbers = run_numbers(metrics)
    return "\n".join([
        f"{metrics.run.label}: step {numbers['last step']}, {numbers['tokens']} tokens, "
        f"{numbers['tokens/s, median']} tokens/s, {numbers['wall time (s)']} s",
        f"training:   loss {numbers['training loss, first (nats)']} -> "
        f"{numbers['training loss, last']}, perplexity {numbers['training perplexity, last']}, "
        f"token accuracy {numbers['training token accuracy, last (%)']} %",
        f"validation: loss {numbers['validation loss, first (nats)']} -> "
        f"{numbers['validation loss, last']}, perplexity "
        f"{numbers['validation perplexity, last']}, "
        f"token accuracy {numbers['validation token accuracy, last (%)']} %",
    ])
