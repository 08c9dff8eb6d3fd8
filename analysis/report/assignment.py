# SPDX-License-Identifier: Apache-2.0
"""`report --template assignment`: one report over several studies as courses want it, at most four pages, and an appendix.

Setup once, profiling with tables beside their figures, background of what was used, trade-offs, and extra work.
"""
from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Sequence

from analysis.deck import Deck
from analysis.errors import UserError
from analysis.first_steps import skip_text
from analysis.report.content import Content, title_of
from analysis.report.document import Document, Drawing, Section, Sheet, rendered_pages
from analysis.report.optimizations import TRAIN, Optimization, pair_sentence, pairs, read_optimizations
from analysis.report.page import group_section
from analysis.report.ranges import memory_sentence, range_sentences, trade_sentences
from analysis.report.setup import Source, setup_section
from analysis.report.studies import extreme_sentences
from analysis.runs import FINAL_LOSS
from analysis.scaling import Case, Group
from analysis.study.settings import value_text
from analysis.tables import counted
from analysis.yaml_files import load_yaml

MOST_PAGES = 4
# The report says these sentences for notes that begin so.
DISTURBED = {"other programs used the machine": "other programs used the machine, so that times vary",
             "more ranks than cores": "points had more ranks than cores, so that their speed-ups say nothing of more cores"}
NOTHING_MORE = "Nothing beyond the profiled optimizations was used."
# Courses count these as extra work; the names are those of optimizations.yaml.
EXTRA = ("Tensor parallelism", "Sequence parallelism", "Pipeline parallelism", "One forward, one backward (1F1B)", "Interleaved stages",
         "Zero-bubble schedule", "Sharded optimizer state (zero 1)", "Sharded optimizer state and gradients (zero 2)",
         "Sharded parameters (zero 3)", "Context parallelism", "Mixture of experts", "Fake quantization (quantization-aware training)", "FP8", "Muon",
         "Image loader")


@dataclass(frozen=True)
class Detail:
    """How much of each study the pages hold."""

    rows: int
    sentences: int
    figures: int
    whole_background: bool


# From the most to the least; the first that fits is taken.
DETAILS = (Detail(14, 6, 2, True), Detail(12, 6, 1, True), Detail(10, 5, 1, True), Detail(8, 4, 1, True), Detail(6, 3, 1, True),
           Detail(6, 3, 1, False), Detail(5, 2, 1, False), Detail(3, 1, 1, False))
UNCOUNTED = 4  # of DETAILS, where pages cannot be counted


@dataclass(frozen=True)
class Assignment:
    document: Document
    pages: int  # 0: not counted
    notes: list[str]


def flat_deck(path: str) -> Deck:
    """Keys of a deck that a point was started from; none if it can no longer be read."""
    try:
        content = load_yaml(Path(path)) if path else {}
    except UserError:
        return {}
    return {f"{section}.{key}": value_text(value) for section, keys in content.items() if isinstance(keys, dict)
            for key, value in keys.items()}


def started(content: Content) -> list[tuple[str, Deck]]:
    """Commands and keys of the points of a study."""
    if content.study is None:
        return []
    decks: dict[str, Deck] = {}
    found = []
    for record in content.study.result.records:
        settings: dict[str, Any] = record.settings
        deck = decks.setdefault(str(settings["deck"]), flat_deck(str(settings["deck"])))
        found.append((str(settings["command"]), deck | {key: value_text(value) for key, value in settings.items() if "." in key}))
    return found


def used(parts: Sequence[Content]) -> list[Optimization]:
    """In the order of optimizations.yaml."""
    cases = [case for part in parts for case in part.cases]
    points = [point for part in parts for point in started(part)]
    return [each for each in read_optimizations() if any(each.is_used(case) for case in cases)
            or any(each.is_used_by(command, deck) for command, deck in points)]


