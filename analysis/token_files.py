# SPDX-License-Identifier: Apache-2.0
"""Tokens of a file as `hyperslab tokenize` and others write it: .bin with llm.c's header or none, .npy."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError

LLMC_HEADER_BYTES = 1024  # 256 int32: magic, version, tokens, zeros
LLMC_KINDS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic -> version, tokens

Tokens = npt.NDArray[np.integer]


def open_llmc(path: Path, magic: int, version: int, count: int) -> Tokens:
    """The tokens after a header whose first words are given, after it has been checked."""
    expected, dtype = LLMC_KINDS[magic]
    size, item = path.stat().st_size, np.dtype(dtype).itemsize
    if version != expected or count < 0 or size != LLMC_HEADER_BYTES + count * item:
        raise UserError(f"{path}: its llm.c header says version {version} and {count} tokens of {dtype}, the file has "
                        f"{size} bytes; expected version {expected} and {LLMC_HEADER_BYTES + max(count, 0) * item} "
                        "bytes; copy or tokenize it again")
    if count == 0:
        raise UserError(f"{path} holds no tokens; tokenize again")
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r", LLMC_HEADER_BYTES, (count,))


def open_raw(path: Path, dtype: str) -> Tokens:
    item, size = np.dtype(dtype).newbyteorder("<"), path.stat().st_size
    if size == 0 or size % item.itemsize:
        raise UserError(f"{path} holds {size} bytes, not a positive multiple of "
                        f"{item.itemsize}; is --dtype {dtype} right?")
    return np.memmap(path, item, "r")


def open_npy(path: Path) -> Tokens:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not NumPy's .npy format ({error}); write it again") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui" or tokens.size == 0:
        raise UserError(f"{path} holds {tokens.dtype} of shape {tokens.shape}, expected whole numbers in one row; "
                        "write the tokens again")
    return tokens


def open_tokens(path: Path, dtype: str | None, default: str = "uint16") -> Tokens:
    """Mapped. `dtype` is of files without a header, `default` if None; a header that says otherwise
    is an error."""
    if not path.is_file():
        raise UserError(f"no file {path}; name a text file, or a token file with --tokens")
    if path.suffix in (".h5", ".hdf5"):
        raise UserError(f"{path}: HDF5 tokens are not read here; tokenize to .bin or .npy")
    if path.suffix == ".npy":
        return open_npy(path)
    with path.open("rb") as file:
        head = file.read(12)
    words = np.frombuffer(head, "<i4") if len(head) == 12 else np.zeros(3, "<i4")
    if int(words[0]) not in LLMC_KINDS:
        return open_raw(path, dtype or default)
    kind = LLMC_KINDS[int(words[0])][1]
    if dtype is not None and dtype != kind:
        raise UserError(f"{path}: its llm.c header says {kind}, not {dtype}; leave out --dtype")
    return open_llmc(path, *map(int, words))
