#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes resize.txt, parts of images that torchvision resized with antialiasing, or checks it.

make_resize.py [--check]

A case is a line of words: name, source width and height, contrast of the source in percent, size, 1 for bicubic, left,
top, right and bottom of the part; then the levels (size, size, 3) that torchvision's resized_crop makes of a tensor of
bytes with antialias=True. Needs torchvision. Both print how far torchvision's other results are from these: of tensors of
floats, and of images of Pillow, which are cut off to [0, 255] between the passes along rows and along columns.
"""
from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

import images

FILE = Path(__file__).with_name("resize.txt")


@dataclass
class Case:
    name: str
    width: int
    height: int
    size: int
    contrast: int = 100
    part: tuple[int, int, int, int] | None = None

    @property
    def box(self) -> tuple[int, int, int, int]:
        return self.part or (0, 0, self.width, self.height)


CASES = [
    Case("a_third", 36, 37, 12),
    Case("shrunk_little", 15, 14, 12),
    Case("enlarged", 5, 7, 16),
    Case("part", 40, 31, 12, part=(3, 4, 33, 27)),
    Case("part_enlarged", 20, 20, 12, part=(9, 2, 16, 8)),
    Case("low_contrast", 31, 23, 12, contrast=40),
    Case("one_row", 30, 1, 8),
    Case("long", 3, 90, 8),
]


def resized(case: Case, picture: np.ndarray, bicubic: int, form: str) -> np.ndarray:
    """(size, size, 3) as torchvision resizes an image of Pillow, or a tensor of bytes or floats."""
    left, top, right, bottom = case.box
    mode = InterpolationMode.BICUBIC if bicubic else InterpolationMode.BILINEAR
    planes = torch.from_numpy(picture).permute(2, 0, 1)
    image = {"pillow": lambda: Image.fromarray(picture), "bytes": lambda: planes, "floats": planes.double}[form]()
    out = functional.resized_crop(image, top, left, bottom - top, right - left, [case.size, case.size], mode, antialias=True)
    return np.asarray(out).astype(float) if form == "pillow" else out.double().clamp(0, 255).permute(1, 2, 0).numpy()


def line_of(case: Case, bicubic: int, farthest: dict[str, float]) -> str:
    picture = images.source(case.width, case.height, case.contrast, 0).astype(np.uint8)
    expected = resized(case, picture, bicubic, "bytes")
    for form in ("floats", "pillow"):
        key = f"{form}, {'bicubic' if bicubic else 'bilinear'}"
        difference = np.abs(resized(case, picture, bicubic, form) - expected).max()
        farthest[key] = max(farthest.get(key, 0.0), float(difference))
    words = [case.name, case.width, case.height, case.contrast, case.size, bicubic, *case.box]
    return " ".join(map(str, [*words, *expected.astype(int).ravel()]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the file with torchvision")
    check = parser.parse_args().check
    farthest: dict[str, float] = {}
    text = "".join(line_of(case, bicubic, farthest) + "\n" for case in CASES for bicubic in (0, 1))
    for key, levels in farthest.items():
        print(f"{key}: {levels:.2f} levels from tensors of bytes")
    if not check:
        FILE.write_text(text)
        return 0
    if FILE.read_text() == text:
        return 0
    print(f"{FILE}: is not what torchvision gives; run make_resize.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
