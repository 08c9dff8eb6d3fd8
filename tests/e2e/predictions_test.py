#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model of images sees and says: bench --samples, eval --predictions and --logits."""

import csv
import io
import json
import math
import struct
import tarfile

import support

CLASSES = 3
IMAGES = 10  # of validation; not a multiple of the batch
SIZE = 8
DECK = f"""
run: {{device: cpu, seed: 3, directory: run}}
model: {{family: vit, layers: 1, width: 16, heads: 2, image: {SIZE}, patch: 4, classes: {CLASSES}}}
data: {{train: [packed], validation: [checked]}}
augment: {{crop: center, validation_crop: 1, flip: 0}}
optimizer: {{name: adamw, lr: 1.0e-3}}
train: {{steps: 2, global_batch: 4, microbatch: 2}}
checkpoint: {{every: 2}}
"""


def shade(index):
    """Red, green and blue of image `index`."""
    return (20 * index, 255 - 20 * index, 100)


def read_npy(path):
    """Type, shape as text, and bytes."""
    data = path.read_bytes()
    size = struct.unpack_from("<H", data, 8)[0]
    header = data[10:10 + size].decode()
    return header.split("'descr': '")[1][:3], header.split("'shape': ")[1].split(", }")[0], data[10 + size:]


class Predictions(support.Case):
    """A tiny model of plain images, whose label is their number modulo the classes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "vit.yaml").write_text(DECK, encoding="utf-8")
        for name, count in (("packed", 8), ("checked", IMAGES)):
            for index in range(count):
                folder = cls.folder / f"{name}.in" / f"class{index % CLASSES}"
                folder.mkdir(parents=True, exist_ok=True)
                pixels = bytes(shade(index)) * SIZE * SIZE
                (folder / f"{index:02}, \"one\".ppm").write_bytes(f"P6\n{SIZE} {SIZE}\n255\n".encode() + pixels)
            cls.well(cls.run_program("pack-images", "--input", f"{name}.in", "--output", name))
        cls.well(cls.run_program("train", "vit.yaml"))

    def losses(self, directory):
        """Of all steps of a run."""
        lines = (self.folder / directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}

    def test_a_resumed_run_sees_the_next_image_on_another_layout(self):
        random = support.overrides("augment.crop=padded", "augment.flip=0.5", "augment.policy=randaugment", "augment.mixup=0.5",
                                   "augment.erase=0.25", "model.drop_path=0.2", "model.layers=2", "schedule.name=constant")
        for mode, more in (("pair", ()), ("batch", ("augment.mix_mode=batch", "augment.repeats=3", "optimizer.ema_decay=0.5",
                                                    "optimizer.evaluate_ema=true"))):
            with self.subTest(mode):
                self.check_resuming(f"{mode}_whole", f"{mode}_parts", *random, *support.overrides(*more))

        changed = self.run_program("train", "vit.yaml", *random, *support.overrides(
            "run.directory=batch_parts", "train.steps=8", "augment.mix_mode=batch", "augment.repeats=2"))
        self.assert_refused(changed, 4, "the order of samples changed", "seed=3 images repeats=3",
                            "; resume with augment.repeats as before")

    def check_resuming(self, one, two, *random):
        """A run of six steps as `one`, and as `two` of three steps and three on two ranks."""
        self.well(self.run_program("train", "vit.yaml", *random, *support.overrides(f"run.directory={one}", "train.steps=6")))

        self.well(self.run_program("train", "vit.yaml", *random, *support.overrides(f"run.directory={two}", "train.steps=3",
                                                                                    "checkpoint.every=3")))
        self.well(self.run_program("train", "vit.yaml", *random, *support.overrides(
            f"run.directory={two}", "train.steps=6", "parallel.data=2", "train.microbatch=2"), ranks=2))

        whole, parts = self.losses(one), self.losses(two)
        self.assertEqual(sorted(parts), list(range(1, 7)))
        self.assertEqual(sorted(whole), sorted(parts))
        for step, loss in whole.items():
            self.assertAlmostEqual(parts[step], loss, delta=1e-5, msg=f"step {step}")
        self.assertGreater(len({round(loss, 3) for loss in whole.values()}), 3)  # or any image would do

    def test_a_broken_image_counts_on_no_layout(self):
        """Of a tar that is read as it is: class folders, and one image cut short."""
        with tarfile.open(self.folder / "broken.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(12):
                data = f"P6\n{SIZE} {SIZE}\n255\n".encode() + bytes(shade(index)) * SIZE * SIZE
                member = tarfile.TarInfo(f"class{index % CLASSES}/{index:02}.ppm")
                data = data[:-5] if index == 7 else data
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        settings = support.overrides("data.train=[broken.tar]", "train.steps=3", "checkpoint.every=0", "augment.mixup=0.5")
        self.assert_refused(self.run_program("train", "vit.yaml", *settings, "--set", "run.directory=refused"), 3,
                            "07.ppm", "set data.broken_images to skip")
        losses = []
        for directory, ranks, layout in (("one", 1, ()), ("two", 2, ("parallel.data=2",)), ("cut", 2, ("parallel.pipeline=2",))):
            self.well(self.run_program("train", "vit.yaml", *settings, *support.overrides(
                "data.broken_images=skip", "model.layers=2", f"run.directory={directory}", *layout), ranks=ranks))
            losses.append(self.losses(directory))
        for step, loss in losses[0].items():
            for other in losses[1:]:
                self.assertAlmostEqual(other[step], loss, delta=1e-5, msg=f"step {step}")

    @staticmethod
    def well(result):
        """The result of a command that has to succeed."""
        if result.code != 0:
            raise AssertionError(result.err)
        return result

    def predictions(self, ranks=0, *options):
        """Rows of --predictions."""
        layout = support.overrides(f"parallel.data={max(1, ranks)}")
        self.well(self.run_program("eval", "vit.yaml", "--checkpoint", "run", "--predictions", "found.csv",
                                   "--json", "eval.json", *layout, *options, ranks=ranks))
        with open(self.folder / "found.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_every_image_has_its_name_label_and_prediction(self):
        rows = self.predictions(0, "--logits", "logits.npy")

        self.assertEqual([int(row["index"]) for row in rows], list(range(IMAGES)))
        for row in rows:
            number = int(row["name"].rsplit("/", 1)[1].split(",")[0])
            self.assertTrue(row["name"].endswith(', "one".ppm'), row["name"])
            self.assertEqual(int(row["label"]), number % CLASSES)
            self.assertEqual(row["correct"], str(int(row["label"] == row["prediction"])))
        found = json.loads((self.folder / "eval.json").read_text(encoding="utf-8"))
        self.assertAlmostEqual(found["top1"], sum(row["correct"] == "1" for row in rows) / IMAGES)
        kind, shape, data = read_npy(self.folder / "logits.npy")
        self.assertEqual((kind, shape), ("<f4", f"({IMAGES}, {CLASSES})"))
        logits = struct.unpack(f"<{IMAGES * CLASSES}f", data)
        for index, row in enumerate(rows):
            own = logits[index * CLASSES:(index + 1) * CLASSES]
            self.assertEqual(int(row["prediction"]), own.index(max(own)))
        self.assertGreater(len({tuple(logits[i:i + CLASSES]) for i in range(0, len(logits), CLASSES)}), 1)

    def test_layouts_predict_the_same(self):
        alone = self.predictions()
        self.assertEqual(self.predictions(2), alone)
        self.assertEqual(self.predictions(2, *support.overrides("parallel.data=1", "parallel.pipeline=2")), alone)

    def test_a_model_sees_the_images_of_its_first_batch(self):
        self.well(self.run_program("bench", "vit.yaml", "--mode", "data", "--steps", "1", "--samples", "seen.npy"))

        kind, shape, data = read_npy(self.folder / "seen.npy")

        self.assertEqual((kind, shape), ("|u1", f"(4, {SIZE}, {SIZE}, 3)"))
        images = [data[i:i + 3 * SIZE * SIZE] for i in range(0, len(data), 3 * SIZE * SIZE)]
        known = [bytes(shade(index)) * SIZE * SIZE for index in range(8)]
        self.assertEqual(len({known.index(image) for image in images}), 4)

    def test_a_checkpoint_goes_to_another_resolution(self):
        """The first loss is the same on every layout; other parameters must fit."""
        larger = support.overrides("checkpoint.initial=run", f"model.image={2 * SIZE}", "train.steps=1", "checkpoint.every=0")
        losses = []
        for layout in ("tensor", "pipeline"):
            directory = f"larger_{layout}"
            result = self.well(self.run_program("train", "vit.yaml", *larger, *support.overrides(
                f"parallel.{layout}=2", f"run.directory={directory}"), ranks=2))
            self.assertIn(f"from {SIZE} x {SIZE} pixels to {2 * SIZE} x {2 * SIZE}, positions resampled", result.err)
            losses += support.column(self.folder / directory, "loss")
        self.well(self.run_program("train", "vit.yaml", *larger, "--set", "run.directory=larger"))
        losses += support.column(self.folder / "larger", "loss")
        self.assert_close(losses, [losses[0]] * 3, 1e-5)
        other = support.overrides("checkpoint.initial=run", f"model.image={2 * SIZE}", "model.patch=8", "run.directory=other")
        self.assert_refused(self.run_program("train", "vit.yaml", *other), 4, "another", "patch")

    def test_a_new_head_has_classes_of_its_own(self):
        """Every layout begins alike, at a loss of about ln(classes); without the key other classes are refused."""
        other = support.overrides("checkpoint.initial=run", f"model.classes={CLASSES + 3}", f"model.image={2 * SIZE}", "train.steps=1",
                                  "checkpoint.every=0", "data.train=[synthetic]", "data.validation=[]")
        self.assert_refused(self.run_program("train", "vit.yaml", *other, "--set", "run.directory=old_head"), 4, f"{CLASSES} classes",
                            "checkpoint.new_head")
        losses = []
        for layout in ("data", "tensor", "pipeline"):
            directory = f"new_head_{layout}"
            result = self.well(self.run_program("train", "vit.yaml", *other, *support.overrides(
                "checkpoint.new_head=true", f"parallel.{layout}=2", f"run.directory={directory}"), ranks=2))
            self.assertIn("positions resampled, with a new head", result.err)
            losses += support.column(self.folder / directory, "loss")
        self.assert_close(losses, [losses[0]] * 3, 1e-5)
        self.assertAlmostEqual(losses[0], math.log(CLASSES + 3), delta=0.3)
        for more, words in (("train.trainable=[matrix]", "add head to train.trainable"), ("adapter.rank=2", "adapters alone")):
            self.assert_refused(self.run_program("train", "vit.yaml", *other, *support.overrides("checkpoint.new_head=true", more)), 2, words)

    def test_what_does_not_fit_is_refused(self):
        for options, words in ((("bench", "deck.yaml", "--mode", "data", "--samples", "a.npy",
                                 *support.overrides("data.train=[text.bin]")), "--samples is for images"),
                               (("bench", "vit.yaml", "--mode", "step", "--samples", "a.npy"), "--samples goes with --mode data"),
                               (("eval", "vit.yaml", "--checkpoint", "run", "run", "--predictions", "a.csv"), "one checkpoint, found 2"),
                               (("eval", "deck.yaml", "--checkpoint", "run", "--logits", "a.npy"), "are for images")):
            with self.subTest(words=words):
                self.assert_refused(self.run_program(*options), 2, words)
                self.assertFalse((self.folder / "a.npy").exists())


if __name__ == "__main__":
    support.main()
