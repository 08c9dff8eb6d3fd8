#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes images.txt, what augment_images must give, from a NumPy model of its own, or checks it.

images.py [--check]

A case is a line of words: name, source width and height, contrast of the source in percent, size,
patch, channels, 1 for bicubic, levels by which a result may differ; then the first of two images as
the fields of ImageAugmentation, and the partner's erased box; then the number of values and the
first image's patches. The other image of the batch is its partner, whole and else unchanged but for
its size. Means are 0.5, 0.4, 0.3 and
deviations 0.2, 0.25, 0.3.
"""
from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KINDS = ("affine", "brightness", "contrast", "saturation", "sharpness", "posterize", "solarize", "autocontrast",
         "equalize", "invert")
MEAN, DEVIATION = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.25, 0.3])
FILE = Path(__file__).with_name("images.txt")
LUMA = np.array([19595, 38470, 7471]) / 65536


@dataclass
class Op:
    kind: str
    factor: float = 1.0
    level: int = 0
    matrix: tuple[int, ...] = (0,) * 6


@dataclass
class Case:
    name: str
    width: int = 12
    height: int = 12
    contrast: int = 100
    size: int = 12
    patch: int = 4
    channels: int = 3
    bicubic: int = 0
    within: int = 0
    box: tuple[float, ...] | None = None
    beyond: int = 0
    shift: tuple[int, int] = (0, 0)
    flip: int = 0
    ops: tuple[Op, ...] = ()
    mix: int = 0
    weight: float = 1.0
    cut: tuple[int, ...] = (0,) * 4
    erase: tuple[int, ...] = (0,) * 4
    partner_erase: tuple[int, ...] = (0,) * 4


def turn(a: float, b: float, c: float, d: float, e: float, f: float) -> Op:
    """Middles of pixels in 16.16."""
    values = (a, b, c + a / 2 + b / 2, d, e, f + d / 2 + e / 2)
    return Op("affine", matrix=tuple(math.floor(v * 65536 + 0.5) for v in values))


CASES = [
    Case("same", patch=3),
    Case("shrunk", 31, 23, within=1, box=(0, 0, 31, 23)),
    Case("enlarged", 5, 7, within=1, box=(0, 0, 5, 7)),
    Case("part", 40, 30, within=1, box=(3, 5, 30, 24)),
    Case("part_between_pixels", 40, 30, within=1, box=(3.25, 5.5, 30.125, 24.75)),
    Case("part_that_reads_beyond", 40, 30, within=1, box=(8.5, 4.25, 32, 26), beyond=1),
    Case("bicubic_shrunk", 31, 23, 40, bicubic=1, within=1, box=(0, 0, 31, 23)),
    Case("bicubic_enlarged", 5, 7, 40, bicubic=1, within=1, box=(0, 0, 5, 7)),
    Case("one_pixel", 1, 1, box=(0, 0, 1, 1)),
    Case("shifted", shift=(3, -2)),
    Case("shifted_mirror", shift=(-1, 4), flip=1),
    Case("mirror", flip=1),
    Case("grey", channels=1),
    Case("sheared", ops=(turn(1, 0.27, 0, 0, 1, 0),)),
    Case("rotated", ops=(turn(0.9659258, -0.258819, 1.757, 0.258819, 0.9659258, -1.3484),)),
    Case("moved", ops=(turn(1, 0, -3, 0, 1, 0), turn(1, 0, 0, 0, 1, 2))),
    *(Case(f"{kind}_{name}", ops=(Op(kind, factor),))
      for kind in ("brightness", "contrast", "saturation", "sharpness") for name, factor in (("less", 0.375), ("more", 1.75))),
    Case("posterized", ops=(Op("posterize", level=5),)),
    Case("solarized", ops=(Op("solarize", level=100),)),
    Case("autocontrast", contrast=40, ops=(Op("autocontrast"),)),
    Case("equalized", 24, 24, size=24, patch=12, contrast=15, ops=(Op("equalize"),)),
    Case("inverted", ops=(Op("invert"),)),
    Case("in_order", flip=1, ops=(Op("posterize", level=4), turn(1, 0, 2, 0, 1, 0), Op("invert"))),
    Case("mixup", mix=1, weight=0.625),
    Case("cutmix", mix=2, weight=0.5, cut=(2, 3, 6, 5)),
    Case("erased", erase=(1, 4, 7, 3)),
    Case("all", patch=6, flip=1, ops=(Op("invert"),), mix=1, weight=0.25, erase=(5, 0, 3, 9)),
    Case("mixup_erased", mix=1, weight=0.625, erase=(1, 4, 7, 3), partner_erase=(3, 2, 5, 8)),
    Case("cutmix_erased", mix=2, weight=0.5, cut=(2, 3, 6, 5), erase=(1, 1, 4, 9), partner_erase=(4, 0, 5, 6)),
]


def source(width: int, height: int, contrast: int, seed: int) -> np.ndarray:
    """(height, width, 3) levels."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    levels = (x * 37 + y * 101 + c * 59 + x * y % 23 * 11 + seed * 90) % 256
    return 128 + (levels - 128) * contrast // 100


