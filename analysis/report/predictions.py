# SPDX-License-Identifier: Apache-2.0
"""The section of a report that sets what `plan` said before a run or a point beside what was measured."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from analysis.report.document import Section, Sheet
from analysis.report.tables import FIRST_HEADER, first_cells
from analysis.scaling import Case
from analysis.step_time import MIB
from analysis.study.measured import error_of
from analysis.study.prediction import read_prediction
from analysis.study.rows import Row
from analysis.tables import counted, number


@dataclass(frozen=True)
class Compared:
    """Predicted and measured memory in bytes and step in seconds; NaN: not known."""

    cells: list[str]
    memory: tuple[float, float]
    step: tuple[float, float]


def worst_sentence(what: str, pairs: Sequence[tuple[float, float]], of: str) -> str:
    """Empty if nothing was predicted."""
    errors = [abs(error) for error in (error_of(*pair) for pair in pairs) if not math.isnan(error)]
    if not errors:
        return ""
    return (f"The {what} of the plans, made before each run, differs from the measured one by at most "
            f"{number(100.0 * max(errors), 1)} %, in the median by {number(100.0 * float(np.median(errors)), 1)} %, over "
            f"{counted(len(errors), of)}.")


def compared_cells(pair: tuple[float, float], unit: float) -> list[str]:
    return [*(number(value * unit, 2) for value in pair), number(100.0 * error_of(*pair), 1)]


def prediction_section(header: Sequence[str], found: Sequence[Compared], of: str) -> list[Section]:
    """`header`: of the first cells; `of`: what a row is. No section if nothing was predicted."""
    if not found:
        return []
    timed = any(not math.isnan(each.step[0]) for each in found)
    rows = [[*each.cells, *compared_cells(each.memory, 1 / MIB), *(compared_cells(each.step, 1e3) if timed else [])]
            for each in found]
    reported = [worst_sentence("memory of the fullest rank", [each.memory for each in found], of),
                worst_sentence("time of a step", [each.step for each in found], of)]
    columns = [*header, "predicted (MiB)", "measured peak (MiB)", "difference (%)",
               *(["predicted step (ms)", "measured step (ms)", "difference (%)"] if timed else [])]
    caption = f"Memory of the fullest rank{', and time of a step' if timed else ''}"
    return [Section("Predicted beside measured", points=[text for text in reported if text],
                    sheets=[Sheet(caption, columns, rows)])]


def predictions_of_runs(cases: Sequence[Case]) -> list[Section]:
    """Of training runs that were predicted before they started, as jobs/study.py does."""
    plans = [(case, read_prediction(case.layout.run.path)) for case in cases]
    return prediction_section(FIRST_HEADER, [
        Compared(first_cells(case), (plan.memory_of("train"), case.peak_bytes), (plan.step_seconds, case.step_seconds))
        for case, plan in plans if not math.isnan(plan.memory_bytes)], "layout")


def predictions_of_rows(titles: dict[str, str], rows: Sequence[Row]) -> list[Section]:
    """Of a study's rows that `bench` measured; `titles` of their labels. A plan is of a whole step."""
    values = [(row, (row.value("memory_predicted_bytes"), row.value("memory_peak_bytes")),
               (row.value("step_predicted_seconds"), row.value("step_seconds"))) for row in rows]
    return prediction_section(list(titles.values()), [
        Compared([row.labels.get(name, "") for name in titles], memory, step)
        for row, memory, step in values if not math.isnan(error_of(*memory))], "row")
