# SPDX-License-Identifier: Apache-2.0
"""`trace`: what all ranks did in a traced step, on one clock."""
from __future__ import annotations

from pathlib import Path
from typing import Sequence

from matplotlib.patches import Patch

from analysis.errors import UserError
from analysis.runs import find_runs
from analysis.step_time import COLOURS, HATCHES
from analysis.style import Axes, add_head, add_legend, plt, save
from analysis.tables import output_folder, path_lines, text_table, write_report
from analysis.traces import RankTrace, Trace, read_trace

# Phases of the recorder -> names of plots.
PHASES: dict[str, str] = {
    "data": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
    "reduce_exposed": "reduce exposed", "tensor_comm": "tensor", "context_comm": "context",
    "pipeline_comm": "pipeline",
    "pipeline_idle": "idle", "wait": "wait", "checkpoint": "checkpoint",
}
LABELS = [*dict.fromkeys(PHASES.values()), "other"]
GROUPS: dict[str, str] = {"data": "#D55E00", "tensor": "#E69F00", "context": "#8B4513", "pipeline": "#CC79A7",
                          "tied": "#8C564B", "key_value": "#7F7F7F", "world": "#8A7FC7",
                          "expert": "#117733", "expert_data": "#882255", "expert_shard": "#AA4499"}
COMPUTE_HEIGHT, GROUP_HEIGHT = 0.46, 0.30
MOST_RANKS = 64
MOST_ARROWS = 400
SEEN_GAP = 1e-3  # of the width of a plot; what is smaller is not seen


def phase_spans(rank: RankTrace, step: int, begin: float) -> list[tuple[str, float, float]]:
    """Phases in ms since `begin`; those inside others come later."""
    events = rank.of_step("events", step)
    if not events:
        return []
    shift = rank.begins[step] - begin
    rows = [(PHASES[name], 1e3 * (start + shift), 1e3 * (end + shift))
            for name, stream, start, end in zip(events["name"], events["stream"],
                                                events["start_seconds"], events["end_seconds"])
            if stream == "compute" and name in PHASES]
    return sorted(rows, key=lambda row: (row[1], -row[2]))


def is_computation(stream: str) -> bool:
    """Streams of a GPU other than those of copies and of groups."""
    return stream != "copy" and stream not in GROUPS


def kernel_spans(rank: RankTrace, step: int, begin: float) -> list[tuple[str, float, float]]:
    """Kernels of the computation in ms since `begin`, by the phase in which the host enqueued them, the earliest
    first; none if the rank is no GPU, or nothing watched it."""
    kernels = rank.of_step("kernels", step)
    if not kernels:
        return []
    shift = rank.begins[step] - begin
    rows = [(PHASES.get(phase, "other"), 1e3 * (start + shift), 1e3 * (end + shift))
            for phase, stream, start, end in zip(kernels["phase"], kernels["stream"],
                                                 kernels["start_seconds"], kernels["end_seconds"])
            if is_computation(stream)]
    return sorted(rows, key=lambda row: row[1])


def joined(spans: list[tuple[str, float, float]], gap_ms: float) -> list[tuple[str, float, float]]:
    """Spans with those of one phase that follow each other within `gap_ms` as one."""
    out: list[tuple[str, float, float]] = []
    for label, start, end in spans:
        if out and out[-1][0] == label and start - out[-1][2] <= gap_ms:
            out[-1] = (label, out[-1][1], max(out[-1][2], end))
        else:
            out.append((label, start, end))
    return out


def drawn_spans(rank: RankTrace, step: int, begin: float) -> list[tuple[str, float, float]]:
    """What the row of a rank shows, in ms since `begin`; those inside others come later."""
    kernels = kernel_spans(rank, step, begin)
    if not kernels:
        return phase_spans(rank, step, begin)
    least = SEEN_GAP * (kernels[-1][2] - kernels[0][1])
    return [span for span in joined(kernels, least) if span[2] - span[1] >= least]


