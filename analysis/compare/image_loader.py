# SPDX-License-Identifier: Apache-2.0
"""The loader alone beside torchvision: JPEG images to normalized crops, on one machine.

python3 -m analysis.compare.image_loader DECK [--set KEY=VALUE] [--device cuda|cpu] [--images 4096] [--workers N]

The packed folder of the deck's data.train is read into memory first. torchvision decodes (decode_jpeg, on a GPU a batch
in one call, else in the worker processes of a DataLoader), crops and resizes each image at random with antialiasing,
flips and normalizes it with its transforms v2; hyperslab does what the deck says. Policies, mixup and erasing of the deck are
hyperslab's alone unless they are set to none. The best of three passes counts. One line of JSON.
"""
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from analysis.compare.rates import bench, line_of, make_parser, run
from analysis.errors import UserError
from analysis.packed_images import PackedImages
from analysis.study.settings import deck_value, whole
from analysis.yaml_files import load_yaml

PASSES = 3


def folder_of(arguments: argparse.Namespace) -> Path:
    settings = dict(setting.partition("=")[::2] for setting in arguments.set)
    value = settings.get("data.train", deck_value(load_yaml(arguments.deck), "data.train"))
    names = value.strip("[]").split(",") if isinstance(value, str) else list(value or [])
    if len(names) != 1:
        raise UserError(f"{arguments.deck}: data.train names {len(names)} sets, expected one packed folder")
    return Path(names[0])


def torchvision_seconds(encoded: list[bytes], size: int, batch: int, arguments: argparse.Namespace) -> tuple[float, str]:
    """Of the fastest pass over all images, and the version."""
    import torch
    import torchvision
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(),
                            v2.ToDtype(torch.float32, scale=True),
                            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    tensors = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in encoded]

    class Prepared(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(tensors)

        def __getitem__(self, index: int) -> torch.Tensor:
            return transform(decode_jpeg(tensors[index], mode=ImageReadMode.RGB))

    loader = torch.utils.data.DataLoader(Prepared(), batch, num_workers=arguments.workers, persistent_workers=True)

    def once() -> None:
        if arguments.device == "cpu":
            for _ in loader:
                pass
            return
        for first in range(0, len(tensors), batch):
            images = decode_jpeg(tensors[first:first + batch], mode=ImageReadMode.RGB, device="cuda")
            torch.stack([transform(image) for image in images])
        torch.cuda.synchronize()

    best = float("inf")
    for _ in range(PASSES):
        start = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - start)
    return best, torchvision.__version__


def compare(arguments: argparse.Namespace) -> str:
    packed = PackedImages(folder_of(arguments))
    count = min(arguments.images, len(packed))
    encoded = [packed.encoded(index * len(packed) // count) for index in range(count)]
    if not all(each.startswith(b"\xff\xd8") for each in encoded):
        raise UserError(f"{packed.folder}: not all images are JPEG, which is what torchvision decodes here")
    deck = load_yaml(arguments.deck)
    size = whole(deck_value(deck, "model.image"), "model.image", str(arguments.deck))
    ours = bench(arguments, "--mode", "data", "--steps", "50")
    batch = int(ours["rank_images"])
    seconds, version = torchvision_seconds(encoded, size, batch, arguments)
    rows = {name: round(row["images_per_second"], 1) for name, row in ours["rows"].items()}
    return line_of(ours["rows"]["prefetch"]["images_per_second"], count / seconds, "torchvision",
                   {"version": version, "device": arguments.device, "deck": str(arguments.deck), "source": ours["source"],
                    "image": size, "batch": batch, "images": count, "workers": arguments.workers, "rows": rows,
                    "commit": ours["commit"]})


def main(words: list[str] | None = None) -> int:
    import os
    parser = make_parser("image_loader", __doc__)
    parser.add_argument("--images", type=int, default=4096, metavar="N", help="that torchvision prepares (default 4096)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="processes of torchvision on the CPU (default: all cores)")
    return run("image_loader", compare, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
