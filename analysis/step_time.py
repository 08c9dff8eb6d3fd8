# SPDX-License-Identifier: Apache-2.0
"""`time`: where the time of a median step went on each rank."""
from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import numpy as np
from matplotlib.patches import Patch

from analysis.errors import one_line
from analysis.first_steps import skip_text
from analysis.runs import find_runs
from analysis.starts import deck_of_start, mixed_text
from analysis.style import LETTERS_PER_INCH, Axes, Figure, add_head, plt, save
from analysis.subject import Machine, subject_text
from analysis.tables import output_folder, path_lines, text_table, write_report
from analysis.timings import BUSY, PARTS, WAITING, Layout, RankSteps, read_layouts, typical_steps

COLOURS: dict[str, str] = {
    "data": "#F0E442", "forward": "#56B4E9", "backward": "#0072B2", "optimizer": "#009E73",
    "reduce exposed": "#D55E00", "tensor": "#E69F00", "context": "#8B4513", "expert": "#117733", "pipeline": "#CC79A7", "idle": "#EDEDED",
    "wait": "#C9C3E6", "checkpoint": "#000000", "other": "#999999",
}
HATCHES: dict[str, str] = {"idle": "////", "wait": "\\\\\\\\"}
MIB = float(1 << 20)
MAX_LABELLED_RANKS = 32
LEGEND_INCHES = 1.9


@dataclass(frozen=True)
class RankTime:
    """Seconds of a rank's median step. `parts` add up to it: they are means over the steps between
    the quartiles, scaled to the median, and end with what the step has beyond the others. So is
    `busy_seconds` with at least one gradient reduction in progress, which is no part. `own_seconds`: the step without waiting for other ranks."""

    steps: RankSteps
    step_seconds: float
    parts: dict[str, float]
    busy_seconds: float
    own_seconds: float
    checkpoint_mean_seconds: float
    peak_bytes: float


def rank_time(steps: RankSteps) -> RankTime:
    columns = steps.columns
    typical = typical_steps(columns["step_seconds"])
    parts = {label: typical.mean(columns[name]) for name, label in PARTS.items()}
    parts["other"] = max(0.0, typical.median - sum(parts.values()))
    own_seconds = typical.median - sum(parts[PARTS[name]] for name in WAITING)
    # Files without that column have the sum of all reductions, which can exceed the step.
    busy = columns.get(BUSY, np.minimum(columns["reduce_seconds"], columns["step_seconds"]))
    return RankTime(steps, typical.median, parts, typical.mean(busy),
                    own_seconds, float(np.mean(columns["checkpoint_seconds"])),
                    float(np.max(columns["memory_peak_bytes"])))


def slowest(times: Sequence[RankTime]) -> str:
    """Steps last equally long on all ranks, so the rank with the most work of its own is named."""
    worst = max(times, key=lambda time: time.own_seconds)
    typical = float(np.median([time.own_seconds for time in times]))
    excess = 100.0 * (worst.own_seconds / typical - 1.0) if typical > 0 else 0.0
    return (f"Slowest: rank {worst.steps.name} on {worst.steps.host}, "
            f"{1e3 * worst.own_seconds:.2f} ms of own work (step less communication, idle and wait), "
            f"{excess:.1f} % above the median rank.")


def layout_table(layout: Layout) -> str:
    times = [rank_time(steps) for steps in layout.ranks]
    labels = [label for label in times[0].parts if (label != "context" or layout.sizes[2] > 1)
              and (label != "expert" or any(time.parts[label] > 0.0 for time in times))]
    names = [time.steps.name for time in times]
    header = ["rank", "host", "step", *labels, "reduce*", "checkpoint**", "own work", "peak MiB"]
    rows = [[name, time.steps.host, *(f"{1e3 * value:.2f}" for value in (
        time.step_seconds, *(time.parts[label] for label in labels), time.busy_seconds,
        time.checkpoint_mean_seconds, time.own_seconds)), f"{time.peak_bytes / MIB:,.1f}"]
        for name, time in zip(names, times)]
    shares = [[name, *(f"{100 * time.parts[label] / max(time.step_seconds, 1e-12):.1f}" for label in labels)]
              for name, time in zip(names, times)]
    peak = max(times, key=lambda time: time.peak_bytes)
    step_count = layout.ranks[0].columns["step"].size
    return "\n".join([
        f"{layout.label}: median of {step_count} steps and its parts, in ms", "", text_table(header, rows), "",
        "Share of the step in %", "", text_table(["rank", *labels], shares), "", slowest(times),
        f"Memory peak: {peak.peak_bytes / MIB:,.1f} MiB on rank {peak.steps.name}.",
    ])


NOTES = """* Time with at least one gradient reduction in progress; they run beside backward, so no part of the sum.
** Mean over steps, since most steps write no checkpoint.
Parts are means over the steps between the quartiles, scaled so that they add up to the median step.
tensor, context, expert, pipeline: communication that a rank waits for: of tensor ranks, of ranks that share samples, of ranks that hold other experts, of stages.
reduce exposed: gradient reductions that the step waits for, without waiting for slower ranks.
wait: for slower ranks. idle: a stage of the pipeline has no microbatch to compute.
other: what no part has. With more ranks than cores it is waiting for a core, which MPI yields between the passes of a pipeline."""
SMALLEST_PART = 1e-3  # of a step, to be drawn


