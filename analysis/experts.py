# SPDX-License-Identifier: Apache-2.0
"""`experts`: loads of experts by layer over the steps of a run, from rank 0's timing files."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from matplotlib.ticker import MaxNLocator

from analysis.csv_files import csv_text
from analysis.deck import Deck, whole_in
from analysis.errors import UserError
from analysis.runs import FloatArray, Run, find_runs
from analysis.starts import deck_of_start, has_own_deck, mixed_text, no_start_text, start_folders
from analysis.style import RUN_COLOURS, Axes, Figure, add_head, plt, save
from analysis.subject import layers_with_experts, subject_of_runs
from analysis.tables import note_lines, number, output_folder, path_lines, text_table, write_report

COLOURS = "viridis"
MOST_COLUMNS = 400  # of the map: more steps than that share columns
FEW = 0.1  # of the mean load: an expert with less is counted
ADVICE = "give a run of a deck whose experts.count is above 0, of a version that records loads"


@dataclass(frozen=True)
class Loads:
    """Tokens of each expert, divided by the mean of its layer: (steps, layers, experts)."""

    steps: FloatArray
    shares: FloatArray
    layers: list[int]  # their numbers in the model, from 0

    @property
    def experts(self) -> int:
        return int(self.shares.shape[2])


def read_file(path: Path) -> tuple[FloatArray, FloatArray] | None:
    """Steps and (steps, layers, experts) loads of a start; None without experts, or without a row."""
    try:
        with h5py.File(path, "r") as file:
            if "experts" not in file:
                return None
            table = file["experts/loads"]
            layers, experts = int(table.attrs["layers"]), int(table.attrs["experts"])
            steps = np.asarray(file["experts/step"], dtype=np.float64)
            loads = np.asarray(table, dtype=np.float64)
            # A job that ended while it wrote can leave columns of unequal length.
            rows = min(len(steps), len(loads))
            loads = loads[:rows].reshape(rows, layers, experts)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"cannot read {path} ({str(error).splitlines()[0]}); was the job killed while it wrote?") from error
    if loads.size and not (np.isfinite(loads).all() and loads.min() >= 0.0):
        raise UserError(f"{path}: a load of an expert is no number of tokens; was the file damaged?")
    return (steps[:rows], loads) if loads.size else None


def newest_rows(run: Run) -> tuple[FloatArray, FloatArray, Path]:
    """Rows of all starts in the order of steps; of a step that several starts did, the newest start's."""
    folders = start_folders(run)
    if not folders:
        raise UserError(no_start_text(run))
    rows: dict[float, FloatArray] = {}
    newest = folders[-1]
    for folder in folders:
        path = folder / "rank_00000.h5"
        found = read_file(path) if path.is_file() else None
        if found is None:
            continue
        steps, loads = found
        if rows and next(iter(rows.values())).shape != loads.shape[1:]:
            raise UserError(f"{path} has loads of other layers or experts than earlier starts; are files of another run "
                            "among them?")
        rows = {step: row for step, row in rows.items() if step < steps[0]} | dict(zip(steps, loads))
        newest = folder
    if not rows:
        raise UserError(f"{run.path} has no loads of experts; {ADVICE}")
    kept = sorted(rows)
    return np.array(kept), np.array([rows[step] for step in kept]), newest


def layer_numbers(deck: Deck, count: int) -> list[int]:
    """Numbers of the layers that have experts; counted from 0 if the deck has another number of them."""
    layers = layers_with_experts(deck, whole_in(deck, "model.layers", 0))
    return layers if len(layers) == count else list(range(count))


def read_loads(run: Run) -> Loads:
    steps, loads, start = newest_rows(run)
    means = loads.mean(axis=2, keepdims=True)
    shares = np.divide(loads, means, out=np.zeros_like(loads), where=means > 0.0)
    has_deck = has_own_deck(run, start.name) or (run.path / "deck.yaml").is_file()
    deck = deck_of_start(run, start.name) if has_deck else {}
    return Loads(steps, shares, layer_numbers(deck, shares.shape[1]))