def weights(begin: float, end: float, pixels: int, size: int, beyond: int, bicubic: int) -> np.ndarray:
    """(size, pixels): an antialiased filter of each output pixel."""
    step = (end - begin) / size
    stretch = max(step, 1.0)
    centers = begin + (np.arange(size) + 0.5) * step
    distance = np.abs((np.arange(pixels)[None, :] + 0.5 - centers[:, None]) / stretch)
    if bicubic:
        near = 1.5 * distance**3 - 2.5 * distance**2 + 1
        far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
        matrix = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    else:
        matrix = np.maximum(1 - distance, 0)
    if not beyond:
        inside = (np.arange(pixels) >= math.floor(begin)) & (np.arange(pixels) < math.ceil(end))
        matrix = matrix * inside[None, :]
    return matrix / matrix.sum(axis=1, keepdims=True)


def resized(image: np.ndarray, case: Case, box: tuple[float, ...], beyond: int) -> np.ndarray:
    left, top, right, bottom = box
    rows = weights(top, bottom, image.shape[0], case.size, beyond, case.bicubic)
    columns = weights(left, right, image.shape[1], case.size, beyond, case.bicubic)
    exact = np.tensordot(rows, np.tensordot(image, columns, (1, 1)), (1, 0)).swapaxes(1, 2)
    return np.floor(np.clip(exact, 0, 255) + 0.5).astype(int)


def shifted(image: np.ndarray, shift: tuple[int, int]) -> np.ndarray:
    size = image.shape[0]
    padded = np.pad(image, ((size, size), (size, size), (0, 0)))
    return padded[size + shift[1]:2 * size + shift[1], size + shift[0]:2 * size + shift[0]]


def luma(image: np.ndarray) -> np.ndarray:
    return np.floor(image @ LUMA + 0.5).astype(int)[..., None]


def blended(start: np.ndarray, image: np.ndarray, factor: float) -> np.ndarray:
    """In single precision, as Pillow does it: a product just below a level is cut off."""
    change = np.float32(factor) * (image - start).astype(np.float32)
    return np.trunc(np.clip(start.astype(np.float32) + change, 0, 255)).astype(int)


def smooth(image: np.ndarray) -> np.ndarray:
    size = image.shape[0]
    out = image.copy()
    around = sum(image[1 + j:size - 1 + j, 1 + i:size - 1 + i] for j in (-1, 0, 1) for i in (-1, 0, 1))
    out[1:-1, 1:-1] = np.floor((around + 4 * image[1:-1, 1:-1]) / 13 + 0.5).astype(int)
    return out


def gathered(image: np.ndarray, matrix: tuple[int, ...]) -> np.ndarray:
    size = image.shape[0]
    y, x = np.mgrid[:size, :size]
    column = np.floor((matrix[0] * x + matrix[1] * y + matrix[2]) / 65536).astype(int)
    row = np.floor((matrix[3] * x + matrix[4] * y + matrix[5]) / 65536).astype(int)
    known = (column >= 0) & (column < size) & (row >= 0) & (row < size)
    return np.where(known[..., None], image[row.clip(0, size - 1), column.clip(0, size - 1)], 0)


