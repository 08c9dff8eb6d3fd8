# SPDX-License-Identifier: Apache-2.0
"""`memory`: memory in use through a step, by category, and what takes most of it."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.patches import Patch

from analysis.csv_files import csv_text
from analysis.deck import is_whole
from analysis.errors import UserError
from analysis.json_files import misfit, parse_json
from analysis.runs import FloatArray, Run
from analysis.starts import deck_of_start, has_own_deck
from analysis.style import LOOK, Axes, add_head, add_legend, plt, save
from analysis.subject import model_text
from analysis.tables import output_folder, path_lines, text_table, write_report
from analysis.traces import read_trace

# From the bottom of a plot.
CATEGORIES: dict[str, str] = {
    "parameters": "#0072B2", "optimizer": "#009E73", "gradients": "#D55E00",
    "workspace": "#999999", "activations": "#56B4E9",
}
SPAN_COLOURS = {"forward": "#EAF4FB", "backward": "#FBF1E6", "optimizer": "#EAF7F1"}
NAME = "hyperslab memory timeline"
LARGEST = 10
MIB = float(1 << 20)
FROM_SIZE = {"GiB": float(1 << 30), "MiB": MIB}
LIFE = {"category": str, "label": str, "layer": int, "slot": int, "bytes": int, "start_seconds": float, "end_seconds": float}
FORM = {"mode?": str, "model?": str, "context?": int, "microbatch?": int, "precision?": str, "timelines": [
    {"rank": int, "lives": [LIFE], "spans": [{"name": str, "start_seconds": float, "end_seconds": float}],
     "held_bytes": {str: int}, "residual_stream_bytes": int}]}


@dataclass(frozen=True)
class Life:
    """An allocation while it is in use."""

    category: str
    label: str
    layer: int
    slot: int
    bytes: int
    start_seconds: float
    end_seconds: float

    @property
    def op(self) -> str:
        """The part of the layer, or the label of what belongs to none."""
        return re.sub(r"^blocks\.\d+\.", "", self.label)


@dataclass(frozen=True)
class Timeline:
    """Memory of one rank in one step. `held`: bytes of the arenas by category; empty: unknown."""

    name: str
    setup: dict[str, Any]
    rank: int
    lives: list[Life]
    spans: list[tuple[str, float, float]]
    held: dict[str, int]
    residual_stream_bytes: int = 0

    def curve(self, category: str) -> tuple[FloatArray, FloatArray]:
        """Moments in seconds, and the bytes in use from each on."""
        changes: dict[float, int] = {0.0: 0}
        for life in self.lives:
            if life.category == category:
                changes[life.start_seconds] = changes.get(life.start_seconds, 0) + life.bytes
                changes[life.end_seconds] = changes.get(life.end_seconds, 0) - life.bytes
        times = np.array(sorted(changes))
        return times, np.cumsum([float(changes[time]) for time in times])

    def moments(self) -> FloatArray:
        return np.unique([time for category in CATEGORIES for time in self.curve(category)[0]])

    def in_use(self, category: str, moments: FloatArray) -> FloatArray:
        times, used = self.curve(category)
        values: FloatArray = used[np.maximum(np.searchsorted(times, moments, "right") - 1, 0)]
        return values

    def stack(self) -> tuple[FloatArray, npt.NDArray[np.float64]]:
        moments = self.moments()
        return moments, np.array([self.in_use(name, moments) for name in CATEGORIES])

    def peak(self) -> tuple[float, float]:
        """Most bytes in use, and when first."""
        moments, rows = self.stack()
        total = rows.sum(axis=0)
        at = int(np.argmax(total))
        return float(total[at]), float(moments[at])

    def peak_of(self, category: str) -> float:
        return float(self.curve(category)[1].max())


def life_of(where: str, row: dict[str, Any]) -> Life:
    try:
        life = Life(str(row["category"]), str(row["label"]), int(row["layer"]), int(row["slot"]),
                    int(row["bytes"]), float(row["start_seconds"]), float(row["end_seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where}: a life without {error}; was the file written by this version?"
                        ) from error
    if life.category not in CATEGORIES or life.end_seconds < life.start_seconds:
        raise UserError(f"{where}: {life.label} is in use from {life.start_seconds} to "
                        f"{life.end_seconds} s as {life.category}; was the file damaged?")
    return life


def timeline_of(path: Path, data: dict[str, Any], rank: dict[str, Any]) -> Timeline:
    spans = [(str(span["name"]), float(span["start_seconds"]), float(span["end_seconds"])) for span in rank["spans"]]
    lives = [life_of(str(path), row) for row in rank["lives"]]
    return Timeline(path.stem, data, int(rank["rank"]), lives, spans, dict(rank["held_bytes"]),
                    int(rank["residual_stream_bytes"]))


def read_json(path: Path) -> list[Timeline]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict) or data.get("format") != NAME:
        raise UserError(f"{path} is no timeline of memory; write one with hyperslab bench DECK "
                        "--memory-timeline FILE.json")
    problem = misfit(data, FORM)
    if problem:
        raise UserError(f"{path}: a timeline cannot be read ({problem}); was the file written by this version?")
    return [timeline_of(path, data, rank) for rank in data["timelines"]]


def setup_of(path: Path, start: str) -> dict[str, Any]:
    """What bench writes into its files, by the deck of a run's start; without it only that it was a step."""
    run = Run(path, path.name)
    if not has_own_deck(run, start) and not (path / "deck.yaml").is_file():
        return {"mode": "step"}
    deck = deck_of_start(run, start)
    numbers = {name: int(deck[key]) for name, key in
               (("context", "model.context"), ("microbatch", "train.microbatch")) if is_whole(deck.get(key, ""))}
    return {"mode": "step", "model": model_text(deck), **numbers, "precision": deck.get("precision.compute", "")}