def setup(parts: Sequence[Content]) -> Section:
    """Of all studies together: what they have in common stands once."""
    sources = [part.source for part in parts]
    every = Source([case for each in sources for case in each.cases], [run for each in sources for run in each.runs],
                   [bench for each in sources for bench in each.benches], [machine for each in sources for machine in each.machines],
                   [deck for each in sources for deck in each.decks])
    section = setup_section(every)
    rows = [["studies", "; ".join(title_of(part) for part in parts)], *section.sheets[0].rows]
    return replace(section, title="1. Experimental setup", after=measured_notes(parts), sheets=[replace(section.sheets[0], rows=[list(row) for row in rows])])


def measured_notes(parts: Sequence[Content]) -> list[str]:
    """How the numbers are to be read, and whose times other programs disturbed."""
    skipped = sorted({part.skip for part in parts if part.cases})
    notes = [skip_text(skipped[0])] if len(skipped) == 1 else [
        f"Of each start the first {' or '.join(map(str, skipped))} steps are left out, as its study says."] if skipped else []
    notes += [FINAL_LOSS] if any(FINAL_LOSS in part.notes for part in parts) else []
    for how, words in DISTURBED.items():
        count = sum(any(note.startswith(how) for note in part.notes) for part in parts)
        notes += [f"In {count} of {counted(len(parts), 'part')} of this report {words}."] if count else []
    return [" ".join(notes)] if notes else []


def narrowed(sheet: Sheet, drawings: Sequence[Drawing]) -> Sheet:
    """Beside a figure of one column without columns of changes, which the sentences have, if it fits there without them."""
    kept = [index for index, name in enumerate(sheet.header) if ", change" not in name]
    less = replace(sheet, header=[sheet.header[index] for index in kept], rows=[[row[index] for index in kept] for row in sheet.rows])
    return less if len(drawings) == 1 and Section("", drawings=list(drawings), sheets=[less]).is_beside else sheet


def shortened(sheet: Sheet, rows: int) -> tuple[Sheet, str]:
    """The first rows; the second says how many are left out."""
    gone = len(sheet.rows) - rows
    if gone <= 0:
        return sheet, ""
    return replace(sheet, rows=list(sheet.rows)[:rows], base=sheet.base if sheet.base < rows else -1), \
        f"{gone} more {'row of this table is' if gone == 1 else 'rows of this table are'} in the study's .csv."


def several(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if len(group.cases) > 1]


def profile(number: int, folder: str, content: Content, detail: Detail) -> Section:
    """One study: its sentences, and its tables beside its figures."""
    drawings: list[Drawing] = []
    sheets: list[Sheet] = []
    said: list[str] = []
    if content.study is not None:
        part, result = content.study, content.study.result
        own = part.sections[0].in_part(folder)
        drawings, sheets = own.drawings, list(own.sheets)
        said = range_sentences(result) or extreme_sentences(result)
        said += [text for text in (memory_sentence(result.rows),) if text]
    if not drawings:
        for group in several(content.groups)[:1]:
            own = group_section(1, group).in_part(folder)
            drawings, sheets, said = own.drawings, [*sheets, own.sheets[0]], [*said, *own.points]
    drawings = drawings[:detail.figures]
    kept, left = shortened(narrowed(sheets[0], drawings), detail.rows) if sheets else (None, "")
    more = len(said) - detail.sentences
    after = [left] if left else []
    after += [f"{more} more {'comparison is' if more == 1 else 'comparisons are'} in the appendix (--appendix)."] if more > 0 else []
    return Section(f"2.{number} {title_of(content)}", [content.study.about] if content.study and content.study.about and detail.figures > 1 else [],
                   said[:detail.sentences], drawings, [kept] if kept else [], after, 3)


def background(found: Sequence[Optimization], detail: Detail) -> Section:
    def text(each: Optimization) -> str:
        words = each.text if detail.whole_background else each.text.split(". ")[0].rstrip(".") + "."
        return f"{each.name}: {words} ({each.source}.)"

    return Section("3. Background", [text(each) for each in found] or ["No optimization of the list was used."], style="columns")


