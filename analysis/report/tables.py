# SPDX-License-Identifier: Apache-2.0
"""The tables of `report`: a header and rows of text, each row one layout of one run."""
from __future__ import annotations

import math
from typing import Sequence

from analysis.dashes import dash_note
from analysis.deck import differences
from analysis.scaling import COMPUTE, Case, Group, named_decks
from analysis.step_time import MIB
from analysis.tables import number

Table = tuple[list[str], list[list[str]]]

# Columns of the table of parts: together they are the whole step.
PART_COLUMNS: dict[str, tuple[str, ...]] = {
    "compute": COMPUTE, "optimizer": ("optimizer",), "reduce exposed": ("reduce exposed",),
    "tensor": ("tensor",), "context": ("context",), "expert": ("expert",), "pipeline": ("pipeline",), "pipeline idle": ("idle",),
    "wait": ("wait",),
    "data": ("data",), "checkpoint": ("checkpoint",), "other": ("other",), "skew": ("skew",),
}
TITLES = {
    "strong": "Strong scaling",
    "weak": "Weak scaling",
    "single": "Layouts of one rank count",
}


def milliseconds(seconds: float, digits: int = 2) -> str:
    return number(1e3 * seconds, digits)


def percent(share: float) -> str:
    return number(100.0 * share, 1)


def title(group: Group) -> str:
    """What a figure shows: kind of scaling, ranks and work."""
    counts = sorted({case.ranks for case in group.cases})
    ranks = "1 rank" if counts == [1] else f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} ranks"
    return f"{TITLES[group.kind]}: {ranks}, {work_text(group)}"


def numbered_title(number: int, group: Group) -> str:
    """Of text and page, so that notes can name a group by its number."""
    return f"{number}. {title(group)}"


def work_text(group: Group) -> str:
    if group.kind == "weak":
        return f"{group.base.tokens_per_step / group.base.ranks:,.0f} tokens per step and rank"
    return f"{group.base.tokens_per_step:,} tokens per step"


def base_text(group: Group) -> str:
    base = group.base
    return (f"{work_text(group)}; base: {base.ranks_text} of {base.layout.run.label}, {milliseconds(base.step_seconds)} ms "
            "per step")


def first_cells(case: Case) -> list[str]:
    return [case.layout.run.label, str(case.ranks), case.shape]


FIRST_HEADER = ["run", "ranks", "layout"]


def scaling_rows(group: Group) -> Table:
    of_images = not any(math.isnan(case.images_per_second) for case in group.cases)
    header = [*FIRST_HEADER, "hosts", "steps", "step (ms)", "quartiles (ms)", *(["images/s"] if of_images else []),
              "tokens/s", "tokens/s per rank", "speed-up", "efficiency (%)", "MFU, attention as masked (%)", "peak MiB",
              "checkpoints (ms per step)"]
    rows = [[*first_cells(case), str(len(case.hosts)), str(case.steps),
             milliseconds(case.step_seconds),
             f"{milliseconds(case.quartiles[0])} - {milliseconds(case.quartiles[1])}",
             *([number(case.images_per_second, 0)] if of_images else []),
             number(case.tokens_per_second, 0), number(case.tokens_per_second / case.ranks, 0),
             number(group.speed_up(case), 3), percent(group.efficiency(case)),
             percent(case.mfu), number(case.peak_bytes / MIB, 1),
             milliseconds(case.checkpoint_mean_seconds)] for case in group.cases]
    return header, rows


def group_note(group: Group) -> str:
    """What a printed table needs: its dashes, and MFU on CPUs."""
    return " ".join(text for text in (dash_note([scaling_rows(group)]), mfu_note(group)) if text)


def mfu_note(group: Group) -> str:
    """Of starts on CPUs; empty if there is nothing to be said."""
    reported = [case for case in group.cases if not math.isnan(case.mfu) and "cpu" in case.devices]
    return ("MFU on CPUs is a share of the rate that each start measured for itself in a matrix product: between "
            "two starts it can differ although their steps take equally long." if len(reported) > 1 else "")


def part_rows(group: Group) -> Table:
    """Milliseconds and, in brackets, per cent of the step."""
    header = [*FIRST_HEADER, "step (ms)", *(f"{name} (ms, %)" for name in PART_COLUMNS)]
    rows = [[*first_cells(case), milliseconds(case.step_seconds),
             *(f"{milliseconds(seconds)} ({percent(seconds / case.step_seconds)})"
               for seconds in map(case.seconds, PART_COLUMNS.values()))] for case in group.cases]
    return header, rows


def communication_rows(group: Group) -> Table:
    header = [*FIRST_HEADER, "reductions in progress (ms)", "of these exposed (ms)", "exposed (% of these)", "tensor (ms)",
              "pipeline (ms)", "communication (ms)", "exposed communication (ms)", "exposed communication (% of step)"]
    rows = []
    for case in group.cases:
        reducing, exposed = case.reducing_seconds, case.parts["reduce exposed"]
        rows.append([*first_cells(case), milliseconds(reducing), milliseconds(exposed),
                     percent(exposed / reducing) if reducing > 0 else "-", milliseconds(case.parts["tensor"]),
                     milliseconds(case.parts["pipeline"]), milliseconds(case.communication_seconds),
                     milliseconds(case.exposed_seconds), percent(case.exposed_seconds / case.step_seconds)])
    return header, rows


def traffic_rows(group: Group) -> Table:
    header = [*FIRST_HEADER, "group", "calls", "MiB", "in flight (ms)", "waited for (ms)"]
    rows = [[*first_cells(case), name, number(each["calls"], 1), number(each["bytes"] / MIB, 2),
             milliseconds(each["seconds"]), milliseconds(each["exposed_seconds"])]
            for case in group.cases for name, each in case.traffic.items() if each["calls"] > 0]
    return header, rows


def slowest_rows(group: Group) -> Table:
    header = [*FIRST_HEADER, "slowest rank", "host", "its own work (ms)", "above the median (%)"]
    rows = [[*first_cells(case), case.slowest.steps.name, case.slowest.steps.host,
             milliseconds(case.slowest.own_seconds), percent(case.slowest.excess)]
            for case in group.cases]
    return header, rows


def machine_rows(cases: Sequence[Case]) -> Table:
    header = [*FIRST_HEADER, "starts", "started", "device", "threads per rank", "hosts", "commit"]
    rows = [[*first_cells(case), ", ".join(case.layout.starts), case.layout.ranks[0].start_time,
             ", ".join(case.devices), ", ".join(map(str, case.threads)) or "-",
             ", ".join(case.hosts), ", ".join(case.commits)]
            for case in cases]
    return header, rows


def deck_rows(cases: Sequence[Case]) -> Table:
    """A column for each run, or for each key if there are fewer of them: pages are narrow."""
    decks = named_decks(cases)
    found = differences(list(decks.values()))
    if len(found) < len(decks):
        return ["run", *found], [[run, *values] for run, values in zip(decks, zip(*found.values()))]
    return ["deck key", *decks], [[key, *row] for key, row in found.items()]
