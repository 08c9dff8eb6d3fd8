# SPDX-License-Identifier: Apache-2.0
"""`sweep`: final validation loss against the learning rate, over several runs."""
from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Sequence

import numpy as np
from matplotlib.lines import Line2D

from analysis.deck import Deck, differences, read_deck
from analysis.errors import UserError
from analysis.report_page import STYLE, html_table
from analysis.report_plot import inline_svg
from analysis.runs import Run, best_value, find_runs, first_value, last_value, read_metrics
from analysis.style import Axes, Figure, look_of_run, plt, save
from analysis.tables import number, output_folder, text_table

FINISHED, SHORT, DIVERGED = "finished", "unfinished", "diverged"
LAST_STEPS = 20
DIVERGED_AT = 2.0  # times the initial loss, at any step

METHOD = (
    "The final loss is the last validation loss of a run; where none was measured, the mean training loss of its last "
    f"{LAST_STEPS} steps. The initial loss is the training loss of step 1.",
    "A run has diverged where a training or validation loss behind step 1 was not finite or above twice the initial "
    "loss, even if it came back later, or where its final loss is above the initial one. A run is unfinished where it "
    "has fewer steps than its deck wants; it is drawn hollow.",
)


@dataclass(frozen=True)
class Point:
    """One run of a sweep; losses in nats per token, NaN where there is none."""

    series: str
    run: str
    learning_rate: float
    initial_loss: float
    final_loss: float
    best_validation_loss: float
    validated: bool
    step: int
    steps: int
    state: str

    @property
    def has_diverged(self) -> bool:
        return self.state == DIVERGED


def state_of(losses: Sequence[float], final: float, unfinished: bool) -> str:
    """`losses`: every training and validation loss, that of step 1 first."""
    initial = losses[0]
    sound = all(loss <= DIVERGED_AT * initial < math.inf for loss in losses)  # no NaN is
    if not sound or not final <= initial:
        return DIVERGED
    return SHORT if unfinished else FINISHED


def learning_rate_of(run: Run, deck: Deck) -> float:
    try:
        rate = float(deck.get("optimizer.lr", ""))
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < math.inf:
        raise UserError(f"{run.path / 'deck.yaml'}: optimizer.lr is `{deck.get('optimizer.lr', '')}`, wanted a number "
                        "above 0; give the deck.yaml that `hyperslab train` wrote")
    return rate


def read_point(run: Run, deck: Deck, series: str) -> Point:
    metrics = read_metrics(run)
    losses, validation = metrics.column("loss"), metrics.column("validation_loss")
    measured = [math.nan if row["validation_loss"] is None else row["validation_loss"]
                for row in metrics.rows if "validation_loss" in row]
    tail = losses[-LAST_STEPS:]
    tail_mean = float(np.nanmean(tail)) if not np.isnan(tail).all() else math.nan
    final = last_value(validation) if measured else tail_mean
    step, steps = int(metrics.steps[-1]), int(deck.get("train.steps", "0"))
    state = state_of([*losses, *measured], final, step < steps)
    return Point(series, run.label, learning_rate_of(run, deck), first_value(losses[:1]), final,
                 best_value(validation), bool(measured), step, steps, state)


def series_keys(decks: Sequence[Deck]) -> list[str]:
    """Keys besides the learning rate, names and layout in which the runs differ."""
    return [key for key in differences(decks) if key != "optimizer.lr"]


