# SPDX-License-Identifier: Apache-2.0
"""`learning`: loss, perplexity and accuracy against steps and against time; of images top-1 and top-5."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

import numpy as np
from matplotlib.lines import Line2D

from analysis.divergence import DIVERGED_AT, has_diverged, is_tuned
from analysis.runs import (
    TRAINING_LOSS, FloatArray, Metrics, best_value, final_loss, find_runs, first_value, last_value, mean_of_last, read_metrics,
    typical_rate, validation_losses,
)
from analysis.starts import mixed_text
from analysis.style import Axes, Figure, add_head, add_legend, look_of_run, plt, save
from analysis.subject import subject_of_runs
from analysis.tables import counted, note_lines, number, output_folder, path_lines, text_table, write_report
from analysis.ticks import round_log_axis, widened

MAX_VALIDATION_ROWS = 25
SAME = 1e-3  # a relative difference that no eye sees
Limits = tuple[float, float] | None


@dataclass(frozen=True)
class Panel:
    """What one panel draws; `prefix` is empty for training, `validation_` for validation."""

    label: str
    values: Callable[[Metrics, str], FloatArray]
    log: bool = False


def percent_of(key: str) -> Callable[[Metrics, str], FloatArray]:
    return lambda metrics, prefix: 100.0 * metrics.column(f"{prefix}{key}")


def loss_of(metrics: Metrics, prefix: str) -> FloatArray:
    return metrics.column(f"{prefix}loss")


PANELS = (
    Panel("loss (nats per token)", loss_of),
    Panel("perplexity", lambda metrics, prefix: metrics.perplexity(prefix), log=True),
    Panel("token accuracy (%)", percent_of("token_accuracy")),
)
IMAGE_PANELS = (
    Panel("loss (nats)", loss_of),
    Panel("top-1 (%)", percent_of("top1")),
    Panel("top-5 (%)", percent_of("top5")),
)
PANEL_INCHES = 13.0 / len(PANELS)


def smooth(values: FloatArray, window: int) -> FloatArray:
    """Centred mean over `window` values, narrower at the ends; NaN does not count."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    sums = np.convolve(np.where(known, values, 0.0), kernel, mode="full")
    counts = np.convolve(known.astype(float), kernel, mode="full")
    start = (window - 1) // 2
    inside = slice(start, start + values.size)
    with np.errstate(invalid="ignore"):
        return np.where(known, sums[inside] / np.maximum(counts[inside], 1.0), math.nan)


