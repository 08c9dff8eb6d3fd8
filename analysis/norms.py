# SPDX-License-Identifier: Apache-2.0
"""`norms`: sizes of activations, weights and gradients by layer, from norms.jsonl (`train.log_norms`)."""
from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, Sequence

import numpy as np
from matplotlib.lines import Line2D

from analysis.errors import UserError
from analysis.runs import FloatArray, Run, find_runs, last_value, read_rows
from analysis.starts import mixed_text
from analysis.style import RUN_COLOURS, Axes, Figure, add_head, add_legend, plt, save
from analysis.subject import subject_of_runs
from analysis.tables import note_lines, output_folder, path_lines, text_table, write_report
from analysis.ticks import round_log_axis, widened

# Key of norms.jsonl -> title. Activations have a root mean square, the others Euclidean norms.
PANELS = {"activation_rms": "activations (root mean square)", "weight_norm": "weights (norm)",
          "gradient_norm": "gradients (norm)"}
ADVICE = "train with train.log_norms above 0, under a layout that has it"
MOST_NAMED_LAYERS = 12
Curves = dict[str, dict[str, FloatArray]]  # by panel and layer, one value per record


def layer_of(name: str) -> str:
    """blocks.3.mlp.up.weight -> blocks.3, head.weight -> head."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[:numbers[0] + 1]) if numbers else parts[0]


def read_values(path: Path, row: dict[str, Any], panel: str) -> dict[str, float]:
    """One number per layer: norms of a layer's tensors are joined to that of all its elements."""
    values = row.get(panel, {})
    if not isinstance(values, dict) or not all(
            value is None or isinstance(value, (int, float)) for value in values.values()):
        raise UserError(f"{path}: {panel} of step {row['step']} is not a number by tensor; remove the line")
    squares: dict[str, float] = {}
    for name, value in values.items():
        square = math.nan if value is None else float(value) ** 2
        squares[layer_of(name)] = squares.get(layer_of(name), 0.0) + square
    return {layer: math.sqrt(square) for layer, square in squares.items()}


def read_norms(run: Run) -> tuple[FloatArray, Curves]:
    """Steps, and by panel and layer a value for each; NaN if there is none."""
    path = run.path / "norms.jsonl"
    rows = read_rows(path, ADVICE)
    curves: Curves = {}
    for panel in PANELS:
        records = [read_values(path, row, panel) for row in rows]
        layers = dict.fromkeys(layer for record in records for layer in record)
        curves[panel] = {layer: np.array([record.get(layer, math.nan) for record in records])
                         for layer in layers}
    return np.array([float(row["step"]) for row in rows]), curves


def is_numbered(layer: str) -> bool:
    return layer.rsplit(".", 1)[-1].isdecimal()


def looks_of(layers: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Colour and line style: numbered layers from dark to light by depth, the others dashed."""
    numbered = [layer for layer in layers if is_numbered(layer)]
    shades = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, max(len(numbered), 1)))
    others = [layer for layer in layers if not is_numbered(layer)]
    return ({layer: (tuple(shade), "-") for layer, shade in zip(numbered, shades)}
            | {layer: (RUN_COLOURS[(1, 3, 6)[index % 3]], ("--", ":", "-.")[index // 3 % 3])
               for index, layer in enumerate(others)})


def draw_panel(axes: Axes, steps: FloatArray, values: dict[str, FloatArray],
               looks: dict[str, tuple[Any, str]]) -> None:
    known = np.concatenate([*values.values(), np.zeros(0)])
    known = known[np.isfinite(known) & (known > 0)]
    if known.size:
        round_log_axis(axes, "y", *widened(float(known.min()), float(known.max())))
    for layer, curve in values.items():
        colour, dashes = looks[layer]
        axes.plot(steps, np.where(curve > 0, curve, math.nan), color=colour, linestyle=dashes, linewidth=1.4,
                  marker="o" if steps.size == 1 else None)
    axes.set_xlabel("step")


def legend_handles(looks: dict[str, tuple[Any, str]]) -> list[Line2D]:
    """All layers, or of a deep model so many of the numbered ones, the first and last among them."""
    numbered = [layer for layer in looks if is_numbered(layer)]
    indices = np.linspace(0, len(numbered) - 1, min(len(numbered), MOST_NAMED_LAYERS)).round().astype(int)
    named = {numbered[index] for index in indices}
    return [Line2D([], [], color=colour, linestyle=dashes, label=layer)
            for layer, (colour, dashes) in looks.items() if layer in named or not is_numbered(layer)]


def draw(run: Run, steps: FloatArray, curves: Curves) -> Figure:
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13.0, 5.0))
    looks = looks_of(all_layers(curves))
    for axes, (panel, title) in zip(panels, PANELS.items()):
        draw_panel(axes, steps, curves[panel], looks)
        axes.set_title(title, loc="left")
    top = add_head(figure, f"Norms by layer, {run.label}", subject_of_runs([run]))
    handles = legend_handles(looks)
    bottom = add_legend(figure, handles) if handles else 0.0
    figure.tight_layout(rect=(0.0, bottom, 1.0, top), w_pad=2.5)
    return figure


def all_layers(curves: Curves) -> list[str]:
    return list(dict.fromkeys(layer for values in curves.values() for layer in values))


def value_text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def last_table(steps: FloatArray, curves: Curves) -> str:
    """The last finite value of each layer, and the gradient's norm by that of the weights."""
    rows = []
    for layer in all_layers(curves):
        activation, weight, gradient = (last_value(curves[panel].get(layer, np.full(1, math.nan)))
                                        for panel in PANELS)
        ratio = gradient / weight if weight > 0 else math.nan
        rows.append([layer, *map(value_text, (activation, weight, gradient, ratio))])
    header = [f"last finite, to step {steps[-1]:.0f}", "activation rms", "weight norm", "gradient norm", "gradient/weight"]
    return text_table(header, rows)


def csv_text(steps: FloatArray, curves: Curves) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "layer", *PANELS])
    for index, step in enumerate(steps):
        for layer in all_layers(curves):
            values = [curves[panel][layer][index] if layer in curves[panel] else math.nan for panel in PANELS]
            writer.writerow([int(step), layer, *("" if math.isnan(value) else value for value in values)])
    return text.getvalue()


def norms(name: str, output: Path) -> str:
    """Writes figure norms and norms.csv; returns what to print."""
    run = find_runs([name])[0]
    steps, curves = read_norms(run)
    folder = output_folder(output)
    written = save(draw(run, steps, curves), folder / "norms")
    written.append(write_report(folder / "norms.csv", csv_text(steps, curves)))
    mixed = mixed_text(run)
    notes = note_lines([f"{run.label}: {mixed}"] if mixed else [])
    return "\n".join([last_table(steps, curves), "", *notes, *path_lines(written)])
