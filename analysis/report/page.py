# SPDX-License-Identifier: Apache-2.0
"""The sections of a report on runs: groups that scale, learning curves, runs, and how it is measured."""
from __future__ import annotations

from typing import Callable, Sequence

from analysis.first_steps import skip_text
from analysis.learning import draw_steps, lines_of, panels_of, run_numbers
from analysis.report.document import Drawing, Section, Sheet
from analysis.report.plot import draw_group
from analysis.report.sentences import law_sheet, scaling_sentences
from analysis.report.tables import (
    Table, base_text, communication_rows, deck_rows, machine_rows, mfu_note,
    numbered_title, part_rows, scaling_rows, slowest_rows, traffic_rows,
)
from analysis.runs import FINAL_LOSS, TRAINING_LOSS, Metrics, Run, read_metrics
from analysis.scaling import Case, Group
from analysis.tables import counted

CURVE_ROWS = ("last step", "diverged", TRAINING_LOSS, "final loss", "validation loss, last",
              "validation perplexity, last", "validation token accuracy, last (%)", "validation top-1, last (%)",
              "validation top-5, last (%)", "images/s, median", "tokens", "wall time (s)")

NOTHING = ("0.00 (0.0)", "0.00", "-")
PARTS_CAPTION = "Parts of a step, adding up to it; what took no time is left out"

TRAFFIC_SUM = "Transfers overlap each other and the computation, so their sum may exceed the step."
OTHER = ("Other is what a rank's step has beyond its named parts. Between its passes a pipeline rank lets MPI advance its "
         "transfers; where ranks share cores MPI yields the core there, and other is the wait until the rank has one again.")
METHOD = (
    "Seconds come from the timing files of every rank. A step lasts until its slowest rank ends "
    "it; the time per step is the median over steps, its spread the first and third quartile. The "
    "parts are means over ranks and over the steps between the quartiles, scaled to the median, so "
    "that they add up to it.",
    "Compute is forward and backward. Idle is the time in which a stage of the pipeline has no microbatch to compute. Checkpoints per step are the mean over all steps, since the "
    "median step writes none. " + OTHER + " Skew is the time from the mean rank's end of a step to the slowest rank's.",
    "Speed-up is the ratio of tokens per second to the base, efficiency the speed-up divided by "
    "the ratio of ranks. The base is the fastest run with its rank count.",
    "Runs of equal tokens per step are strong scaling. Runs of equal tokens per step and rank are weak "
    "scaling if two rank counts have runs that are in no strong scaling, or one has and the runs begin at "
    "the fewest ranks: between strong runs of several batches equal tokens per rank are chance.",
    "Communication is the time with at least one reduction of gradients in progress, and the time that a rank waits "
    "for tensor and pipeline communication. Exposed communication is what of it the step waits for. Waiting for slower "
    "ranks (wait) is no communication, and a part of the step by itself.",
    "Traffic is the mean over steps and over the ranks of a group: bytes of the buffers handed in, the time in flight "
    "from each call to its end, and the time that the host waits for the group, be it for the transfer, for a slower rank "
    "or for another stage. " + TRAFFIC_SUM,
    FINAL_LOSS,
    "The slowest rank is the one with the most work of its own: its step without the time that it "
    "waits for other ranks, which ranks share.",
)


def sheet(caption: str, table: Table, text: bool = False, base: int = -1) -> Sheet:
    return Sheet(caption, table[0], table[1], text, base)


def picture_name(number: int) -> str:
    return "scaling" if number == 1 else f"scaling_{number}"


def without_nothing(table: Table) -> Table:
    """Without columns in which no cell says anything: pages are narrow."""
    header, rows = table
    kept = [index for index in range(len(header)) if any(row[index] not in NOTHING for row in rows)]
    return [header[index] for index in kept], [[row[index] for index in kept] for row in rows]