def operations_within(rank: RankTrace, step: int) -> list[tuple[str, float, float]]:
    """Group, call and end of operations, from the beginning of the step on: a step waits for the last sends of the one
    before, too."""
    table = rank.of_step("operations", step)
    columns = [table.get(name, ()) for name in ("group", "call_seconds", "end_seconds")]
    return [(str(group), max(0.0, call), end) for group, call, end in zip(*columns) if end > 0.0]


def draw_rank(axes: Axes, rank: RankTrace, row: int, trace: Trace, step: int) -> set[str]:
    """Returns the phases and groups that can be seen."""
    begin = trace.begin(step)
    seen: set[str] = set()
    for label, start, end in drawn_spans(rank, step, begin):
        axes.broken_barh([(start, end - start)], (row - COMPUTE_HEIGHT / 2, COMPUTE_HEIGHT),
                         facecolor=COLOURS[label], hatch=HATCHES.get(label), linewidth=0.0)
        seen.add(label)
    shift = rank.begins[step] - begin
    for group, call, end in operations_within(rank, step):
        axes.broken_barh([(1e3 * (call + shift), 1e3 * (end - call))],
                         (row + COMPUTE_HEIGHT / 2, GROUP_HEIGHT), facecolor=GROUPS[group],
                         alpha=0.55, linewidth=0.0)
        seen.add("group " + group)
    return seen


def ends_of_messages(trace: Trace, step: int) -> dict[tuple[int, int, int], list[float]]:
    """(from, to, number) -> when it was sent and when it had come, in ms."""
    begin = trace.begin(step)
    ends: dict[tuple[int, int, int], list[float]] = {}
    for sends in (1, 0):
        for rank in trace.ranks:
            messages = rank.of_step("messages", step)
            operations = rank.of_step("operations", step)
            if not messages or not operations:
                continue
            times = {(group, ticket): (call, end) for group, ticket, call, end in zip(
                operations["group"], operations["ticket"], operations["call_seconds"],
                operations["end_seconds"])}
            counts: dict[tuple[int, int], int] = {}
            for group, ticket, sent, peer in zip(messages["group"], messages["ticket"],
                                                 messages["sends"], messages["peer"]):
                if int(sent) != sends:
                    continue
                pair = (rank.rank, int(peer)) if sends else (int(peer), rank.rank)
                number = counts[pair] = counts.get(pair, -1) + 1
                if (group, ticket) not in times:
                    continue  # waited for after the step
                call, end = times[group, ticket]
                seconds = (call if sends else end) + rank.begins[step] - begin
                ends.setdefault((*pair, number), []).append(1e3 * seconds)
    return {key: pair for key, pair in ends.items() if len(pair) == 2}


def draw_messages(axes: Axes, trace: Trace, step: int) -> int:
    messages = ends_of_messages(trace, step)
    if len(messages) <= MOST_ARROWS:
        for (source, target, _), (sent, came) in messages.items():
            axes.annotate("", (came, target), (sent, source),
                          arrowprops={"arrowstyle": "-|>", "color": "#333333", "lw": 0.5,
                                      "mutation_scale": 5.0, "shrinkA": 0, "shrinkB": 0})
    return len(messages)


def legend_of(seen: set[str]) -> list[Patch]:
    phases = [Patch(facecolor=COLOURS[label], hatch=HATCHES.get(label), label=label)
              for label in LABELS if label in seen]
    groups = [Patch(facecolor=colour, alpha=0.55, label=f"{group} operations")
              for group, colour in GROUPS.items() if "group " + group in seen]
    return phases + groups


