# SPDX-License-Identifier: Apache-2.0
"""Reads a packed set of images: set.json, index.npy and tar shards, as docs/files.md describes them."""
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.errors import UserError

Pixels = npt.NDArray[np.uint8]

FORMAT, VERSION = "hyperslab images", 1
SHARD, OFFSET, BYTES, LABEL = range(4)  # columns of index.npy


def read_set(path: Path) -> dict[str, Any]:
    """set.json; its `classes` are names in the order of the labels."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); give set.json of a packed set") from error
    if not isinstance(content, dict) or not isinstance(content.get("classes"), list):
        raise UserError(f"{path}: no list `classes`; give set.json of a packed set")
    return content


class PackedImages:
    """The images of a folder that `hyperslab pack-images` wrote, decoded one by one."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "set.json").is_file():
            raise UserError(f"{folder} has no set.json; give a folder that `hyperslab pack-images` wrote")
        content = read_set(folder / "set.json")
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise UserError(f"{folder / 'set.json'}: format {content.get('format')}, version {content.get('version')}, "
                            f"expected {FORMAT}, {VERSION}; pack the images again")
        self.folder = folder
        self.classes: list[str] = [str(name) for name in content["classes"]]
        self.shards = [str(shard["file"]) for shard in content["shards"]]
        self.index: npt.NDArray[np.int64] = np.load(folder / "index.npy", mmap_mode="r", allow_pickle=False)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        return np.array(self.index[:, LABEL])

    def encoded(self, index: int) -> bytes:
        row = self.index[index]
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
