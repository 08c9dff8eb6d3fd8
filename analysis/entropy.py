# SPDX-License-Identifier: Apache-2.0
"""`entropy`: what a model that only knows frequencies would lose, the first mark to pass."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError
from analysis.token_files import Tokens, open_raw, open_tokens

CHUNK_ITEMS = 1 << 24
MAX_TOKEN = 1 << 24

Counts = npt.NDArray[np.int64]


def count_items(items: Tokens, path: Path) -> Counts:
    """How often each value occurs; `path` is for messages."""
    counts: Counts = np.zeros(256, np.int64)
    for first in range(0, items.size, CHUNK_ITEMS):
        chunk = items[first:first + CHUNK_ITEMS]
        if int(chunk.max()) >= MAX_TOKEN or int(chunk.min()) < 0:
            raise UserError(f"{path} holds values that are no tokens (from {chunk.min()} to "
                            f"{chunk.max()}); is --dtype right?")
        found = np.bincount(chunk.astype(np.int64, copy=False))
        counts.resize(max(counts.size, found.size), refcheck=False)
        counts[:found.size] += found
    return counts


def token_counts(path: Path, dtype: str | None = None) -> Counts:
    """Of a token file; its header, if it has one, is no token."""
    return count_items(open_tokens(path, dtype), path)


def byte_counts(path: Path) -> Counts:
    if not path.is_file():
        raise UserError(f"no file {path}; name a text file, or a token file with --tokens")
    return count_items(open_raw(path, "uint8"), path)


def unigram_entropy(counts: Counts) -> float:
    """Nats per item."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum()) + 0.0


def entropy(text: Path | None, tokens: Path | None, dtype: str | None) -> str:
    counted: list[tuple[Path, str, Counts]] = []
    if text is not None:
        counted.append((text, "byte", byte_counts(text)))
    if tokens is not None:
        counted.append((tokens, "token", token_counts(tokens, dtype)))
    if not counted:
        raise UserError("entropy needs a text file, or a token file with --tokens")
    return "\n".join(f"{path}: {nats:.4f} nats per {item} ({nats / np.log(2.0):.4f} bits), "
                     f"{int(counts.sum()):,} {item}s, {int((counts > 0).sum())} different"
                     for path, item, counts in counted for nats in (unigram_entropy(counts),))