def smoothing_window(steps: int) -> int:
    """An odd number of steps, about a fiftieth of the run."""
    return 2 * (steps // 100) + 1


def time_unit(seconds: float) -> tuple[float, str]:
    """How many seconds the axis' unit has, and its name."""
    if seconds > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds > 300 else (1.0, "seconds")


def panel_limits(panel: Panel, all_metrics: Sequence[Metrics]) -> Limits:
    """Of the runs that did not diverge, or, if all did, of what they did before; None: no values."""
    sound = [metrics for metrics in all_metrics if not has_diverged(metrics)]
    values = np.concatenate([np.concatenate([panel.values(metrics, ""), panel.values(metrics, "validation_")])
                             if sound else panel.values(metrics, "")[:diverging_row(metrics)]
                             for metrics in sound or all_metrics])
    values = values[np.isfinite(values) & ((values > 0) | (not panel.log))]
    if values.size == 0:
        return None
    low, high = float(values.min()), float(values.max())
    if panel.log:
        return widened(low, high)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def diverging_row(metrics: Metrics) -> int:
    """The first row whose training loss is not finite or far above the initial one, from 1 on."""
    losses = metrics.column("loss")
    good = losses <= DIVERGED_AT * losses[0]
    return max(1, losses.size if good.all() else int(np.argmin(good)))


def coincide(one: Metrics, other: Metrics, x: FloatArray, other_x: FloatArray) -> bool:
    """Whether two runs lie on one curve, as the same training on other layouts does."""
    return one.of_images == other.of_images and x.size == other_x.size and all(np.allclose(first, second, rtol=SAME, equal_nan=True) for first, second in (
        (x, other_x), *((one.column(key), other.column(key)) for key in ("loss", "validation_loss"))))


def curves_of(all_metrics: Sequence[Metrics], axis_values: Sequence[FloatArray]) -> dict[int, int]:
    """By the index of a run that is drawn: how many others lie on its curve."""
    found: dict[int, int] = {}
    for index, metrics in enumerate(all_metrics):
        drawn = next((each for each in found
                      if coincide(all_metrics[each], metrics, axis_values[each], axis_values[index])), None)
        found[index if drawn is None else drawn] = 0 if drawn is None else found[drawn] + 1
    return found


def draw_run(axes: Axes, x: FloatArray, metrics: Metrics, panel: Panel, index: int) -> None:
    """A curve that is above the panel leaves it through its upper edge."""
    colour, dashes, marker = look_of_run(index)
    top = axes.get_ylim()[1]
    training = np.minimum(panel.values(metrics, ""), top * 10.0 if panel.log else top + abs(top))
    window = smoothing_window(training.size)
    if window > 1:
        axes.plot(x, training, color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(x, smooth(training, window), color=colour, linestyle=dashes, linewidth=1.6)
    validation = panel.values(metrics, "validation_")
    inside = validation <= top  # no NaN is
    axes.plot(x[inside], validation[inside], linestyle="none", marker=marker, markersize=5,
              markerfacecolor=colour, markeredgecolor="white", markeredgewidth=0.8, zorder=3)


def mark_diverged(axes: Axes, x: FloatArray, metrics: Metrics, panel: Panel, index: int, row: int) -> None:
    """A cross near the upper edge at the first step outside; rows keep those of several runs apart."""
    training = panel.values(metrics, "")
    outside = ~(training <= axes.get_ylim()[1])
    if np.any(outside) and not np.all(np.isnan(training)):
        axes.plot(x[np.argmax(outside)], 0.96 - 0.06 * (row % 6), linestyle="none", marker="x", markersize=8,
                  markeredgewidth=2.0, color=look_of_run(index)[0],
                  transform=axes.get_xaxis_transform(), zorder=4)


def label_of(metrics: Metrics, others: int = 0) -> str:
    """`others`: how many other runs lie on its curve."""
    marks = [text for text, is_so in (("diverged", has_diverged(metrics)),
                                      ("mixed", bool(mixed_text(metrics.run)))) if is_so]
    label = f"{metrics.run.label} ({', '.join(marks)})" if marks else metrics.run.label
    return f"{label} and {counted(others, 'run')} on the same curve" if others else label


def legend_handles(all_metrics: Sequence[Metrics], others: Sequence[int] = ()) -> list[Line2D]:
    handles: list[Line2D] = []
    for index, metrics in enumerate(all_metrics):
        colour, dashes, marker = look_of_run(index)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, marker=marker, markersize=5,
                              linewidth=1.6, label=label_of(metrics, others[index] if others else 0)))
    if any(smoothing_window(len(metrics.rows)) > 1 for metrics in all_metrics):
        handles += [
            Line2D([], [], color="#555555", linewidth=1.6, label="training, smoothed"),
            Line2D([], [], color="#555555", linewidth=0.7, alpha=0.5, label="training, each step"),
        ]
    else:
        handles.append(Line2D([], [], color="#555555", linewidth=1.6, label="training"))
    if any(validation_losses(metrics) for metrics in all_metrics):
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="o", markersize=5, label="validation (marks)"))
    if any(has_diverged(metrics) for metrics in all_metrics):
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="x", markersize=8,
                              markeredgewidth=2.0, label="diverged: leaves the panel"))
    return handles


def apart(all_metrics: Sequence[Metrics]) -> dict[str, list[int]]:
    """Rows of panels, by what is added to their titles: runs that begin with another's weights do not share an axis with
    their base, whose first losses would be all that is seen."""
    tuned = [index for index, metrics in enumerate(all_metrics) if is_tuned(metrics.run)]
    others = [index for index in range(len(all_metrics)) if index not in tuned]
    return {", from the start": others, ", tuned": tuned} if tuned and others else {"": [*others, *tuned]}


