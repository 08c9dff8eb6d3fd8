# SPDX-License-Identifier: Apache-2.0
"""The deck of each start of a run, and in what starts differ that one run joins."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from analysis.deck import Deck, is_bound, matters, read_deck, read_deck_file, whole_in
from analysis.runs import NO_STEP, Run, read_metrics

MOST_CHANGES = 4
Span = tuple[int, int]  # the first and the last step
NO_STEPS = (0, 0)


@dataclass(frozen=True)
class Start:
    """A start that trained steps; `first_step` None: no timing file reports it."""

    name: str
    deck: Deck
    first_step: int | None


@dataclass(frozen=True)
class Change:
    """A deck key that a later start of the run set to another value."""

    key: str
    old: str
    new: str
    start: Start

    def mark(self) -> str:
        """The step from which the new value counts, as far as it is known."""
        step = self.start.first_step
        if step is None:
            return f"in {self.start.name}"
        every_step = self.start.deck.get("timing.every", "1") == "1"
        return f"at step {step}" if every_step else f"at step {step} or before"


def number_of(path: Path) -> tuple[int, str]:
    """start_9999 comes before start_10000."""
    return int(re.sub(r"\D", "", path.stem) or 0), path.name


def start_folders(run: Run) -> list[Path]:
    """Folders of timing files in the order of the starts."""
    folders = [path for path in (run.path / "timing").glob("start_*") if path.is_dir()]
    return sorted(folders, key=number_of)


def no_start_text(run: Run) -> str:
    """What was looked for, and what to do."""
    return f"there is no {run.path / 'timing/start_*'} with rank_*.h5; {NO_STEP}"


def deck_path(run: Run, start: str) -> Path:
    return run.path / "decks" / f"{start}.yaml"


def has_own_deck(run: Run, start: str) -> bool:
    return deck_path(run, start).is_file()


def deck_of_start(run: Run, start: str) -> Deck:
    """The deck that start resolved; of runs that kept none, deck.yaml, which is the newest start's."""
    return read_deck_file(deck_path(run, start)) if has_own_deck(run, start) else read_deck(run)


def same_work(run: Run, first: str, second: str) -> bool:
    """Whether steps of two starts may be measured together: no key differs that changes what a step
    computes or how. Starts without decks of their own are told apart by their files alone."""
    if not has_own_deck(run, first) or not has_own_deck(run, second):
        return True
    one, two = deck_of_start(run, first), deck_of_start(run, second)
    return not any(is_bound(key) or key.startswith("parallel.") or key == "train.microbatch"
                   for key in one if one[key] != two.get(key, one[key]))


def span_of(folder: Path) -> Span | None:
    """The first and last step in the files of a start; None if no file can be read, NO_STEPS
    if none has a row, as of a start that was killed before it wrote any."""
    import h5py

    span: Span | None = None
    for path in sorted(folder.glob("rank_*.h5")):
        try:
            with h5py.File(path, "r") as file:
                steps = file["steps/step"]
                if steps.size:
                    return int(steps[0]), int(steps[-1])
                span = NO_STEPS
        except (OSError, KeyError):
            continue
    return span


def end_of_metrics(run: Run) -> int:
    return int(read_metrics(run).steps[-1]) if (run.path / "metrics.jsonl").is_file() else 0


def lasting_steps(run: Run) -> dict[str, Span]:
    """By start, the first and the last of its timed steps that no later start did again: to them
    metrics.jsonl belongs. Starts without such steps are not in it."""
    lasting: dict[str, Span] = {}
    following = 0
    for folder in reversed(start_folders(run)):
        span = span_of(folder)
        if not span or span == NO_STEPS:
            continue
        last = min(span[1], following - 1) if following else span[1]
        if last >= span[0]:
            lasting[folder.name] = (span[0], last)
        following = min(following or span[0], span[0])
    return lasting


def starts_that_count(run: Run) -> list[Start]:
    """Starts with decks of their own and with steps that no later start did again, in order. One
    without a row of timings counts if it alone can have done the steps around it."""
    found = [(path, span_of(run.path / "timing" / path.stem))
             for path in sorted((run.path / "decks").glob("start_*.yaml"), key=number_of)]
    kept: list[Start] = []
    ends = [0]
    for index, (path, span) in enumerate(found):
        deck = read_deck_file(path)
        if span == NO_STEPS:
            later = [other[0] for _, other in found[index + 1:] if other and other != NO_STEPS]
            following = later[0] if later else end_of_metrics(run) + 1
            if following <= ends[-1] + whole_in(deck, "timing.every", 1):
                continue
        first = span[0] if span and span != NO_STEPS else None
        while kept and first is not None and (kept[-1].first_step or 0) >= first:
            kept.pop()
            ends.pop()
        kept.append(Start(path.stem, deck, first))
        ends.append(span[1] if span and first else ends[-1])
    return kept


def trained_deck(run: Run) -> Deck:
    """Of the newest start that trained steps; of runs that kept no decks of starts, deck.yaml."""
    starts = starts_that_count(run)
    return starts[-1].deck if starts else read_deck(run)


def changes_of(run: Run) -> list[Change]:
    """What starts of a run trained differently; a key that one of their decks lacks is no change."""
    starts = starts_that_count(run)
    return [Change(key, old.deck[key], new.deck[key], new)
            for old, new in zip(starts, starts[1:]) for key in old.deck
            if matters(key) and new.deck.get(key, old.deck[key]) != old.deck[key]]


def mixed_text(run: Run) -> str:
    """Such as "mixed: optimizer.lr 0.003 -> 0.01 at step 101"; empty if all starts agree."""
    changes = changes_of(run)
    reported = [f"{change.key} {change.old} -> {change.new} {change.mark()}"
                for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        reported.append(f"and {len(changes) - MOST_CHANGES} more")
    return f"mixed: {'; '.join(reported)}" if reported else ""
