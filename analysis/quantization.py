# SPDX-License-Identifier: Apache-2.0
"""`quantization`: what quantized matrices and adapters cost and save beside the model as it is."""
from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from analysis.errors import one_line
from analysis.quantization_rows import DECODING, EVALUATION, TRAINING, Row, grouped, read_rows
from analysis.style import RUN_COLOURS, Axes, add_head, plt, save
from analysis.tables import markdown_image, markdown_table, markdown_words, number, output_folder, path_lines, write_report

MIB = float(1 << 20)
NO_CHANGE = 5e-5  # that is called none


@dataclass(frozen=True)
class Measure:
    """A column: `scale` takes the value to the unit of `title`. `against`: how it stands to the base: "ratio" is
    value / base, "speed" base / value, "change" value / base - 1 in %."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2
    against: str = ""

    def text(self, row: Row) -> str:
        return number(row.value(self.name) * self.scale, self.digits)

    def relative(self, row: Row, base: Row) -> float:
        """NaN if one of both was not measured."""
        value, other = row.value(self.name), base.value(self.name)
        if not other > 0 or not value > 0:
            return math.nan
        if self.against == "speed":
            return other / value
        return value / other - (1.0 if self.against == "change" else 0.0)

    def relative_text(self, row: Row, base: Row) -> str:
        value = self.relative(row, base)
        if self.against != "change" or math.isnan(value):
            return number(value, 3)
        return f"{0.0 if abs(value) < NO_CHANGE else 100 * value:+.2f}"

    @property
    def relative_title(self) -> str:
        name = self.title.split(" (")[0]
        return {"ratio": f"{name} by the base's", "speed": f"{name}: times as fast",
                "change": f"{name}, change (%)"}[self.against]


PARAMETERS = Measure("parameter_bytes", "model (MiB)", 1 / MIB, 1, "ratio")
MATRICES = Measure("matrix_bytes", "blocks' matrices (MiB)", 1 / MIB, 1, "ratio")
PEAK = Measure("memory_peak_bytes", "peak memory of a rank (MiB)", 1 / MIB, 1, "ratio")
RATE = Measure("tokens_per_second", "tokens/s", 1.0, 1, "ratio")
FIGURES = {
    EVALUATION: [Measure("loss", "loss (nats)", digits=4), Measure("perplexity", "perplexity", 1.0, 3, "change"),
                 Measure("token_accuracy", "token accuracy (%)", 100.0), PARAMETERS, MATRICES, PEAK, RATE],
    DECODING: [PARAMETERS, MATRICES, PEAK, RATE, Measure("token_seconds", "token (ms)", 1e3, 3, "speed")],
    TRAINING: [PEAK, RATE, Measure("validation_loss", "final validation loss (nats)", 1.0, 4, "change"),
               Measure("best_validation_loss", "best validation loss (nats)", digits=4),
               Measure("trained_parameters", "trained parameters", 1.0, 0, "ratio")],
}
TITLES = {EVALUATION: "Evaluation", DECODING: "Tokens one by one", TRAINING: "Training"}
DRAWN = {EVALUATION: ("perplexity", "parameter_bytes", "tokens_per_second"),
         DECODING: ("token_seconds", "parameter_bytes", "memory_peak_bytes"),
         TRAINING: ("validation_loss", "memory_peak_bytes", "tokens_per_second")}


def table_of(kind: str, base: Row, rows: Sequence[Row]) -> str:
    header, lines = ["variant", "method" if kind == TRAINING else "weights"], [[row.name, row.weights] for row in rows]
    for each in FIGURES[kind]:
        header.append(each.title)
        for row, line in zip(rows, lines):
            line.append(each.text(row))
        if each.against:
            header.append(each.relative_title)
            for row, line in zip(rows, lines):
                line.append(each.relative_text(row, base))
    return markdown_table(header, lines)


def write_csv(kind: str, base: Row, rows: Sequence[Row], path: Path) -> Path:
    """Values in bytes, seconds and shares; ratios and changes as shares of one. What was not measured is empty."""
    def cell(value: float) -> str:
        return "" if math.isnan(value) else f"{value:.10g}"

    keys = {each.name: each for each in FIGURES[kind]}
    related = {f"{name}_{each.against}": each for name, each in keys.items() if each.against}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", "weights", "base", *keys, *related])
    for row in rows:
        writer.writerow([row.name, row.weights, base.name, *(cell(row.value(name)) for name in keys),
                         *(cell(each.relative(row, base)) for each in related.values())])
    return write_report(path, text.getvalue())


def reported(each: Measure, row: Row, base: Row, text: str) -> list[str]:
    """`text` with {value}, {base} and {relative}; nothing if one of both was not measured."""
    if math.isnan(each.relative(row, base)):
        return []
    return [text.format(value=each.text(row), base=each.text(base), relative=each.relative_text(row, base))]


def sentence(kind: str, base: Row, row: Row) -> str:
    """What the figures of a variant say beside the base's; empty if they say nothing."""
    by_name = {each.name: each for each in FIGURES[kind]}
    words = {
        EVALUATION: {"parameter_bytes": "takes {relative} times the memory of its parameters",
                     "perplexity": "has a perplexity of {value} against {base} ({relative} %)",
                     "tokens_per_second": "evaluates {relative} times as many tokens a second"},
        DECODING: {"parameter_bytes": "takes {relative} times the memory of its parameters",
                   "token_seconds": "makes a token in {value} ms against {base}, {relative} times as fast"},
        TRAINING: {"trained_parameters": "trains {relative} times as many parameters",
                   "memory_peak_bytes": "takes {relative} times the memory",
                   "tokens_per_second": "goes through {relative} times as many tokens a second",
                   "validation_loss": "ends at a validation loss of {value} against {base} ({relative} %)"},
    }[kind]
    parts = [part for name, text in words.items() for part in reported(by_name[name], row, base, text)]
    if not parts:
        return ""
    joined = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return f"Beside {base.name}, {row.name} ({row.weights}) {joined}."