def draw_panel(axes: Axes, panel: Panel, all_metrics: Sequence[Metrics], axis_values: Sequence[FloatArray],
               members: Sequence[int] | None = None) -> None:
    """Of the runs that `members` numbers, all without it; a run has its look in every row."""
    numbers = range(len(all_metrics)) if members is None else members
    limits = panel_limits(panel, [all_metrics[index] for index in numbers])
    if limits and panel.log:
        round_log_axis(axes, "y", *limits)
    elif limits:
        axes.set_ylim(*limits)
    for index in numbers:
        draw_run(axes, axis_values[index], all_metrics[index], panel, index)
    gone = [index for index in numbers if has_diverged(all_metrics[index])]
    for row, index in enumerate(gone):
        mark_diverged(axes, axis_values[index], all_metrics[index], panel, index, row)
    axes.set_title(panel.label, loc="left")


def panels_of(all_metrics: Sequence[Metrics]) -> tuple[Panel, ...]:
    """Of text, of images, or of both with one panel of losses."""
    of_images = [metrics.of_images for metrics in all_metrics]
    if all(of_images):
        return IMAGE_PANELS
    return PANELS + IMAGE_PANELS[1:] if any(of_images) else PANELS


def draw(all_metrics: Sequence[Metrics], axis_values: Sequence[FloatArray], axis_label: str) -> Figure:
    """A panel for each of panels_of() that some run has values for."""
    curves = curves_of(all_metrics, axis_values)
    subject = subject_of_runs([metrics.run for metrics in all_metrics])
    all_metrics, axis_values = ([each[index] for index in curves] for each in (all_metrics, axis_values))
    panels_known = panels_of(all_metrics)
    shown = [panel for panel in panels_known if panel_limits(panel, all_metrics)] or panels_known[:1]
    rows = apart(all_metrics)
    figure, panels = plt.subplots(len(rows), len(shown), figsize=(max(8.0, PANEL_INCHES * len(shown)), 1.0 + 4.0 * len(rows)),
                                  squeeze=False)
    for row, (name, members) in zip(panels, rows.items()):
        for axes, panel in zip(row, shown):
            draw_panel(axes, panel, all_metrics, axis_values, members)
            axes.set_title(f"{panel.label}{name}", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel(axis_label)
    top = add_head(figure, "Learning curves", subject)
    bottom = add_legend(figure, legend_handles(all_metrics, list(curves.values())))
    figure.tight_layout(rect=(0.0, bottom, 1.0, top), w_pad=2.5)
    return figure


def draw_steps(all_metrics: Sequence[Metrics]) -> Figure:
    return draw(all_metrics, [metrics.steps for metrics in all_metrics], "step")


def last_percent(metrics: Metrics, key: str) -> str:
    return number(100 * last_value(metrics.column(key)), 2)


def best_percent(metrics: Metrics, key: str) -> str:
    return number(-best_value(-100 * metrics.column(key)), 2)


# Lines of run_numbers that only text, or only images, have.
TEXT_LINES = ("training perplexity, last", "training token accuracy, last (%)", "validation perplexity, last",
              "validation token accuracy, last (%)", "tokens", "tokens/s, median")
IMAGE_LINES = ("training top-1, last (%)", "training top-5, last (%)", "validation top-1, last (%)",
               "validation top-1, best (%)", "validation top-5, last (%)", "images/s, median")


def lines_of(all_metrics: Sequence[Metrics], names: Sequence[str]) -> list[str]:
    """Those lines of run_numbers that some of the runs can have."""
    of_images = [metrics.of_images for metrics in all_metrics]
    gone = TEXT_LINES if all(of_images) else () if any(of_images) else IMAGE_LINES
    return [name for name in names if name not in gone]


def run_numbers(metrics: Metrics) -> dict[str, str]:
    """The table's lines for one run, in order; a dash for what it does not have."""
    loss, validation = metrics.column("loss"), metrics.column("validation_loss")
    rate = number(typical_rate(metrics), 0)
    return {
        "last step": str(metrics.rows[-1]["step"]),
        "diverged": "yes" if has_diverged(metrics) else "no",
        "spikes": str(sum(row.get("spike") is not None for row in metrics.rows)),
        "spikes left out": str(sum(bool(row.get("left_out")) for row in metrics.rows)),
        "training loss, first (nats)": number(first_value(loss)),
        "training loss, last": number(last_value(loss)),
        TRAINING_LOSS: number(mean_of_last(loss)),
        "final loss": number(final_loss(metrics)),
        "training loss, best": number(best_value(loss)),
        "training perplexity, last": number(last_value(metrics.perplexity()), 2),
        "training token accuracy, last (%)": last_percent(metrics, "token_accuracy"),
        "training top-1, last (%)": last_percent(metrics, "top1"),
        "training top-5, last (%)": last_percent(metrics, "top5"),
        "validation loss, first (nats)": number(first_value(validation)),
        "validation loss, last": number(last_value(validation)),
        "validation loss, best": number(best_value(validation)),
        "validation perplexity, last": number(last_value(metrics.perplexity("validation_")), 2),
        "validation token accuracy, last (%)": last_percent(metrics, "validation_token_accuracy"),
        "validation top-1, last (%)": last_percent(metrics, "validation_top1"),
        "validation top-1, best (%)": best_percent(metrics, "validation_top1"),
        "validation top-5, last (%)": last_percent(metrics, "validation_top5"),
        "tokens": number(last_value(metrics.column("tokens")), 0),
        "tokens/s, median": "-" if metrics.of_images else rate,
        "images/s, median": rate if metrics.of_images else "-",
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
    title = f"Validation loss ({panels_of(all_metrics)[0].label.split('(')[1]}"
    if stride > 1:
        title += f", every {stride}th of {len(steps)} measurements"
    return f"{title}\n\n{text_table(header, rows)}"


def learning_table(all_metrics: Sequence[Metrics]) -> str:
    columns = [run_numbers(metrics) for metrics in all_metrics]
    rows = [[name, *(column[name] for column in columns)] for name in lines_of(all_metrics, list(columns[0]))]
    header = ["Learning", *(metrics.run.label for metrics in all_metrics)]
    return f"{text_table(header, rows)}\n\n{validation_table(all_metrics)}\n"


def mixed_notes(all_metrics: Sequence[Metrics]) -> list[str]:
    texts = [(metrics.run.label, mixed_text(metrics.run)) for metrics in all_metrics]
    return [f"{label}: {text}" for label, text in texts if text]


def learning(names: Sequence[str], output: Path) -> list[str]:
    """Writes figures learning_steps and learning_wall, and learning.txt; returns the latter's text and the paths."""
    all_metrics = [read_metrics(run) for run in find_runs(names)]
    notes = note_lines(mixed_notes(all_metrics))
    folder = output_folder(output)
    written = save(draw_steps(all_metrics), folder / "learning_steps")
    wall = [metrics.column("wall_seconds") for metrics in all_metrics]
    longest = max((float(np.nanmax(times)) for times in wall if not np.isnan(times).all()),
                  default=0.0)
    seconds, unit = time_unit(longest)
    figure = draw(all_metrics, [times / seconds for times in wall], f"wall time ({unit})")
    written += save(figure, folder / "learning_wall")
    text = "\n".join([learning_table(all_metrics), *notes])
    written.append(write_report(folder / "learning.txt", text))
    return [text, *([""] if notes else []), *path_lines(written)]


def summary(name: str) -> str:
    """A few lines on one run."""
    metrics = read_metrics(find_runs([name])[0])
    numbers = run_numbers(metrics)
    diverged = ["diverged: a loss was not finite, far above that of step 1, or in the end above it (2 % of a tuned model), or gradients "
                "were not finite"]
    rate = (f"{numbers['images/s, median']} images/s" if metrics.of_images else
            f"{numbers['tokens']} tokens, {numbers['tokens/s, median']} tokens/s")
    return "\n".join([
        f"{metrics.run.label}: step {numbers['last step']}, {rate}, {numbers['wall time (s)']} s",
        *mixed_notes([metrics]), *(diverged if has_diverged(metrics) else []),
        summary_line(numbers, "training", metrics.of_images),
        *([summary_line(numbers, "validation", metrics.of_images)] if validation_losses(metrics) else []),
    ])


def summary_line(numbers: dict[str, str], part: str, of_images: bool) -> str:
    """What a part, training or validation, came to."""
    losses = f"loss {numbers[f'{part} loss, first (nats)']} -> {numbers[f'{part} loss, last']}"
    reported = (f"top-1 {numbers[f'{part} top-1, last (%)']} %, top-5 {numbers[f'{part} top-5, last (%)']} %" if of_images
                else f"perplexity {numbers[f'{part} perplexity, last']}, "
                      f"token accuracy {numbers[f'{part} token accuracy, last (%)']} %")
    return f"{part + ':':<11} {losses}, {reported}"
