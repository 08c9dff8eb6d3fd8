# SPDX-License-Identifier: Apache-2.0
"""`entropy`: what a model that only knows frequencies would lose, the first mark to pass."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError

CHUNK_ITEMS = 1 << 24
MAX_TOKEN = 1 << 24

Counts = npt.NDArray[np.int64]


def count_items(path: Path, dtype: str) -> Counts:
    """How often each value occurs in a raw little-endian file."""
    if not path.is_file():
        raise UserError(f"no file {path}; name a text file, or a token file with --tokens")
    item = np.dtype(dtype).newbyteorder("<")
    size = path.stat().st_size
    if size == 0 or size % item.itemsize:
        raise UserError(f"{path} holds {size} bytes, not a positive multiple of "
                        f"{item.itemsize}; is --dtype {dtype} right?")
    counts: Counts = np.zeros(256, np.int64)
    with path.open("rb") as file:
        while (items := np.fromfile(file, item, CHUNK_ITEMS)).size:
            if int(items.max()) >= MAX_TOKEN or int(items.min()) < 0:
                raise UserError(f"{path} holds values that are no tokens (from {items.min()} to "
                                f"{items.max()}); is --dtype {dtype} right?")
            chunk = np.bincount(items)
            counts.resize(max(counts.size, chunk.size), refcheck=False)
            counts[:chunk.size] += chunk
    return counts


def unigram_entropy(counts: Counts) -> float:
    """Nats per item."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum()) + 0.0


def entropy(text: Path | None, tokens: Path | None, dtype: str) -> str:
    lines: list[str] = []
    for path, item_dtype, item in ((text, "uint8", "byte"), (tokens, dtype, "token")):
        if path is None:
            continue
        counts = count_items(path, item_dtype)
        nats = unigram_entropy(counts)
        lines.append(f"{path}: {nats:.4f} nats per {item} ({nats / np.log(2.0):.4f} bits), "
                     f"{int(counts.sum()):,} {item}s, {int((counts > 0).sum())} different")
    if not lines:
        raise UserError("entropy needs a text file, or a token file with --tokens")
    return "\n".join(lines)