def axes_note(layouts: Sequence[Layout]) -> str:
    """What letters of rank names mean."""
    if any(layout.sizes[2] > 1 for layout in layouts):
        return "d, t, p, c: coordinates on the data, tensor, pipeline and context axes."
    return "d, t, p: coordinates on the data, tensor and pipeline axes."


def seen_parts(layouts: Sequence[Layout]) -> list[str]:
    """Parts that can be seen on some rank, from the bottom."""
    times = [rank_time(steps) for layout in layouts for steps in layout.ranks]
    return [label for label in times[0].parts
            if any(time.parts[label] > SMALLEST_PART * time.step_seconds for time in times)]


def has_reductions(layout: Layout) -> bool:
    return any(np.any(steps.columns["reduce_seconds"] > 0) for steps in layout.ranks)


def draw_layout(axes: Axes, layout: Layout, parts: Sequence[str]) -> None:
    times = [rank_time(steps) for steps in layout.ranks]
    x = np.arange(len(times))
    base = np.zeros(len(times))
    aside = 0.08 if has_reductions(layout) else 0.0  # room for the narrow bar
    for label in parts:
        height = np.array([1e3 * time.parts[label] for time in times])
        axes.bar(x - aside, height, 0.6, bottom=base, color=COLOURS[label],
                 hatch=HATCHES.get(label), edgecolor="#888888" if label in HATCHES else "white",
                 linewidth=0.4)
        base += height
    if has_reductions(layout):
        axes.bar(x + 0.31, [1e3 * time.busy_seconds for time in times], 0.12, color="white",
                 edgecolor="#D55E00", hatch="..", linewidth=0.8)
    every = -(-len(times) // MAX_LABELLED_RANKS)
    names = [time.steps.name.replace(" (", "\n(") if len(times) <= 10
             else str(time.steps.rank) for time in times]
    axes.set_xticks(x[::every], names[::every])
    axes.set_xlim(-0.6, len(times) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("rank")
    axes.set_ylabel("time of a median step (ms)")
    letters = int(LETTERS_PER_INCH * 0.85 * (axes.figure.get_size_inches()[0] - LEGEND_INCHES - 1.0))
    axes.set_title("\n".join(textwrap.wrap(layout.label, letters)), loc="left")


def legend_patches(parts: Sequence[str], reductions: bool) -> list[Patch]:
    """From the top of a bar; then what stands beside it."""
    patches = [Patch(facecolor=COLOURS[label], hatch=HATCHES.get(label), label=label,
                     edgecolor="#888888")
               for label in reversed(parts)]
    beside = Patch(facecolor="white", edgecolor="#D55E00", hatch="..",
                   label="with a reduction in\nprogress (beside\nbackward)")
    return patches + ([beside] if reductions else [])


def subject(layouts: Sequence[Layout]) -> str:
    decks = [deck_of_start(layout.run, layout.starts[-1]) for layout in layouts
             if (layout.run.path / "deck.yaml").is_file()]
    return subject_text(decks, [Machine(len(layout.ranks), tuple(rank.device for rank in layout.ranks),
                                        tuple(rank.host for rank in layout.ranks)) for layout in layouts])


def draw(layouts: Sequence[Layout]) -> Figure:
    most = max(len(layout.ranks) for layout in layouts)
    width = min(18.0, max(6.4, 3.7 + 0.75 * most))
    parts = seen_parts(layouts)
    figure, panels = plt.subplots(len(layouts), 1, figsize=(width, 0.9 + 4.3 * len(layouts)),
                                  squeeze=False, sharey=True)
    for axes, layout in zip(panels[:, 0], layouts):
        draw_layout(axes, layout, parts)
    panels[0, 0].set_ylim(0.0, 1.06 * max(axes.dataLim.y1 for axes in panels[:, 0]))
    top = add_head(figure, "Time of a step by rank", subject(layouts))
    right = 1.0 - LEGEND_INCHES / figure.get_size_inches()[0]
    figure.tight_layout(rect=(0.0, 0.0, right, top), h_pad=2.0)
    figure.legend(handles=legend_patches(parts, any(map(has_reductions, layouts))), loc="upper left",
                  labelspacing=0.6, bbox_to_anchor=(right, top))
    return figure


def time_per_rank(names: Sequence[str], output: Path, skip: int) -> list[str]:
    """Writes figure time_per_rank and time_per_rank.txt; returns the latter's text and the paths."""
    layouts: list[Layout] = []
    notes: list[str] = []
    for run in find_runs(names):
        more_layouts, more_notes = read_layouts(run, skip)
        layouts += more_layouts
        notes += more_notes
        mixed = mixed_text(run)
        notes += [f"{run.label}: {mixed}"] if mixed else []
    folder = output_folder(output)
    written = save(draw(layouts), folder / "time_per_rank")
    notes = [one_line(note) for note in notes]
    text = "\n\n".join([*(layout_table(layout) for layout in layouts),
                        f"{NOTES}\n{axes_note(layouts)}\n{skip_text(skip)}", *notes])
    written.append(write_report(folder / "time_per_rank.txt", text + "\n"))
    return [text, "", *path_lines(written)]