def stretched(channel: np.ndarray) -> np.ndarray:
    low, high = channel.min(), channel.max()
    return channel if low == high else np.clip(np.trunc((channel - low) * (255 / (high - low)) + 1e-9), 0, 255)


def equalized(channel: np.ndarray) -> np.ndarray:
    counts = np.bincount(channel.ravel(), minlength=256)
    step = (channel.size - counts[channel.max()]) // 255
    if step == 0:
        return channel
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.minimum((below + step // 2) // step, 255)[channel]


def each_channel(image: np.ndarray, function) -> np.ndarray:
    return np.stack([function(image[..., c]) for c in range(3)], axis=-1).astype(int)


def operated(image: np.ndarray, op: Op) -> np.ndarray:
    return {
        "affine": lambda: gathered(image, op.matrix),
        "brightness": lambda: blended(np.zeros_like(image), image, op.factor),
        "contrast": lambda: blended(np.full_like(image, math.floor(luma(image).mean() + 0.5)), image, op.factor),
        "saturation": lambda: blended(np.repeat(luma(image), 3, axis=-1), image, op.factor),
        "sharpness": lambda: blended(smooth(image), image, op.factor),
        "posterize": lambda: image // 2 ** (8 - op.level) * 2 ** (8 - op.level),
        "solarize": lambda: np.where(image < op.level, image, 255 - image),
        "autocontrast": lambda: each_channel(image, stretched),
        "equalize": lambda: each_channel(image, equalized),
        "invert": lambda: 255 - image,
    }[op.kind]()


def boxed(box: tuple[int, ...], size: int) -> np.ndarray:
    mask = np.zeros((size, size, 1), bool)
    mask[box[1]:box[1] + box[3], box[0]:box[0] + box[2]] = True
    return mask


def patches_of(case: Case) -> np.ndarray:
    box = case.box or (0, 0, case.width, case.height)
    image = shifted(resized(source(case.width, case.height, case.contrast, 0), case, box, case.beyond), case.shift)
    image = image[:, ::-1] if case.flip else image
    for op in case.ops:
        image = operated(image, op)
    partner = resized(source(case.width, case.height, case.contrast, 1), case, (0, 0, case.width, case.height), 0)
    if case.channels == 1:
        image, partner = luma(image), luma(partner)
    own, other = (np.where(boxed(box, case.size), 0, (levels / 255 - MEAN[:case.channels]) / DEVIATION[:case.channels])
                  for levels, box in ((image, case.erase), (partner, case.partner_erase)))
    out = own
    if case.mix == 1:
        out = case.weight * own + (1 - case.weight) * other
    if case.mix == 2:
        out = np.where(boxed(case.cut, case.size), other, own)
    side = case.size // case.patch
    grid = out.reshape(side, case.patch, side, case.patch, case.channels)
    return grid.transpose(0, 2, 4, 1, 3).reshape(side * side, -1)


def line_of(case: Case) -> str:
    words: list[object] = [case.name, case.width, case.height, case.contrast, case.size, case.patch, case.channels,
                           case.bicubic, case.within, *(case.box or (0, 0, case.width, case.height)), case.beyond,
                           *case.shift, case.flip, len(case.ops)]
    for op in case.ops:
        words += [KINDS.index(op.kind), op.factor, op.level, *op.matrix]
    words += [case.mix, case.weight, *case.cut, *case.erase, *case.partner_erase]
    values = patches_of(case).ravel()
    return " ".join(map(str, [*words, values.size, *(f"{v:.5g}" for v in values)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the file with the model")
    text = "\n".join(line_of(case) for case in CASES) + "\n"
    if not parser.parse_args().check:
        FILE.write_text(text)
        return 0
    if FILE.read_text() == text:
        return 0
    print(f"{FILE}: is not what the model gives; run images.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
