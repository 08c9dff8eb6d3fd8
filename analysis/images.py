# SPDX-License-Identifier: Apache-2.0
"""`images`: a sheet of images as a model sees them, and of predictions, right and wrong ones marked."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.csv_files import read_csv
from analysis.errors import UserError
from analysis.packed_images import PackedImages, Pixels, read_set
from analysis.style import Axes, plt, write_figure

RIGHT, WRONG = "#009E73", "#D55E00"
MOST_IMAGES = 64
MOST_COLUMNS = 8
TILE_INCHES = 1.35
TEXT_INCHES = 0.34  # below a tile: two lines
LONGEST_NAME = 22
PREDICTION_KEYS = ("index", "label", "prediction")


@dataclass(frozen=True)
class Prediction:
    """What a model took an image for; labels are numbers of classes."""

    index: int
    label: int
    prediction: int

    @property
    def is_right(self) -> bool:
        return self.label == self.prediction


def read_samples(path: Path) -> Pixels | PackedImages:
    """(images, rows, columns, 3) from `hyperslab bench --mode data --samples`, or the images of a packed folder."""
    if path.is_dir():
        return PackedImages(path)
    try:
        samples = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise UserError(f"{path}: no .npy file ({error}); give what bench --samples wrote") from error
    if samples.dtype != np.uint8 or samples.ndim != 4 or samples.shape[3] != 3 or 0 in samples.shape:
        raise UserError(f"{path}: holds {samples.dtype} of shape {samples.shape}, expected uint8 of (images, rows, "
                        "columns, 3); give what bench --samples wrote")
    return samples


def read_predictions(path: Path) -> list[Prediction]:
    """From `hyperslab eval --predictions`, in the order of the file."""
    names, lines = read_csv(path)
    missing = [key for key in PREDICTION_KEYS if key not in names]
    if missing:
        raise UserError(f"{path}:1: no column {missing[0]}; give what eval --predictions wrote")
    found = []
    for number, row in lines:
        try:
            found.append(Prediction(*(int(row[key]) for key in PREDICTION_KEYS)))
        except ValueError as error:
            raise UserError(f"{path}:{number}: expected whole numbers in {', '.join(PREDICTION_KEYS)}; "
                            "give what eval --predictions wrote") from error
    if not found:
        raise UserError(f"{path} names no image; give what eval --predictions wrote")
    return found


def read_classes(path: Path | None, samples: Path) -> list[str]:
    """Names from set.json, in the order of the labels; none if there is no such file."""
    if path is None:
        path = samples / "set.json"
        if not path.is_file():
            return []
    return read_set(path)["classes"]


def class_name(classes: list[str], label: int) -> str:
    name = classes[label] if 0 <= label < len(classes) else str(label)
    return name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME - 3] + "..."


def chosen(predictions: list[Prediction], images: int, most: int) -> list[Prediction]:
    """Of those whose image is there: right and wrong ones in equal parts as far as both last."""
    known = [each for each in predictions if 0 <= each.index < images]
    if not known:
        raise UserError(f"no prediction is of the {images} images; give samples and predictions of the same data")
    right = [each for each in known if each.is_right]
    wrong = [each for each in known if not each.is_right]
    wrongs = min(len(wrong), max(most // 2, most - len(right)))
    return sorted([*spread(right, most - wrongs), *spread(wrong, wrongs)], key=lambda each: each.index)


def require_same_set(predictions: list[Prediction], images: PackedImages, path: Path) -> None:
    """A packed set knows its labels: those of another set differ."""
    labels = images.labels
    for each in predictions:
        if 0 <= each.index < len(labels) and labels[each.index] != each.label:
            raise UserError(f"{path}: image {each.index} has label {each.label}, in {images.folder} it has "
                            f"{labels[each.index]}; give samples and predictions of the same data")


def spread(found: list[Prediction], most: int) -> list[Prediction]:
    """At most so many, evenly from all: a set has its classes one after the other."""
    count = min(most, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def draw_tile(axes: Axes, image: Pixels) -> None:
    axes.imshow(image, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def mark(axes: Axes, each: Prediction, classes: list[str]) -> None:
    """A frame and the names: one if they agree, else the label and the prediction."""
    colour = RIGHT if each.is_right else WRONG
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=2.5)
    name = class_name(classes, each.label)
    text = name if each.is_right else f"{name},\npredicted {class_name(classes, each.prediction)}"
    axes.set_xlabel(text, fontsize=7, color=colour, labelpad=2)


def draw_sheet(path: Path, images: list[Pixels], title: str, predictions: list[Prediction], classes: list[str]) -> Path:
    columns = min(MOST_COLUMNS, math.ceil(math.sqrt(2 * len(images))))
    rows = math.ceil(len(images) / columns)
    tile = TILE_INCHES + (TEXT_INCHES if predictions else 0.08)
    height = tile * rows + 0.7
    figure, grid = plt.subplots(rows, columns, figsize=(max(4.0, TILE_INCHES * columns + 0.3), height), squeeze=False)
    for axes in grid.flat[len(images):]:
        axes.set_visible(False)
    for axes, image in zip(grid.flat, images):
        draw_tile(axes, image)
    for axes, each in zip(grid.flat, predictions):
        mark(axes, each, classes)
    figure.text(0.01, 1.0 - 0.08 / height, title, va="top", fontsize=10)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.32 / height), h_pad=0.5, w_pad=0.4)
    try:
        return write_figure(figure, path)
    finally:
        plt.close(figure)


def images(samples: Path, predictions: Path | None, classes: Path | None, output: Path, most: int) -> str:
    """Writes the sheet; returns its path, and how many of the predictions are right."""
    if output.suffix != ".png":
        raise UserError(f"--output {output}: a sheet is a .png file")
    if most > MOST_IMAGES:
        raise UserError(f"--images {most}: a sheet holds at most {MOST_IMAGES}")
    pixels = read_samples(samples)
    names = read_classes(classes, samples)
    if predictions is None:
        count = min(most, len(pixels))
        title = f"{count} of {len(pixels):,} images{'' if samples.is_dir() else ' as the model sees them'}"
        places = [index * len(pixels) // count for index in range(count)]  # classes lie one after the other
        return str(draw_sheet(output, [np.asarray(pixels[index]) for index in places], title, [], names))
    reported = read_predictions(predictions)
    if isinstance(pixels, PackedImages):
        require_same_set(reported, pixels, predictions)
    shown = chosen(reported, len(pixels), most)
    right = sum(each.is_right for each in reported)
    title = (f"{right:,} of {len(reported):,} right ({100 * right / len(reported):.1f} %); "
             f"{sum(not each.is_right for each in shown)} of the {len(shown)} shown are wrong")
    path = draw_sheet(output, [np.asarray(pixels[each.index]) for each in shown], title, shown, names)
    return f"{path}\n{title}"
