# SPDX-License-Identifier: Apache-2.0
"""`check`: holds a run's timings against a limit, for scripts."""
from __future__ import annotations

from dataclasses import dataclass

import h5py
import numpy as np

from analysis.deck import Deck, number_in, read_deck
from analysis.errors import UserError
from analysis.first_steps import skip_text
from analysis.runs import find_runs
from analysis.timings import BUSY, EXPOSED, WAIT, Layout, RankSteps, read_layouts

ABOVE = 1


@dataclass(frozen=True)
class Finding:
    """A ratio of sums over ranks and steps, and what to print of it."""

    ratio: float
    text: str


def total(ranks: list[RankSteps], column: str) -> float:
    return float(sum(rank.columns[column].sum() for rank in ranks))


def worst_rank(ranks: list[RankSteps], part: str, whole: str) -> str:
    """The rank with the largest ratio of its own."""
    ratios = [total([rank], part) / total([rank], whole) if total([rank], whole) > 0 else 0.0
              for rank in ranks]
    worst = ranks[int(np.argmax(ratios))]
    return f"most on rank {worst.name} of {worst.host}: {max(ratios):.4f}"


def steps_text(layout: Layout) -> str:
    return f"{layout.label}: {layout.ranks[0].columns['step'].size} steps"


def wait_text(layout: Layout) -> str:
    ratio = total(layout.ranks, WAIT) / total(layout.ranks, "step_seconds")
    return (f"; ranks wait for slower ones {ratio:.4f} of the step, "
            f"{worst_rank(layout.ranks, WAIT, 'step_seconds')}")


def union_seconds(starts: np.ndarray, ends: np.ndarray) -> float:
    """Length of what the intervals cover together."""
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    before = np.concatenate([starts[:1], ends[:-1]])
    return float(np.maximum(ends - np.maximum(starts, before), 0.0).sum())


def traced_text(layout: Layout) -> str:
    """The same from traced steps, in which time with several reductions in progress counts once."""
    exposed = busy = 0.0
    count = 0
    folder = layout.run.path / "timing"
    for start in layout.starts:
        for rank in layout.ranks:
            with h5py.File(folder / start / f"rank_{rank.rank:05d}.h5", "r") as file:
                if "events/name" not in file:
                    continue
                names = np.array([bytes(name) for name in file["events/name"][()]])
                step_of = np.asarray(file["events/step"])[:names.size]
                begin = np.asarray(file["events/start_seconds"])[:names.size]
                end = np.asarray(file["events/end_seconds"])[:names.size]
            measured = rank.columns["step"]
            for step in np.intersect1d(step_of, measured):
                rows = (step_of == step) & (names == b"reduce")
                busy += union_seconds(begin[rows], end[rows])
                exposed += float(rank.columns[EXPOSED][measured == step][0])
                count += 1
    if busy <= 0:
        return ""
    return (f"; {min(1.0, exposed / busy):.4f} of the time with a reduction in progress on {count} traced "
            "steps of ranks")


def busy_overlap_of(layout: Layout) -> Finding | None:
    """The time with at least one reduction in progress is the whole."""
    exposed, whole = total(layout.ranks, EXPOSED), total(layout.ranks, BUSY)
    if whole <= 0:
        return None
    ratio = exposed / whole
    return Finding(ratio, f"{steps_text(layout)}, exposed {ratio:.4f} of the time with a gradient "
                          f"reduction in progress ({exposed:.4f} s of {whole:.4f} s over all ranks); "
                          f"{worst_rank(layout.ranks, EXPOSED, BUSY)}{wait_text(layout)}")


def overlap_of(layout: Layout) -> Finding | None:
    """Where files do not report for how long any reduction was in progress, those in progress at once are
    counted each, but never as longer than their step."""
    if all(BUSY in rank.columns for rank in layout.ranks):
        return busy_overlap_of(layout)
    exposed = total(layout.ranks, EXPOSED)
    ranks = [rank.with_column("reduce_seconds", np.minimum(rank.columns["reduce_seconds"],
                                                           rank.columns["step_seconds"]))
             for rank in layout.ranks]
    whole = total(ranks, "reduce_seconds")
    if whole <= 0:
        return None
    ratio = exposed / whole
    return Finding(ratio, f"{steps_text(layout)}, exposed {ratio:.4f} of the gradient reductions "
                          f"({exposed:.4f} s of {whole:.4f} s over all ranks); "
                          f"{worst_rank(ranks, EXPOSED, 'reduce_seconds')}"
                          f"{traced_text(layout)}{wait_text(layout)}")


def bubble(deck: Deck, layout: Layout) -> str:
    """The schedule's own idle share (p-1) / (v m + p-1), see Narayanan et al. 2021, 2.2."""
    if deck.get("parallel.schedule") not in ("gpipe", "1f1b", "interleaved"):
        return ""
    batch, microbatch, virtual = (number_in(deck, key, layout.run) for key in (
        "train.global_batch", "train.microbatch", "parallel.virtual_stages"))
    data, stages = layout.sizes[:2]
    waits = stages - 1
    return (f"; the schedule's own is {waits / (virtual * batch / data / microbatch + waits):.4f}"
            if microbatch else "")


def idle_of(layout: Layout, deck: Deck | None) -> Finding | None:
    if layout.sizes[1] == 1:
        return None
    ratio = total(layout.ranks, "pipeline_idle_seconds") / total(layout.ranks, "step_seconds")
    return Finding(ratio, f"{steps_text(layout)}, pipeline idle {ratio:.4f} of the step; "
                          f"{worst_rank(layout.ranks, 'pipeline_idle_seconds', 'step_seconds')}"
                          f"{bubble(deck, layout) if deck else ''}")


def check(what: str, name: str, limit: float, skip: int) -> tuple[str, int]:
    """What to print, and 1 if a layout of the run is above the limit, else 0."""
    run = find_runs([name])[0]
    layouts, notes = read_layouts(run, skip, strict=True)
    if what == "overlap":
        found = [overlap_of(layout) for layout in layouts]
        missing = "no gradient was reduced; check a run with parallel.data above 1"
    else:
        has_deck = (run.path / "deck.yaml").is_file()
        found = [idle_of(layout, read_deck(run) if has_deck and layout is layouts[-1] else None)
                 for layout in layouts]
        missing = "there is one pipeline stage; check a run with parallel.pipeline above 1"
    findings = [finding for finding in found if finding is not None]
    if not findings:
        raise UserError(f"{run.path}: {missing}")
    lines = [f"{'ABOVE' if finding.ratio > limit else 'within'} {limit:g}: {finding.text}"
             for finding in findings]
    above = any(finding.ratio > limit for finding in findings)
    return "\n".join([*lines, *(f"note: {note}" for note in [skip_text(skip), *notes])]), ABOVE if above else 0
