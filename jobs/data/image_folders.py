#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Class folders below train and val, as pack-images takes them.

image_folders.py draw OUTPUT [--images N] [--size PIXELS] [--seed N]
image_folders.py split FOLDER [OUTPUT]
draw: shapes of 12 classes, N images of each, a sixth of them for val. split: links to the images in the class folders of
FOLDER, every tenth of a class for val; without OUTPUT it only looks whether FOLDER can be split.
"""

import argparse
import pathlib
import sys

import numpy

SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm"}
COLOURS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 225)}
SHAPES = ("disc", "ring", "square", "cross")
VALIDATION_PART = 6  # of drawn images, one in so many
KEPT_PART = 10  # of a folder's images


def covered(shape, x, y):
    """Where a shape is, in coordinates in which it fills [-1, 1] x [-1, 1]."""
    radius = numpy.hypot(x, y)
    inside = numpy.maximum(abs(x), abs(y)) <= 1
    if shape == "disc":
        return radius <= 1
    if shape == "ring":
        return (radius <= 1) & (radius >= 0.55)
    if shape == "square":
        return inside
    return inside & (numpy.minimum(abs(x), abs(y)) <= 0.3)


def draw(shape, colour, size, random):
    """A shape of any place and size on a grey ground with noise: (size, size, 3) uint8."""
    image = numpy.full((size, size, 3), random.uniform(60, 200, 1)) + random.normal(0, 12, (size, size, 3))
    radius = random.uniform(0.22, 0.42) * size
    centre = random.uniform(radius, size - radius, 2)
    y, x = (numpy.mgrid[:size, :size] - centre[:, None, None]) / radius
    image[covered(shape, x, y)] = numpy.array(COLOURS[colour]) + random.normal(0, 15, 3)
    return image.clip(0, 255).astype(numpy.uint8)


def draw_all(output, images, size, seed):
    """Writes PPM files."""
    random = numpy.random.default_rng(seed)
    for shape in SHAPES:
        for colour in COLOURS:
            for index in range(images):
                part = "val" if index % VALIDATION_PART == 0 else "train"
                folder = output / part / f"{colour}_{shape}"
                folder.mkdir(parents=True, exist_ok=True)
                pixels = draw(shape, colour, size, random)
                (folder / f"{index:04d}.ppm").write_bytes(f"P6 {size} {size} 255\n".encode() + pixels.tobytes())


def images_of_classes(folder):
    """Class folder -> its images, at least two; ends with a message if there is nothing to be learned."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        sys.exit(f"{folder}: {len(classes)} class folders, expected at least 2: put the images of each class into a folder")
    images = {each: sorted(path for path in each.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
              for each in classes}
    few = [f"{each.name} has {len(files)}" for each, files in images.items() if len(files) < 2]
    if few:
        sys.exit(f"{folder}: expected at least 2 images ({', '.join(sorted(SUFFIXES))}) in each class folder, "
                 f"{', '.join(few)}: add images, or take these folders away")
    return images


def split(folder, output):
    """Links images, one of them at least for each half of a class."""
    images = images_of_classes(folder)
    if output is None:
        return
    if output.exists():
        sys.exit(f"{output} exists; name a new folder, or remove it")
    for each, files in images.items():
        for index, file in enumerate(files):
            part = "val" if index % KEPT_PART == 0 else "train"
            link = output / part / file.relative_to(folder)  # a broken image is named after it
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())


def main():
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("output", type=pathlib.Path)
    drawing.add_argument("--images", type=int, default=180)
    drawing.add_argument("--size", type=int, default=40)
    drawing.add_argument("--seed", type=int, default=1234)
    splitting = commands.add_parser("split")
    splitting.add_argument("folder", type=pathlib.Path)
    splitting.add_argument("output", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    try:
        if arguments.command == "draw":
            draw_all(arguments.output, arguments.images, arguments.size, arguments.seed)
        else:
            split(arguments.folder, arguments.output)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