def series_name(deck: Deck, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {deck.get(key, '-')}" for key in keys) or "all runs"


def read_points(runs: Sequence[Run]) -> list[Point]:
    """In order of series, then learning rate."""
    decks = [read_deck(run) for run in runs]
    keys = series_keys(decks)
    points = [read_point(run, deck, series_name(deck, keys)) for run, deck in zip(runs, decks)]
    order = list(dict.fromkeys(point.series for point in points))
    return sorted(points, key=lambda point: (order.index(point.series), point.learning_rate))


def best_of(points: Sequence[Point]) -> Point | None:
    """The finished run with the lowest final loss."""
    finished = [point for point in points if point.state == FINISHED]
    return min(finished, key=lambda point: point.final_loss, default=None)


def by_series(points: Sequence[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    return found


def draw_series(axes: Axes, points: Sequence[Point], index: int) -> None:
    colour, dashes, marker = look_of_run(index)
    sound = [point for point in points if not point.has_diverged]
    axes.plot([point.learning_rate for point in sound], [point.final_loss for point in sound],
              color=colour, linestyle=dashes, linewidth=1.4)
    for point in sound:
        axes.plot(point.learning_rate, point.final_loss, marker=marker, color=colour, markersize=6, zorder=3,
                  markerfacecolor=colour if point.state == FINISHED else "white")
    if best := best_of(points):
        axes.annotate(f"{best.final_loss:.4f}", (best.learning_rate, best.final_loss), textcoords="offset points",
                      xytext=(0, -15), ha="center", fontsize=9, color=colour)
    rates = [point.learning_rate for point in points if point.has_diverged]
    axes.plot(rates, [0.97 - 0.05 * (index % 8)] * len(rates), linestyle="none", marker="x", markersize=9,
              markeredgewidth=2.0, color=colour, transform=axes.get_xaxis_transform(), zorder=4)


def legend_handles(points: Sequence[Point]) -> list[Line2D]:
    handles = []
    for index, name in enumerate(by_series(points)):
        colour, dashes, marker = look_of_run(index)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, marker=marker, label=name))
    if any(point.state == SHORT for point in points):
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="o", markerfacecolor="white",
                              label="unfinished"))
    if any(point.has_diverged for point in points):
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="x", markersize=8,
                              label="diverged at some step (at the upper edge)"))
    return handles


def draw(points: Sequence[Point]) -> Figure:
    figure, axes = plt.subplots(figsize=(9.0, 5.2))
    for index, members in enumerate(by_series(points).values()):
        draw_series(axes, members, index)
    axes.set_xscale("log")
    axes.margins(x=0.08, y=0.15)
    if all(point.has_diverged for point in points):
        axes.set_yticks([])
    axes.set_xlabel("learning rate (peak)")
    kind = "validation loss" if all(point.validated or point.has_diverged for point in points) else "loss"
    axes.set_title(f"final {kind} (nats per token)", loc="left")
    axes.legend(handles=legend_handles(points), loc="best")
    figure.tight_layout()
    return figure


def rows_of(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    header = ["run", "learning rate", "initial loss", "final loss", "best validation", "step", "state"]
    bests = [best_of(members) for members in by_series(points).values()]
    rows = [[point.run, f"{point.learning_rate:.3g}", number(point.initial_loss), number(point.final_loss),
             number(point.best_validation_loss), f"{point.step}/{point.steps}" if point.steps else str(point.step),
             "best" if any(point is best for best in bests) else point.state] for point in points]
    return header, rows


def best_lines(points: Sequence[Point]) -> list[str]:
    lines = []
    for name, members in by_series(points).items():
        best = best_of(members)
        found = (f"lowest final loss {best.final_loss:.4f} at learning rate {best.learning_rate:.3g} ({best.run})"
                 if best else "no run finished")
        gone = sum(point.has_diverged for point in members)
        lines.append(f"{name}: {found}; {gone} of {len(members)} diverged")
    return lines


def csv_text(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(points[0])), lineterminator="\n")
    writer.writeheader()
    for point in points:
        writer.writerow({key: "" if isinstance(value, float) and math.isnan(value) else value
                         for key, value in asdict(point).items()})
    return text.getvalue()


def page(points: Sequence[Point], drawing: str) -> str:
    tables = [html_table(name, rows_of(members)) for name, members in by_series(points).items()]
    listed = "".join(f"<li>{escape(line)}</li>" for line in best_lines(points))
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Learning rates</title>", f"<style>{STYLE}</style>", "</head>", "<body>", "<main>",
        "<h1>Learning rates</h1>", f"<ul>{listed}</ul>", f"<figure>{drawing}</figure>", *tables,
        "<h2>How it is measured</h2>", *(f"<p>{escape(text)}</p>" for text in METHOD),
        "</main>", "</body>", "</html>", ""])


def sweep(names: Sequence[str], output: Path) -> str:
    """Writes sweep.html, sweep.png and sweep.csv; returns what to print."""
    runs = list({run.path.resolve(): run for run in find_runs(names)}.values())
    points = read_points(runs)
    folder = output_folder(output)
    figure = draw(points)
    drawing = inline_svg(figure, "sweep", "Final loss against the learning rate; the tables hold the same numbers")
    picture = save(figure, folder / "sweep.png")
    texts = {"sweep.html": page(points, drawing), "sweep.csv": csv_text(points)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    tables = [text_table(*rows_of(members)) for members in by_series(points).values()]
    written = [str(folder / name) for name in texts] + [str(picture)]
    return "\n".join(["\n\n".join(tables), "", *best_lines(points), *written])
