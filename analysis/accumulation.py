# SPDX-License-Identifier: Apache-2.0
"""`accumulation`: a sum of equal terms by the types of sum and terms."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Callable

import numpy as np

from analysis.errors import UserError
from analysis.tables import output_folder

Rounding = Callable[[float], float]


def to_bf16(value: float) -> float:
    """The nearest bfloat16, ties to even: the upper half of an fp32."""
    bits = int(np.float32(value).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(np.uint32(rounded).view(np.float32))


ROUNDINGS: dict[str, Rounding] = {
    "fp64": float, "fp32": lambda value: float(np.float32(value)),
    "fp16": lambda value: float(np.float16(value)), "bf16": to_bf16,
}


def accumulate(value: float, terms: int, sum_type: str, term_type: str) -> float:
    """Adds `terms` times; both operands are exact in double, so that each addition is rounded once by the
    sum's type."""
    rounded, add = ROUNDINGS[term_type](value), ROUNDINGS[sum_type]
    total = 0.0
    for _ in range(terms):
        total = add(total + rounded)
    return total


def accumulation(value: float, terms: int, sum_type: str, term_type: str, path: Path | None) -> str:
    """What to print; the same numbers go to the JSON file `path`."""
    if not math.isfinite(value):
        raise UserError(f"--value is {value}, expected a finite number")
    with np.errstate(over="ignore"):
        total = accumulate(value, terms, sum_type, term_type)
    exact = value * terms
    if path is not None:
        output_folder(path.parent)
        content = {"sum": total, "exact": exact, "sum_type": sum_type, "term_type": term_type, "terms": terms,
                   "value": value}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return f"{terms} times {value:g} ({term_type}) summed in {sum_type}: {total:.8g}, exact {exact:g}"