def draw(trace: Trace, step: int, label: str, path: Path) -> list[Path]:
    ranks = trace.ranks[:MOST_RANKS]
    figure, axes = plt.subplots(figsize=(12.0, 2.4 + 0.55 * len(ranks)))
    seen: set[str] = set()
    for row, rank in enumerate(ranks):
        seen |= draw_rank(axes, rank, row, trace, step)
    messages = draw_messages(axes, trace, step) if len(ranks) == len(trace.ranks) else 0
    axes.set_yticks(range(len(ranks)), [rank.name for rank in ranks])
    axes.set_ylim(len(ranks) - 0.35, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("time since the first rank began (ms)")
    axes.set_ylabel("rank")
    notes = [f"step {step} of {label}"]
    notes += [f"{messages} messages between stages are not drawn"] if messages > MOST_ARROWS else []
    notes += [f"the first {MOST_RANKS} of {len(trace.ranks)} ranks"] if len(ranks) < len(
        trace.ranks) else []
    top = add_head(figure, "A step on all ranks", "; ".join(notes))
    bottom = add_legend(figure, legend_of(seen)) if seen else 0.0
    figure.tight_layout(rect=(0.0, bottom, 1.0, top))
    return save(figure, path)


def own_times(spans: list[tuple[str, float, float]]) -> dict[str, float]:
    """Time of each phase without those inside of it, in ms."""
    own = dict.fromkeys(LABELS, 0.0)
    open_spans: list[tuple[str, float]] = []
    for label, start, end in spans:
        while open_spans and open_spans[-1][1] <= start:
            open_spans.pop()
        own[label] += end - start
        if open_spans:
            own[open_spans[-1][0]] -= end - start
        open_spans.append((label, end))
    return own


def kernel_times(spans: list[tuple[str, float, float]]) -> dict[str, float]:
    """Time of each phase with a kernel of it on a GPU, and time without any from the first to the last, in ms. What
    several streams compute at once counts for the kernel that began first."""
    own = dict.fromkeys(LABELS, 0.0)
    until = spans[0][1]  # before it the GPU may be at earlier steps, which the host is ahead of
    for label, start, end in spans:
        own["idle"] += max(0.0, start - until)
        own[label] += max(0.0, end - max(start, until))
        until = max(until, end)
    return own


def phase_table(trace: Trace, step: int) -> str:
    """Time of each phase by rank, in ms."""
    rows = []
    begin = trace.begin(step)
    for rank in trace.ranks:
        kernels = kernel_spans(rank, step, begin)
        own = kernel_times(kernels) if kernels else own_times(phase_spans(rank, step, begin))
        rows.append([rank.name, rank.host, *(f"{own[label]:.2f}" for label in LABELS)])
    used = [0, 1, *(2 + i for i, _ in enumerate(LABELS) if any(row[2 + i] != "0.00"
                                                               for row in rows))]
    header = ["rank", "host", *LABELS]
    return text_table([header[i] for i in used], [[row[i] for i in used] for row in rows])


def note_on_gpus(trace: Trace, step: int) -> list[str]:
    gpus = [rank for rank in trace.ranks if rank.device != "cpu"]
    if not gpus:
        return []
    if all(rank.of_step("kernels", step) for rank in gpus):
        return ["times are those of kernels on the GPUs, by the phase in which the host enqueued them; idle: without "
                "a kernel between the first and the last, such as while a stream waits for a group or for the host, which runs these steps without "
                "CUDA graphs"]
    return ["on GPUs these are the times at which the host enqueued work: CUPTI was not there"]


def trace_steps(name: str, output: Path, step: int | None) -> Sequence[str]:
    """Writes figure trace_STEP and trace_STEP.txt; returns the latter's text and the paths."""
    run = find_runs([name])[0]
    trace = read_trace(run)
    chosen = trace.steps[-1] if step is None else step
    if chosen not in trace.steps:
        raise UserError(f"{trace.start}: step {chosen} was not traced; traced were "
                        f"{', '.join(map(str, trace.steps))}")
    folder = output_folder(output)
    label = f"{run.label} ({trace.start.name}, {len(trace.ranks)} ranks)"
    written = draw(trace, chosen, label, folder / f"trace_{chosen}")
    notes = []
    lost = sum(rank.lost for rank in trace.ranks)
    if lost:
        notes.append(f"{lost} events found no room while the run recorded")
    error = max(rank.clock_error_seconds for rank in trace.ranks)
    if error > 0:
        notes.append(f"clocks of hosts agree within {1e6 * error:.1f} us")
    notes += note_on_gpus(trace, chosen)
    text = "\n\n".join([f"{label}: step {chosen}, ms", phase_table(trace, chosen), *notes])
    written.append(write_report(folder / f"trace_{chosen}.txt", text + "\n"))
    return [text, "", *path_lines(written)]
