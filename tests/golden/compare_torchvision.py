#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the NumPy model of images.py, and the tables of AutoAugment, with torchvision.

compare_torchvision.py

Prints the largest difference in levels of 255 for every operation and filter; fails where operations
differ at all, where a resized image differs by more than one level from torchvision's antialiased
one, or where a table differs. Without torchvision it says so and succeeds.
"""
from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np

import images

try:
    import torch
    from PIL import Image
    from torchvision.transforms import InterpolationMode, autoaugment, functional
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(0)

TABLES = Path(__file__).resolve().parents[2] / "src" / "image" / "policy_tables.hpp"
SIZE = 48
SHARES = (-0.9, -0.33, 0.27, 0.9)


def photo(height: int, width: int, seed: int) -> np.ndarray:
    """Smooth colors with noise."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return np.clip(smooth + random.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)


def rotation(degrees: float) -> images.Op:
    angle = -math.radians(degrees)
    c, s, middle = math.cos(angle), math.sin(angle), SIZE / 2
    return images.turn(c, s, middle - (c + s) * middle, -s, c, middle - (c - s) * middle)


def operations() -> list[tuple[str, float, images.Op]]:
    """torchvision's name and magnitude, and the same operation here."""
    out = []
    for share in SHARES:
        shift = share * SIZE * 150 / 331
        out += [(name, share, images.Op(kind, 1 + share))
                for name, kind in (("Brightness", "brightness"), ("Contrast", "contrast"), ("Color", "saturation"),
                                   ("Sharpness", "sharpness"))]
        out += [("ShearX", share / 3, images.turn(1, share / 3, 0, 0, 1, 0)),
                ("ShearY", share / 3, images.turn(1, 0, 0, share / 3, 1, 0)),
                ("TranslateX", shift, images.turn(1, 0, -int(shift), 0, 1, 0)),
                ("TranslateY", shift, images.turn(1, 0, 0, 0, 1, -int(shift))),
                ("Rotate", 30 * share, rotation(30 * share))]
    out += [("Posterize", bits, images.Op("posterize", level=bits)) for bits in (4, 5, 6, 7, 8)]
    out += [("Solarize", level, images.Op("solarize", level=math.ceil(level))) for level in (0.0, 100.3, 178.5, 255.0)]
    return out + [("AutoContrast", 0, images.Op("autocontrast")), ("Equalize", 0, images.Op("equalize")),
                  ("Invert", 0, images.Op("invert"))]


def differences_of_operations() -> dict[str, int]:
    worst: dict[str, int] = {}
    for seed in range(4):
        picture = photo(SIZE, SIZE, seed) // (3 if seed == 3 else 1)
        for name, magnitude, op in operations():
            expected = autoaugment._apply_op(Image.fromarray(picture), name, magnitude, InterpolationMode.NEAREST, None)
            found = images.operated(picture.astype(int), op)
            worst[name] = max(worst.get(name, 0), int(np.abs(found - np.asarray(expected).astype(int)).max()))
    return worst


def difference_of_resize(bicubic: int) -> float:
    """From torchvision's antialiased resize of a float image, before the model rounds to levels."""
    worst = 0.0
    mode = InterpolationMode.BICUBIC if bicubic else InterpolationMode.BILINEAR
    for height, width, size in ((375, 500, 224), (64, 64, 64), (31, 17, 24), (1000, 3, 32), (3, 1000, 32), (50, 60, 224)):
        picture = photo(height, width, height)
        box = (width // 3, height // 3, width // 3 + max(1, width // 2), height // 3 + max(1, height // 2))
        case = images.Case("", size=size, bicubic=bicubic)
        tensor = torch.from_numpy(picture).permute(2, 0, 1).double()
        expected = functional.resized_crop(tensor, box[1], box[0], box[3] - box[1], box[2] - box[0], [size, size], mode,
                                           antialias=True).clamp(0, 255).permute(1, 2, 0).numpy()
        found = images.resized(picture.astype(int), case, box, 0)
        worst = max(worst, float(np.abs(found - expected).max()))
    return worst


def same_tables() -> bool:
    text = TABLES.read_text()
    same = True
    for name, policy in (("kCifar10", autoaugment.AutoAugmentPolicy.CIFAR10),
                         ("kImageNet", autoaugment.AutoAugmentPolicy.IMAGENET)):
        body = text.split(f"PolicyTable {name} = ")[1].split("};")[0]
        steps = re.findall(r"\{(\w+), ([\d.]+), (\d)\}", body)
        found = [(operation.replace("_", ""), float(probability), int(magnitude))
                 for operation, probability, magnitude in steps]
        expected = [(operation.lower(), probability, magnitude or 0)
                    for pair in autoaugment.AutoAugment(policy).policies for operation, probability, magnitude in pair]
        print(f"{name}: {len(found)} steps, {'as' if found == expected else 'NOT as'} torchvision's")
        same = same and found == expected
    return same


def main() -> int:
    operation_levels = differences_of_operations()
    for name, levels in operation_levels.items():
        print(f"{name}: {levels} levels")
    resize_levels = {name: difference_of_resize(bicubic) for bicubic, name in enumerate(("bilinear", "bicubic"))}
    for name, level in resize_levels.items():
        print(f"resize, {name}: {level:.4f} levels")
    good = same_tables() and max(operation_levels.values()) == 0 and max(resize_levels.values()) <= 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