def trade_offs(parts: Sequence[Content], detail: Detail) -> Section:
    points = []
    for part in parts:
        said = trade_sentences(part.study.result) if part.study else []
        points += [f"{part.study.result.study.title}. {' '.join(said[:detail.sentences])}"] if part.study and said else []
    return Section("4. Trade-offs", [] if points else ["No study compares rows by a base or along sizes, so that there is no trade-off to report."],
                   points)


def effect(each: Optimization, cases: Sequence[Case]) -> str:
    """What runs that differ in it alone measured."""
    found = [pair_sentence(plain, other) for plain, other in pairs(each, cases)] if TRAIN in each.commands else []
    return f"{each.name}. {' '.join(found)}" if found else f"{each.name}. No two runs differ in it alone; its rows are in section 2."


def extra(parts: Sequence[Content], found: Sequence[Optimization], detail: Detail) -> Section:
    cases = [case for part in parts for case in part.cases]
    points = [effect(each, cases) for each in found if each.name in EXTRA]
    return Section("5. Extra work", [] if points else [NOTHING_MORE], points[:2 * detail.sentences])


def main_sections(parts: dict[str, Content], detail: Detail) -> list[Section]:
    contents = list(parts.values())
    found = used(contents)
    profiles = [profile(number, folder, content, detail) for number, (folder, content) in enumerate(parts.items(), 1)]
    return numbered([setup(contents), Section("2. Profiling"), *profiles, background(found, detail), trade_offs(contents, detail),
                     extra(contents, found, detail)])


def numbered(sections: Sequence[Section]) -> list[Section]:
    """Captions of figures and tables, counted over the report; a figure's title is its caption."""
    figures, tables = itertools.count(1), itertools.count(1)
    return [replace(section, drawings=[replace(each, caption=f"Figure {next(figures)}. {each.caption or each.label.partition('; the table')[0]}")
                                       for each in section.drawings],
                    sheets=[replace(each, caption=f"Table {next(tables)}. {each.caption}") for each in section.sheets])
            for section in sections]


def without_drawn(sections: Sequence[Section], drawn: set[str]) -> list[Section]:
    """Of the appendix: figures of the main part are not drawn again."""
    return [replace(each, drawings=[drawing for drawing in each.drawings if drawing.name not in drawn]) for each in sections]


def fullest(parts: dict[str, Content], empty: Document) -> tuple[Document, int]:
    """The most detailed document of at most MOST_PAGES and its pages, by halving; else the least detailed."""
    def of(index: int) -> tuple[Document, int]:
        document = replace(empty, sections=main_sections(parts, DETAILS[index]))
        return document, rendered_pages(document)

    low, high, found = 0, len(DETAILS) - 1, of(UNCOUNTED)
    if found[1] == 0:
        return found
    best = found if found[1] <= MOST_PAGES else None
    low, high = (low, UNCOUNTED - 1) if best else (UNCOUNTED + 1, high)
    while low <= high:
        middle = (low + high) // 2
        found = of(middle)
        if found[1] <= MOST_PAGES:
            best, high = found, middle - 1
        else:
            low = middle + 1
    return best or found


def compose(parts: dict[str, Content], appendix: Sequence[Section]) -> Assignment:
    """The fullest form whose main part takes at most MOST_PAGES; without WeasyPrint a middle one, not counted."""
    title = "Training, profiled"
    lead = f"{counted(len(parts), 'study') if len(parts) == 1 else f'{len(parts)} studies'} of transformer training. Every sentence with a number is made from the tables of its runs."
    document, pages = fullest(parts, Document(title, lead, [], "assignment.html.j2"))
    notes = [f"the main part takes {counted(pages, 'page')} of A4" if pages else
             "the pages were not counted, since there is no weasyprint: apt install weasyprint"]
    notes += [f"that is more than {MOST_PAGES}: name fewer studies"] if pages > MOST_PAGES else []
    drawn = {drawing.name for drawing in document.drawings}
    later = [Section("Appendix", level=1, style="appendix"), *without_drawn(appendix, drawn)] if appendix else []
    return Assignment(replace(document, sections=[*document.sections, *later]), pages, notes)
