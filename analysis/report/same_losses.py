# SPDX-License-Identifier: Apache-2.0
"""Whether the layouts of a group compute the same: their losses at equal steps beside what `hyperslab parity` allows."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.deck import Deck, curve_keys
from analysis.runs import read_metrics
from analysis.scaling import Case, Group

EARLY_STEPS = 10
# Relative differences up to EARLY_STEPS and later, as parity_tolerance() of src/parity/parity.cpp has them.
LIMITS = {"fp32": (1e-5, 1e-4), "tf32": (1e-3, 5e-3)}
LOW_PRECISION_LIMITS = (5e-3, 2e-2)


@dataclass(frozen=True)
class Difference:
    """The largest of some steps, relative to the loss of the base; `run`: whose it is."""

    value: float
    step: int
    run: str


def limits_of(deck: Deck) -> tuple[float, float]:
    is_fp8 = deck.get("precision.gemm", "compute") != "compute"
    return LOW_PRECISION_LIMITS if is_fp8 else LIMITS.get(deck.get("precision.compute", ""), LOW_PRECISION_LIMITS)


def has_losses(case: Case) -> bool:
    return (case.layout.run.path / "metrics.jsonl").is_file()


def same_training(group: Group) -> list[Case]:
    """The base, and a case of every other run that differs from it in nothing that changes the training."""
    found = {group.base.layout.run.path: group.base}
    for case in group.cases:
        if not curve_keys([group.base.deck, case.deck]):
            found.setdefault(case.layout.run.path, case)
    return [case for case in found.values() if has_losses(case)]


def differences(base: Case, other: Case) -> list[Difference]:
    """Of every step that both runs have; infinite where one loss is no number."""
    ours, theirs = (dict(zip(metrics.steps, metrics.column("loss")))
                    for metrics in (read_metrics(each.layout.run) for each in (base, other)))
    label = other.layout.run.label
    found = [(step, abs(theirs[step] - loss) / abs(loss) if loss else math.inf) for step, loss in ours.items() if step in theirs]
    return [Difference(math.inf if np.isnan(value) else float(value), int(step), label) for step, value in found]


def largest_text(found: Difference, limit: float) -> str:
    value = "0" if found.value == 0 else f"{found.value:.1e}"
    return f"by at most {value} of the loss (step {found.step}, {found.run}; `hyperslab parity` allows {limit:g})"


def same_losses_sentence(group: Group) -> str:
    """Empty if no two runs of the group train the same."""
    cases = same_training(group)
    if len(cases) < 2 or cases[0] is not group.base:
        return ""
    every = [each for case in cases[1:] for each in differences(group.base, case)]
    parts = []
    agrees = True
    for when, limit, found in zip((f"up to step {EARLY_STEPS}", "later"), limits_of(group.base.deck), (
            [each for each in every if each.step <= EARLY_STEPS], [each for each in every if each.step > EARLY_STEPS])):
        if found:
            worst = max(found, key=lambda each: each.value)
            agrees = agrees and worst.value <= limit
            parts.append(f"{when} {largest_text(worst, limit)}")
    if not parts:
        return ""
    verdict = "the layouts compute the same" if agrees else "the layouts do NOT compute the same"
    return (f"At equal steps the training losses of {len(cases)} runs differ from those of {group.base.layout.run.label} "
            f"{', '.join(parts)}: {verdict}.")
