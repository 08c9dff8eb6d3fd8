# SPDX-License-Identifier: Apache-2.0
"""Which runs diverged."""
from __future__ import annotations

import math

from analysis.deck import read_deck
from analysis.runs import Metrics, Run, final_loss, validation_losses

DIVERGED_AT = 2.0  # times the initial loss, at any step
RISEN_AT = 1.02  # times the initial loss, at the end, of a tuned model, which may have nothing left to learn
SKIPPED_AT_END = 3  # a loss scale that is too large skips single steps once it has been found


def scales_loss(run: Run) -> bool:
    """Whether the run may skip steps because its loss scale is too large; so may one without a deck."""
    path = run.path / "deck.yaml"
    return not path.is_file() or read_deck(run).get("precision.compute", "fp16") == "fp16"


def is_tuned(run: Run) -> bool:
    """Whether the run began with the tensors of another."""
    path = run.path / "deck.yaml"
    return path.is_file() and read_deck(run).get("checkpoint.initial", "null") != "null"


def gradients_diverged(metrics: Metrics) -> bool:
    """Whether gradients were not finite in any step; under a loss scale, in each of the last steps."""
    lost = ["grad_norm" in row and row["grad_norm"] is None for row in metrics.rows]
    if not any(lost):
        return False
    return all(lost[-SKIPPED_AT_END:]) and len(lost) >= SKIPPED_AT_END if scales_loss(metrics.run) else True


def has_diverged(metrics: Metrics) -> bool:
    """Whether any loss was not finite or above DIVERGED_AT times that of step 1, the final one is above
    that (of a tuned model above RISEN_AT times that), or gradients were not finite."""
    losses = [*metrics.column("loss"), *validation_losses(metrics)]
    sound = all(loss <= DIVERGED_AT * losses[0] < math.inf for loss in losses)  # no NaN is
    most = losses[0] * (RISEN_AT if is_tuned(metrics.run) else 1.0)
    return not sound or not final_loss(metrics) <= most or gradients_diverged(metrics)