def read_run(path: Path) -> list[Timeline]:
    """The last traced step of a run."""
    trace = read_trace(Run(path, path.name))
    step = trace.steps[-1]
    timelines = []
    for rank in trace.ranks:
        table = rank.of_step("lives", step)
        rows = [dict(zip(LIFE, values)) for values in zip(*(table[key] for key in LIFE))] if table else []
        if not rows:
            raise UserError(f"{trace.start}: step {step} holds no lives of memory; was it traced "
                            "by this version?")
        timelines.append(Timeline(f"{path.name} step {step}", setup_of(path, trace.start.name), rank.rank,
                                  [life_of(str(trace.start), row) for row in rows], [], {}))
    return timelines


def read(path: Path) -> Timeline:
    """The timeline of the rank that needs most."""
    timelines = read_run(path) if path.is_dir() else read_json(path)
    if not timelines or any(not timeline.lives for timeline in timelines):
        raise UserError(f"{path} holds no lives of memory")
    return max(timelines, key=lambda timeline: (timeline.peak()[0], -timeline.rank))


def unit_of(largest: float) -> str:
    return "GiB" if largest >= FROM_SIZE["GiB"] else "MiB"


def draw_timeline(axes: Axes, timeline: Timeline, unit: str) -> None:
    moments, rows = timeline.stack()
    for name, start, end in timeline.spans:
        axes.axvspan(1e3 * start, 1e3 * end, color=SPAN_COLOURS.get(name, "#F5F5F5"), zorder=0)
    axes.stackplot(1e3 * moments, rows / FROM_SIZE[unit], colors=list(CATEGORIES.values()),
                   step="post", linewidth=0.0)
    held = sum(timeline.held.values())
    if held:
        axes.axhline(held / FROM_SIZE[unit], color="#333333", linestyle="--", linewidth=0.9)
    peak, moment = timeline.peak()
    axes.annotate(f"peak {peak / FROM_SIZE[unit]:.2f} {unit}", (1e3 * moment, peak / FROM_SIZE[unit]),
                  xytext=(4, 4), textcoords="offset points", fontsize=LOOK.points(9))
    axes.set_xlim(0.0, 1e3 * float(moments[-1]))
    axes.set_xlabel("time since the step began (ms)")
    axes.set_ylabel(f"memory in use ({unit})")
    axes.set_title(title_of(timeline), loc="left")


def title_of(timeline: Timeline) -> str:
    setup = timeline.setup
    facts = [str(setup["mode"])] if "mode" in setup else []
    facts += [f"context {setup['context']}"] if "context" in setup else []
    facts += [f"microbatch {setup['microbatch']}"] if setup.get("microbatch") else []
    facts += [str(setup["precision"])] if setup.get("precision") else []
    return f"{timeline.name}, rank {timeline.rank} ({', '.join(facts)})"


def subtitle_of(timelines: Sequence[Timeline]) -> str:
    """The models, and what is drawn beside the categories: of a run's traced steps neither is known."""
    words = sorted({str(timeline.setup["model"]) for timeline in timelines if timeline.setup.get("model")})
    words += ["dashed: held by the arenas all the time"] if any(each.held for each in timelines) else []
    words += ["shaded: forward, backward, optimizer"] if any(each.spans for each in timelines) else []
    return "; ".join(words)


