# SPDX-License-Identifier: Apache-2.0
"""Reads a packed set of images: set.json, index.npy and tar shards, as docs/files.md describes them."""
from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError
from analysis.json_files import misfit, parse_json

Pixels = npt.NDArray[np.uint8]

FORMAT, VERSION = "hyperslab images", 1
SHARD, OFFSET, BYTES, LABEL = range(4)  # columns of index.npy


def read_set(path: Path) -> dict[str, Any]:
    """set.json; its `classes` are names in the order of the labels."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); give set.json of a packed set") from error
    problem = misfit(content, {"classes": [str]})
    if problem:
        raise UserError(f"{path}: no list `classes` of names ({problem}); give set.json of a packed set")
    return dict(content)


def read_index(path: Path) -> npt.NDArray[np.int64]:
    """A row for each image."""
    try:
        index: npt.NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise UserError(f"{path}: no .npy file ({error}); pack the images again") from error
    if index.ndim != 2 or index.shape[1] != 4 or index.dtype.kind not in "iu" or len(index) == 0:
        raise UserError(f"{path}: holds {index.dtype} of shape {index.shape}, expected whole numbers of (images, 4); pack the "
                        "images again")
    return index


class PackedImages:
    """The images of a folder that `hyperslab pack-images` wrote, decoded one by one."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "set.json").is_file():
            raise UserError(f"{folder} has no set.json; give a folder that `hyperslab pack-images` wrote")
        content = read_set(folder / "set.json")
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise UserError(f"{folder / 'set.json'}: format {content.get('format')}, version {content.get('version')}, "
                            f"expected {FORMAT}, {VERSION}; pack the images again")
        problem = misfit(content, {"shards": [{"file": str}]})
        if problem:
            raise UserError(f"{folder / 'set.json'}: {problem}; pack the images again")
        self.folder = folder
        self.classes: list[str] = content["classes"]
        self.shards: list[str] = [shard["file"] for shard in content["shards"]]
        self.index = read_index(folder / "index.npy")

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        return np.array(self.index[:, LABEL])

    def encoded(self, index: int) -> bytes:
        row = self.index[index]
        if not (0 <= row[SHARD] < len(self.shards) and row[OFFSET] >= 0 and row[BYTES] >= 0):
            raise UserError(f"{self.folder / 'index.npy'}: image {index} lies in no shard; pack the images again")
        with (self.folder / self.shards[row[SHARD]]).open("rb") as file:
            file.seek(int(row[OFFSET]))
            return file.read(int(row[BYTES]))

    def __getitem__(self, index: int) -> Pixels:
        """(rows, columns, 3), of its own size."""
        from PIL import Image, ImageFile  # a part of every Matplotlib

        ImageFile.LOAD_TRUNCATED_IMAGES = False  # which WeasyPrint sets as it is loaded
        try:
            with Image.open(io.BytesIO(self.encoded(index))) as image:
                if image.mode.startswith("I"):  # grey of 16 bits, which Pillow would cut off at 255
                    return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError) as error:
            raise UserError(f"{self.folder}: image {index} is broken ({error}); pack the images again with --broken skip"
                            ) from error