def group_section(number: int, group: Group) -> Section:
    base = next(index for index, case in enumerate(group.cases) if case is group.base)
    drawing = Drawing(picture_name(number), draw_group(group),
                      "Rate, speed-up and efficiency by ranks, and where the time of a median step went. Filled marks: "
                      "the fastest layout of a rank count; hollow marks: others." if group.kind != "single" else
                      "Where the time of a median step went.",
                      f"Rate, speed-up, efficiency and parts of a step of group {number}; the tables below hold the "
                      "same numbers")
    sheets = [sheet("Time per step, rate, speed-up", scaling_rows(group), base=base)]
    sheets += [sheet(caption, table, base=base) for caption, table in (
        (PARTS_CAPTION, without_nothing(part_rows(group))), ("Communication", communication_rows(group)),
        ("Slowest rank", slowest_rows(group)))]
    laws = law_sheet(group)
    traffic = traffic_rows(group)
    sheets += [laws] if laws else []
    sheets += [sheet(f"Traffic of a step and rank, by group. {TRAFFIC_SUM}", traffic)] if traffic[1] else []
    note = mfu_note(group)
    return Section(numbered_title(number, group), [base_text(group)], scaling_sentences(group), [drawing], sheets,
                   [note] if note else [])


def alone_table(numbered: Sequence[tuple[int, Group]], rows_of: Callable[[Group], Table],
                left_out: Sequence[str] = ()) -> Table:
    """The rows of several groups below each other, with the number of each; without columns of nothing."""
    header = rows_of(numbered[0][1])[0]
    kept = [index for index, name in enumerate(header) if index > 0 and name not in left_out]
    rows = [[row[0], str(number), *(row[index] for index in kept)] for number, group in numbered for row in rows_of(group)[1]]
    return without_nothing(([header[0], "group", *(header[index] for index in kept)], rows))


def alone_section(numbered: Sequence[tuple[int, Group]]) -> Section:
    """Groups of one run each, in one place: they compare nothing."""
    sheets = [sheet("Time per step and rate", alone_table(numbered, scaling_rows, ("speed-up", "efficiency (%)"))),
              sheet(PARTS_CAPTION, alone_table(numbered, part_rows))]
    several = [each for each in numbered if each[1].base.ranks > 1]
    if several:
        sheets += [sheet("Communication", alone_table(several, communication_rows)),
                   sheet("Slowest rank", alone_table(several, slowest_rows))]
    return Section("Runs that are in no group with others", [
        "They differ from each other in more than ranks and layout, so no speed-ups are made of them; what changes "
        "with one setting is reported by the other sections."], sheets=sheets)


def group_sections(groups: Sequence[Group]) -> list[Section]:
    """By number, so that notes can name a group; several groups of one run share a section."""
    alone = [(number, group) for number, group in enumerate(groups, 1) if len(group.cases) == 1]
    if len(alone) < 2:
        return [group_section(number, group) for number, group in enumerate(groups, 1)]
    return [*(group_section(number, group) for number, group in enumerate(groups, 1) if len(group.cases) > 1),
            alone_section(alone)]


def panel_words(found: Sequence[Metrics]) -> str:
    """Such as "Loss, top-1 and top-5"."""
    words = [panel.label.split(" (")[0] for panel in panels_of(found)]
    text = f"{', '.join(words[:-1])} and {words[-1]}"
    return text[0].upper() + text[1:]


def learning_section(runs: Sequence[Run]) -> list[Section]:
    found = [read_metrics(run) for run in runs if (run.path / "metrics.jsonl").is_file()]
    if not found:
        return []
    columns = [run_numbers(metrics) for metrics in found]
    names = lines_of(found, CURVE_ROWS)
    rows = [[metrics.run.label, *(column[name] for name in names)] for metrics, column in zip(found, columns)]
    drawing = Drawing("learning", draw_steps(found), "Lines: training; marks: validation.",
                      f"{panel_words(found)} against steps; the table below holds the last values")
    return [Section("Learning curves", drawings=[drawing],
                    sheets=[Sheet("Losses in nats", ["run", *names], rows)])]


def runs_section(cases: Sequence[Case]) -> Section:
    decks = deck_rows(cases)
    sheets = [sheet("Starts, hardware and commits", machine_rows(cases), text=True)]
    sheets += [sheet("Deck keys that differ, without names and layout", decks, text=True)] if decks[1] else []
    return Section("Runs", sheets=sheets,
                   after=[] if decks[1] else ["The decks differ in nothing but names and layout."])


def lead_text(groups: Sequence[Group], runs: Sequence[Run], cases: Sequence[Case], skip: int) -> str:
    compared_text = (f" in {counted(len(groups), 'group')}; only runs of one group make speed-ups"
                     if any(len(group.cases) > 1 for group in groups) else "")
    return (f"{counted(len(cases), 'layout')} of {counted(len(runs), 'run')}{compared_text}. {skip_text(skip)}")
