# SPDX-License-Identifier: Apache-2.0
"""`sweep`: final validation loss against the learning rate, over several runs."""
from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Sequence

from matplotlib.lines import Line2D

from analysis.deck import Deck, curve_keys, whole_in
from analysis.divergence import has_diverged
from analysis.errors import UserError
from analysis.report.document import Document, Drawing, Section, Sheet, html_text
from analysis.runs import (
    FINAL_LOSS, Metrics, Run, best_value, final_loss, find_runs, first_value, read_metrics, validation_losses,
)
from analysis.starts import mixed_text, trained_deck
from analysis.style import Axes, Figure, add_head, add_legend, look_of_run, plt, save
from analysis.subject import subject_of_runs
from analysis.tables import number, output_folder, path_lines, text_table, write_report
from analysis.ticks import round_log_axis, widened

FINISHED, SHORT, DIVERGED, MIXED = "finished", "unfinished", "diverged", "mixed"
EDGE = 0.83  # height of a panel from which only diverged runs stand
DECADE = 10.0
MOST_LETTERS = 70  # of a series in the legend
MARKS = {SHORT: ("o", "white", "unfinished"), MIXED: ("D", "white", "mixed: starts differ, on no curve"),
         DIVERGED: ("x", "#555555", "diverged at some step (at the upper edge; far rates at the sides)")}

METHOD = (
    f"{FINAL_LOSS} The initial loss is the training loss of step 1.",
    "A run has diverged if a training or validation loss after step 1 was not finite or above twice the initial loss, "
    "even if it came back later, if its final loss is above the initial one, or if gradients were not finite. In fp16 "
    "single steps are skipped until the loss scale fits: there the last three steps have to be without finite "
    "gradients. A run is unfinished if it has fewer steps than its deck says; it is drawn hollow.",
    "A run is mixed if its starts differ in more than names, layout, directories and steps: it has no one learning "
    "rate, and no curve and no best run takes it in. It is drawn hollow at the rate of its newest start.",
)


@dataclass(frozen=True)
class Point:
    """One run of a sweep; losses in nats per token, NaN if there is none."""

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
    mixed: str = ""

    @property
    def has_diverged(self) -> bool:
        return self.state == DIVERGED

    @property
    def is_on_curve(self) -> bool:
        return self.state in (FINISHED, SHORT)


def state_of(metrics: Metrics, mixed: str, unfinished: bool) -> str:
    if mixed:
        return MIXED
    if has_diverged(metrics):
        return DIVERGED
    return SHORT if unfinished else FINISHED


def learning_rate_of(run: Run, deck: Deck) -> float:
    try:
        rate = float(deck.get("optimizer.lr", ""))
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < math.inf:
        raise UserError(f"{run.path / 'deck.yaml'}: optimizer.lr is `{deck.get('optimizer.lr', '')}`, expected a number "
                        "above 0; give the deck.yaml that `hyperslab train` wrote")
    return rate


def read_point(run: Run, deck: Deck, series: str) -> Point:
    metrics = read_metrics(run)
    step, steps = int(metrics.steps[-1]), whole_in(deck, "train.steps", 0)
    mixed = mixed_text(run)
    return Point(series, run.label, learning_rate_of(run, deck), first_value(metrics.column("loss")[:1]),
                 final_loss(metrics), best_value(metrics.column("validation_loss")),
                 bool(validation_losses(metrics)), step, steps, state_of(metrics, mixed, step < steps), mixed)


def series_keys(decks: Sequence[Deck]) -> list[str]:
    """Keys besides the learning rate in which the runs differ and that change a final loss."""
    return [key for key in curve_keys(decks) if key != "optimizer.lr"]