def thinned(loads: Loads) -> tuple[FloatArray, FloatArray]:
    """The first step of each column of the map, and the means of its steps."""
    size = -(-len(loads.steps) // MOST_COLUMNS)
    firsts = range(0, len(loads.steps), size)
    return loads.steps[::size], np.array([loads.shares[first:first + size].mean(axis=0) for first in firsts])


def draw_map(axes: Axes, loads: Loads) -> None:
    """Rows are experts, layer under layer; columns are steps."""
    steps, shares = thinned(loads)
    rows = shares.reshape(len(steps), -1).T
    last = loads.steps[-1] + 1.0
    edges = np.append(steps, max(last, steps[-1] + 1.0))
    image = axes.pcolormesh(edges, np.arange(rows.shape[0] + 1), rows, cmap=COLOURS, vmin=0.0,
                            vmax=max(2.0, float(np.percentile(rows, 99.5))), rasterized=True)
    axes.invert_yaxis()
    axes.grid(False)
    bounds = loads.experts * np.arange(1, len(loads.layers))
    axes.hlines(bounds, edges[0], edges[-1], color="white", linewidth=0.8)
    every = -(-len(loads.layers) // 24)
    named = range(0, len(loads.layers), every)
    axes.set_yticks([(index + 0.5) * loads.experts for index in named],
                    [f"layer {loads.layers[index]}" for index in named])
    axes.figure.colorbar(image, ax=axes, pad=0.02, label="load / mean of the layer", extend="max")
    axes.set_xlabel("step")
    axes.set_title(f"each of {loads.experts} experts by layer", loc="left")


def draw_ends(axes: Axes, loads: Loads) -> None:
    """The largest and the smallest load of any layer, and how far layers differ."""
    marker = "o" if len(loads.steps) == 1 else None
    for name, values, colour in (("largest", loads.shares.max(axis=2), RUN_COLOURS[1]),
                                 ("smallest", loads.shares.min(axis=2), RUN_COLOURS[0])):
        axes.fill_between(loads.steps, values.min(axis=1), values.max(axis=1), color=colour, alpha=0.2, linewidth=0.0)
        axes.plot(loads.steps, values.mean(axis=1), color=colour, linewidth=1.4, marker=marker, label=name)
    axes.axhline(1.0, color="#333333", linestyle="--", linewidth=0.9)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("load / mean of the layer")
    axes.set_title("largest and smallest, mean and range of layers", loc="left")
    axes.legend(loc="upper right")


def draw(run: Run, loads: Loads) -> Figure:
    height = min(12.0, max(4.6, 1.6 + 0.35 * len(loads.layers)))
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.0, height), gridspec_kw={"width_ratios": [1.5, 1.0]})
    draw_map(left, loads)
    draw_ends(right, loads)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    top = add_head(figure, f"Loads of experts, {run.label}", subject_of_runs([run]))
    figure.tight_layout(rect=(0.0, 0.0, 1.0, top), w_pad=2.5)
    return figure


def layer_rows(loads: Loads) -> list[dict[str, float]]:
    """By recorded step and layer."""
    return [{"step": int(step), "layer": layer, "largest": float(row.max()), "smallest": float(row.min()),
             "few": int((row < FEW).sum()), "largest_expert": int(row.argmax())}
            for step, shares in zip(loads.steps, loads.shares) for layer, row in zip(loads.layers, shares)]


def last_table(loads: Loads) -> str:
    """The layers at the last recorded step."""
    rows = [[str(row["layer"]), number(row["largest"], 2), str(row["largest_expert"]), number(row["smallest"], 2),
             str(row["few"])] for row in layer_rows(loads)[-len(loads.layers):]]
    header = [f"layer, step {loads.steps[-1]:.0f}", "largest / mean", "of expert", "smallest / mean", f"below {FEW}"]
    return text_table(header, rows)


def experts(name: str, output: Path) -> str:
    """Writes figure experts and experts.csv; returns what to print."""
    run = find_runs([name])[0]
    loads = read_loads(run)
    folder = output_folder(output)
    written = save(draw(run, loads), folder / "experts")
    written.append(write_report(folder / "experts.csv", csv_text(layer_rows(loads))))
    mixed = mixed_text(run)
    notes = note_lines([f"{run.label}: {mixed}"] if mixed else [])
    return "\n".join([last_table(loads), "", *notes, *path_lines(written)])