def draw(timelines: Sequence[Timeline], path: Path) -> list[Path]:
    figure, panels = plt.subplots(len(timelines), 1, figsize=(9.0, 1.5 + 3.1 * len(timelines)),
                                  squeeze=False, sharey=True)
    most = max(max(timeline.peak()[0], sum(timeline.held.values())) for timeline in timelines)
    unit = unit_of(most)
    for axes, timeline in zip(panels[:, 0], timelines):
        draw_timeline(axes, timeline, unit)
    panels[0, 0].set_ylim(0.0, 1.1 * most / FROM_SIZE[unit])
    top = add_head(figure, "Memory in use through a step", subtitle_of(timelines))
    patches = [Patch(facecolor=colour, label=name) for name, colour in CATEGORIES.items()]
    bottom = add_legend(figure, list(reversed(patches)))
    figure.tight_layout(rect=(0.0, bottom, 1.0, top), h_pad=1.5)
    return save(figure, path)


def peak_rows(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    rows = []
    for timeline in timelines:
        peak, moment = timeline.peak()
        rows.append({"file": timeline.name, "mode": timeline.setup.get("mode", ""),
                     "context": timeline.setup.get("context", ""),
                     "microbatch": timeline.setup.get("microbatch", ""),
                     "precision": timeline.setup.get("precision", ""), "rank": timeline.rank,
                     "peak_bytes": round(peak), "peak_at_seconds": moment,
                     **{f"{name}_bytes": round(timeline.peak_of(name)) for name in CATEGORIES},
                     "held_bytes": sum(timeline.held.values()),
                     "residual_stream_bytes": timeline.residual_stream_bytes})
    return rows


def peak_table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["file", "mode", "context", "microbatch", "precision", "rank", "peak MiB", "at ms",
              *(f"{name} MiB" for name in CATEGORIES), "held MiB"]
    lines = [[str(row["file"]), *(str(row[key]) or "-" for key in ("mode", "context", "microbatch",
                                                                  "precision", "rank")),
              f"{row['peak_bytes'] / MIB:,.1f}", f"{1e3 * row['peak_at_seconds']:.2f}",
              *(f"{row[f'{name}_bytes'] / MIB:,.1f}" for name in CATEGORIES),
              f"{row['held_bytes'] / MIB:,.1f}" if row["held_bytes"] else "-"] for row in rows]
    return text_table(header, lines)


def context_table(rows: Sequence[dict[str, Any]]) -> str:
    """Peaks by context length and mode; empty if there is only one of them."""
    contexts = sorted({row["context"] for row in rows if row["context"] != ""})
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    if len(contexts) < 2:
        return ""
    peaks = {(row["context"], row["mode"]): row["peak_bytes"] for row in rows}
    lines = [[str(context), *(f"{peaks[context, mode] / MIB:,.1f}" if (context, mode) in peaks
                              else "-" for mode in modes)] for context in contexts]
    return text_table(["context", *(f"{mode} MiB" for mode in modes)], lines)


def largest_table(timeline: Timeline) -> str:
    """Allocations of one slot; the same one of several microbatches is listed once."""
    first: dict[tuple[str, int, str], Life] = {}
    for life in timeline.lives:
        first.setdefault((life.category, life.slot, life.label), life)
    largest = sorted(first.values(), key=lambda life: (-life.bytes, life.label, life.slot))[:LARGEST]
    lines = [[f"{life.bytes / MIB:,.2f}", life.category,
              str(life.layer) if life.layer >= 0 else "-", life.op,
              f"{1e3 * life.start_seconds:.2f}", f"{1e3 * life.end_seconds:.2f}"]
             for life in largest]
    return text_table(["MiB", "category", "layer", "op", "from ms", "to ms"], lines)


def text_of(timelines: Sequence[Timeline], rows: Sequence[dict[str, Any]]) -> str:
    parts = ["Most memory in use, and most of each category", peak_table(rows)]
    by_context = context_table(rows)
    parts += ["Peak by context length", by_context] if by_context else []
    for timeline in timelines:
        parts += [f"{title_of(timeline)}: the {LARGEST} largest allocations", largest_table(timeline)]
        if timeline.residual_stream_bytes:
            parts.append(f"Residual stream: {timeline.residual_stream_bytes / MIB:,.2f} MiB at each "
                         "place between two layers, for one microbatch.")
    return "\n\n".join(parts)


def memory(files: Sequence[str], output: Path) -> list[str]:
    """Writes figure memory, memory.txt and memory.csv; returns the text and the paths."""
    timelines = [read(path if path.exists() else Path("runs") / path)
                 for path in map(Path, files)]
    folder = output_folder(output)
    pictures = draw(timelines, folder / "memory")
    rows = peak_rows(timelines)
    text = text_of(timelines, rows)
    written = [write_report(folder / "memory.txt", text + "\n"), write_report(folder / "memory.csv", csv_text(rows))]
    return [text, "", *path_lines([*pictures, *written])]
