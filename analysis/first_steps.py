# SPDX-License-Identifier: Apache-2.0
"""The first steps of a start, which warm up: no figure of speed counts them."""
from __future__ import annotations

SKIPPED_STEPS = 5  # unless --skip or a study says otherwise
SKIP_HELP = f"steps left out at each start (default {SKIPPED_STEPS})"


def skip_text(skip: int) -> str:
    """A sentence for whoever reads the figures."""
    steps = {0: "No step", 1: "The first step"}.get(skip, f"The first {skip} steps")
    return f"{steps} of each start {'are' if skip > 1 else 'is'} left out."