def series_name(deck: Deck, keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {deck.get(key, '-')}" for key in keys) or "all runs"


def parts_of(name: str) -> list[str]:
    """Of a series: "key value" each; commas in lists do not count."""
    return re.split(r", (?=[a-z_]+\.[a-z_]+ )", name)


def curve_names(names: Sequence[str], width: int) -> list[str]:
    """For a legend: from the second series on only what differs from the first; letters, which the
    tables explain, if a line of `width` letters is too short for that."""
    first = parts_of(names[0])
    reported = [name if name == names[0] else ", ".join(
        part for part in parts_of(name) if part not in first) for name in names]
    return reported if max(map(len, reported)) <= width else [f"series {series_letter(index)} (see the tables)"
                                                              for index in range(len(names))]


def series_letter(index: int) -> str:
    """A to Z, then A1, B1 and so on."""
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")


def titled_series(points: Sequence[Point]) -> dict[str, list[Point]]:
    """As by_series, with letters before the names if there are several."""
    found = by_series(points)
    return found if len(found) == 1 else {f"{series_letter(index)}: {name}": members
                                          for index, (name, members) in enumerate(found.items())}


def read_points(runs: Sequence[Run]) -> list[Point]:
    """In order of series, then learning rate."""
    decks = [trained_deck(run) for run in runs]
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
    sound = [point for point in points if point.is_on_curve]
    axes.plot([point.learning_rate for point in sound], [point.final_loss for point in sound],
              color=colour, linestyle=dashes, linewidth=1.4)
    for point in points:
        if point.has_diverged or math.isnan(point.final_loss):
            continue
        axes.plot(point.learning_rate, point.final_loss, color=colour, markersize=6, zorder=3,
                  marker=MARKS[MIXED][0] if point.state == MIXED else marker,
                  markerfacecolor=colour if point.state == FINISHED else "white")
    low, high = axes.get_xlim()
    rates = sorted({point.learning_rate for point in points if point.has_diverged})
    height = 0.97 - 0.04 * (index % 4)
    axes.plot([min(max(rate, low), high) for rate in rates], [height] * len(rates), linestyle="none", marker="x", markersize=9,
              markeredgewidth=2.0, color=colour, transform=axes.get_xaxis_transform(), zorder=4, clip_on=False)
    for far, edge, side in (([rate for rate in rates if rate < low], low, 1), ([rate for rate in rates if rate > high], high, -1)):
        if far:  # they share a cross, which says for which rates it stands
            axes.annotate(", ".join(f"{rate:.3g}" for rate in far), (edge, height), (9 * side, 0), color=colour,
                          xycoords=axes.get_xaxis_transform(), textcoords="offset points", va="center",
                          ha="left" if side > 0 else "right", annotation_clip=False)


def legend_handles(points: Sequence[Point]) -> list[Line2D]:
    """The best runs are named here, away from the curves."""
    handles = []
    series = by_series(points)
    for index, (name, members) in enumerate(zip(curve_names(list(series), MOST_LETTERS), series.values())):
        colour, dashes, marker = look_of_run(index)
        best = best_of(members)
        found = f": lowest {best.final_loss:.4f} at {best.learning_rate:.3g}" if best else ""
        handles.append(Line2D([], [], color=colour, linestyle=dashes, marker=marker, label=name + found))
    for state, (marker, face, label) in MARKS.items():
        if any(point.state == state for point in points):
            handles.append(Line2D([], [], color="#555555", linestyle="none", marker=marker,
                                  markerfacecolor=face, label=label))
    return handles


def set_loss_axis(axes: Axes, losses: Sequence[float]) -> None:
    """Leaves room above the losses for the marks of diverged runs."""
    if not losses:
        axes.set_yticks([])
        return
    low, high = min(losses), max(losses)
    span = (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - 0.08 * span, low - 0.08 * span + 1.12 * span / EDGE)


def rate_limits(points: Sequence[Point]) -> tuple[float, float]:
    """Of the runs that did not diverge, wider by a decade at most for the others."""
    rates = [point.learning_rate for point in points]
    sound = [point.learning_rate for point in points if not point.has_diverged] or rates
    return widened(max(min(rates), min(sound) / DECADE), min(max(rates), max(sound) * DECADE), 0.08)


def draw(points: Sequence[Point], subject: str) -> Figure:
    figure, axes = plt.subplots(figsize=(9.0, 5.8))
    round_log_axis(axes, "x", *rate_limits(points), units=False)
    set_loss_axis(axes, [point.final_loss for point in points
                         if not point.has_diverged and not math.isnan(point.final_loss)])
    for index, members in enumerate(by_series(points).values()):
        draw_series(axes, members, index)
    axes.set_xlabel("learning rate (peak; log)")
    kind = "validation loss" if all(point.validated or point.has_diverged for point in points) else "loss"
    axes.set_ylabel(f"final {kind} (nats per token)")
    top = add_head(figure, f"Final {kind} against learning rate", subject)
    figure.tight_layout(rect=(0.0, add_legend(figure, legend_handles(points)), 1.0, top))
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
    for name, members in titled_series(points).items():
        best = best_of(members)
        found = (f"lowest final loss {best.final_loss:.4f} at learning rate {best.learning_rate:.3g} ({best.run})"
                 if best else "no run finished")
        gone = sum(point.has_diverged for point in members)
        lines.append(f"{name}: {found}; {gone} of {len(members)} diverged")
    return lines + [f"{point.run}: {point.mixed}; left out of its curve" for point in points if point.mixed]


def csv_text(points: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(points[0])), lineterminator="\n")
    writer.writeheader()
    for point in points:
        writer.writerow({key: "" if isinstance(value, float) and math.isnan(value) else value
                         for key, value in asdict(point).items()})
    return text.getvalue()


def document(points: Sequence[Point], figure: Figure) -> Document:
    sheets = [Sheet(name, *rows_of(members)) for name, members in titled_series(points).items()]
    drawing = Drawing("sweep", figure, "", "Final loss against the learning rate; the tables hold the same numbers")
    return Document("Learning rates", "", [Section("Final losses", [], best_lines(points), [drawing], sheets),
                                           Section("How it is measured", list(METHOD))])


def sweep(names: Sequence[str], output: Path) -> str:
    """Writes sweep.html, sweep.csv and figure sweep; returns what to print."""
    runs = list({run.path.resolve(): run for run in find_runs(names)}.values())
    points = read_points(runs)
    folder = output_folder(output)
    figure = draw(points, subject_of_runs(runs))
    texts = {"sweep.html": html_text(document(points, figure)), "sweep.csv": csv_text(points)}
    pictures = save(figure, folder / "sweep")
    written = [write_report(folder / name, text) for name, text in texts.items()] + pictures
    tables = [text_table(*rows_of(members)) for members in by_series(points).values()]
    return "\n".join(["\n\n".join(tables), "", *best_lines(points), *path_lines(written)])