def draw_panel(axes: Axes, each: Measure, base: Row, rows: Sequence[Row], first: bool) -> None:
    """Bars from the top; each carries its value, and how it stands to the base."""
    places = list(range(len(rows), 0, -1))
    values = [row.value(each.name) * each.scale for row in rows]
    bars = axes.barh(places, [0.0 if math.isnan(value) else value for value in values], height=0.62,
                     color=[RUN_COLOURS[6] if row is base else RUN_COLOURS[0] for row in rows])
    sign = " %" if each.against == "change" else " x"
    axes.bar_label(bars, [each.text(row) if row is base or math.isnan(each.relative(row, base)) else
                          f"{each.text(row)} ({each.relative_text(row, base)}{sign})" for row in rows], padding=3,
                   fontsize=8)
    largest = max((value for value in values if not math.isnan(value)), default=1.0)
    axes.set_xlim(0.0, 1.55 * largest)
    axes.set_yticks(places, [f"{row.name}\n{row.weights}" for row in rows] if first else [""] * len(rows))
    axes.set_xlabel(each.title)
    axes.grid(visible=False, axis="y")


def draw(kind: str, base: Row, rows: Sequence[Row], path: Path) -> list[Path]:
    """Nothing if nothing was measured that could be drawn."""
    shown = [each for name in DRAWN[kind] for each in FIGURES[kind]
             if each.name == name and not all(math.isnan(row.value(name)) for row in rows)]
    if not shown:
        return []
    picture, panels = plt.subplots(1, len(shown), figsize=(2.0 + 3.6 * len(shown), max(4.0, 1.7 + 0.5 * len(rows))),
                                   squeeze=False)
    for index, (axes, each) in enumerate(zip(panels[0], shown)):
        draw_panel(axes, each, base, rows, index == 0)
    top = add_head(picture, TITLES[kind], f"black: the base, {base.name}; in brackets: beside it")
    picture.tight_layout(rect=(0.0, 0.0, 1.0, top), w_pad=1.5)
    return save(picture, path)


def quantization(names: Sequence[str], output: Path, base_name: str = "") -> list[str]:
    """Writes quantization.md, and for each kind of input a CSV and a figure; returns sentences and paths."""
    kinds = grouped(read_rows(names), base_name)
    folder = output_folder(output)
    parts, sentences, written = ["# Quantization and adapters"], [], []
    for kind, (base, rows) in kinds.items():
        said = [text for row in rows if row is not base for text in [sentence(kind, base, row)] if text]
        pictures = draw(kind, base, rows, folder / kind)
        written += [*pictures, write_csv(kind, base, rows, folder / f"{kind}.csv")]
        parts += [f"## {TITLES[kind]}", table_of(kind, base, rows), *map(markdown_words, said),
                  *([markdown_image(TITLES[kind], f"{kind}.png")] if pictures else [])]
        sentences += said
    page = write_report(folder / "quantization.md", "\n\n".join(parts) + "\n")
    return [*map(one_line, sentences), *path_lines([page, *written])]
