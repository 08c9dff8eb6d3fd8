# SPDX-License-Identifier: Apache-2.0
"""The order of samples in NumPy: what io::Samples and io::Loader of the program read at every step."""
from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError
from analysis.token_files import open_tokens

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def name_hash(name: str) -> int:
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def philox(block: Words, stream: int, key: int) -> tuple[Words, ...]:
    """Philox4x32-10 of the counters (block, stream): four words of 32 bits each."""
    x = [block & LOW, block >> HALF, np.full_like(block, stream & 0xFFFFFFFF),
         np.full_like(block, stream >> 32)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        x = [(p1 >> HALF) ^ x[1] ^ np.uint64(k0), p1 & LOW,
             (p0 >> HALF) ^ x[3] ^ np.uint64(k1), p0 & LOW]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(x)


def feistel(index: Words, half_bits: int, stream: int, seed: int) -> Words:
    """Four rounds over numbers of 2 half_bits bits."""
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = index >> bits, index & mask
    for number in range(4):
        mixed = philox(right | np.uint64(number << 32), stream, seed)[0] & mask
        left, right = right, left ^ mixed
    return (left << bits) | right


def permuted(index: Words, size: int, seed: int, epoch: int) -> Words:
    """The keyed permutation of [0, size): a Feistel network with cycle walking."""
    if size < 2:
        return index
    half_bits = ((size - 1).bit_length() + 1) // 2
    stream = name_hash("sample order") ^ (epoch * 0x9E3779B97F4A7C15 % (1 << 64))
    out = feistel(index, half_bits, stream, seed)
    while (outside := out >= np.uint64(size)).any():
        out[outside] = feistel(out[outside], half_bits, stream, seed)
    return out


@dataclass(frozen=True)
class Order:
    """Which tokens of a source of `tokens` a sample of `length` begins with."""

    sampling: str  # blocks | windows
    tokens: int
    length: int
    seed: int

    def __post_init__(self) -> None:
        if self.tokens <= self.length:
            raise UserError(f"the token files hold {self.tokens} tokens, expected at least "
                            f"{self.length + 1}; give more text or a smaller model.context")

    @property
    def epoch(self) -> int:
        """Samples of one epoch."""
        return (self.tokens - 1) // self.length

    def starts(self, first: int, count: int) -> Indices:
        """First tokens of samples [first, first + count)."""
        index = np.arange(first, first + count, dtype=np.uint64)
        if self.sampling == "windows":
            words = philox(index, name_hash("sample windows"), self.seed)
            word = words[0] | (words[1] << HALF)
            return (word % np.uint64(self.tokens - self.length)).astype(np.int64)
        epochs, positions = np.divmod(index, np.uint64(self.epoch))
        out = np.empty_like(index)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            out[here] = permuted(positions[here], self.epoch, self.seed, int(epoch))
        return out.astype(np.int64) * self.length


def open_file(path: Path, raw_dtype: str) -> npt.NDArray[np.integer]:
    """Tokens of a .bin or .npy file, mapped."""
    if raw_dtype not in ("uint16", "uint32"):
        raise UserError(f"{path}: data.dtype is {raw_dtype}, expected uint16 or uint32")
    return open_tokens(path, None, raw_dtype)


class Tokens:
    """The tokens of several files, one after the other; globs are sorted by bytes."""

    def __init__(self, patterns: Sequence[str], raw_dtype: str = "uint16") -> None:
        paths: list[str] = []
        for pattern in patterns:
            found = sorted(glob.glob(os.path.expanduser(pattern)), key=os.fsencode)
            if not found:
                raise UserError(f"no token file {pattern}; start where the run was started, or name "
                                "the files with --set")
            paths += found
        self.files = [open_file(Path(path), raw_dtype) for path in paths]
        self.ends = np.cumsum([file.size for file in self.files])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, first: int, out: npt.NDArray[np.int64]) -> None:
        """Fills `out` with the tokens from `first` on."""
        done = 0
        shard = int(np.searchsorted(self.ends, first, side="right"))
        while done < out.size:
            file = self.files[shard]
            index = first + done - (int(self.ends[shard]) - file.size)
            part = file[index:index + out.size - done]
            out[done:done + part.size] = part
            done += part.size
            shard += 1

    def batch(self, starts: Indices, length: int) -> npt.NDArray[np.int64]:
        """(samples, length + 1) tokens: inputs, and targets one position on."""
        out = np.empty((len(starts), length + 1), np.int64)
        for row, start in zip(out, starts):
            self.read(int(start), row)
        return out
