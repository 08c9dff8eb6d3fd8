#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pack-images, and jobs/data/cifar_python.py before it."""

import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile

import support

JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "data"
HAS_NUMPY = subprocess.run([sys.executable, "-c", "import numpy"], capture_output=True, check=False).returncode == 0


def ppm(value, side=4):
    """An image of one shade."""
    return f"P6\n{side} {side}\n255\n".encode() + bytes([value]) * (3 * side * side)


class PackImages(support.Case):
    """The whole command, on a folder of its own."""

    def setUp(self):
        for name in ("in", "packed"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def put(self, name, data):
        """A file below the folder in/."""
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def pack(self, *options):
        """Packs in/ as packed/."""
        return self.run_program("pack-images", "--input", "in", "--output", "packed", *options)

    def rows(self):
        """index.npy as lists of shard, offset, bytes, label."""
        data = (self.folder / "packed/index.npy").read_bytes()[128:]
        return [list(struct.unpack_from("<4q", data, at)) for at in range(0, len(data), 32)]

    def test_class_folders_become_shards_with_an_index(self):
        self.put("dog/b.ppm", ppm(7))
        self.put("cat/a.ppm", ppm(5, side=6))

        result = self.pack()

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("packed: 2 images of 2 classes from class folders", result.out)
        self.assertIn("width 4 to 6, height 4 to 6 pixels", result.out)
        self.assertEqual(sorted(os.listdir(self.folder / "packed")), ["index.npy", "set.json", "shard_00000.tar"])
        with tarfile.open(self.folder / "packed/shard_00000.tar") as tar:
            self.assertEqual(tar.getnames(), ["cat/a.ppm", "dog/b.ppm"])
            self.assertEqual(tar.extractfile("dog/b.ppm").read(), ppm(7))
        shard = (self.folder / "packed/shard_00000.tar").read_bytes()
        images = [shard[offset:offset + size] for _, offset, size, _ in self.rows()]
        self.assertEqual(images, [ppm(5, side=6), ppm(7)])
        self.assertEqual([row[3] for row in self.rows()], [0, 1])
        packed = json.loads((self.folder / "packed/set.json").read_text(encoding="utf-8"))
        self.assertEqual((packed["format"], packed["images"], packed["classes"]), ("hyperslab images", 2, ["cat", "dog"]))

    def test_broken_images_are_refused_or_listed(self):
        self.put("cat/a.ppm", ppm(5))
        self.put("cat/cut.ppm", ppm(5)[:-3])

        self.assert_refused(self.pack(), 3, "1 of 2 images are broken", "in/cat/cut.ppm", "--broken skip")
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("packed")], [])

        result = self.pack("--broken", "skip")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("left out: in/cat/cut.ppm: expected 48 bytes of pixels, found 45", result.out)

    def test_a_run_names_a_broken_image_once_and_counts_all_on_every_layout(self):
        with tarfile.open(self.folder / "some.tar", "w") as tar:
            for index in range(8):
                data = ppm(20 * index)[:-3 if index == 5 else None]
                member = tarfile.TarInfo(f"{'cat' if index % 2 else 'dog'}/{index}.ppm")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        settings = ("run.device=cpu", "data.train=[some.tar]", "data.validation=[]", "data.broken_images=skip",
                    "model.classes=2", "model.layers=1", "model.width=16", "model.image=16", "train.steps=6",
                    "train.global_batch=8", "train.microbatch=4", "train.validate_every=0", "checkpoint.every=0")

        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                result = self.run_program("train", JOBS.parents[1] / "inputs/quickstart-images.yaml",
                                          *support.overrides(*settings, f"run.directory=broken{ranks}", "parallel.data=1",
                                                             f"parallel.tensor={ranks}"), ranks=ranks)

                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(result.err.count("cat/5.ppm"), ranks, result.err)
                self.assertIn("6 of 48 images broken, which did not count", result.err)

    def test_what_is_wrong_is_said(self):
        self.put("cat/a.ppm", ppm(5))
        for options, found in [(("--broken", "no"), "--broken is 'no'; it must be refuse or skip"),
                               (("--split", "test"), "--split is 'test'; it must be train or validation"),
                               (("--shard-mib", "0"), "--shard-mib is 0"),
                               (("--split", "train"), "is not divided into training and validation")]:
            with self.subTest(options=options):
                self.assert_refused(self.pack(*options), 2, found)
        (self.folder / "packed").mkdir()
        self.assert_refused(self.pack(), 2, "--output 'packed' exists")

    def test_a_class_without_images_is_warned_of(self):
        self.put("cat/a.ppm", ppm(5))
        (self.folder / "in/dog").mkdir()

        result = self.pack()

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("1 of 2 classes have no image", result.err)

    @support.unittest.skipUnless(HAS_NUMPY, "no NumPy")
    def test_cifar_python_files_are_converted(self):
        planes = bytes(range(256)) * 12
        array = ("import numpy, pickle, sys; data = numpy.frombuffer(bytes(range(256)) * 12, numpy.uint8)[None]; "
                 "sys.stdout.buffer.write(pickle.dumps({b'data': data, b'labels': [6]}, protocol=2))")
        written = subprocess.run([sys.executable, "-c", array], capture_output=True, check=True).stdout
        self.put("data_batch_1", written)
        self.put("batches.meta", b"")
        self.assert_refused(self.pack(), 3, "its Python version (pickles)", "jobs/data/cifar_python.py")

        convert = [sys.executable, JOBS / "cifar_python.py", "in", "converted"]
        subprocess.run(convert, cwd=self.folder, capture_output=True, check=True)
        self.assertEqual((self.folder / "converted/data_batch_1.bin").read_bytes(), bytes([6]) + planes)
        result = self.run_program("pack-images", "--input", "converted", "--output", "packed")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("1 images of 10 classes from CIFAR-10", result.out)

    @support.unittest.skipUnless(HAS_NUMPY, "no NumPy")
    def test_pickles_that_call_programs_are_refused(self):
        self.put("data_batch_1", pickle.dumps(os.getcwd))
        convert = [sys.executable, JOBS / "cifar_python.py", "in", "converted"]

        result = subprocess.run(convert, cwd=self.folder, capture_output=True, check=False)

        self.assertNotEqual(result.returncode, 0)
        self.assertIn(b"expected numbers and arrays, found posix.getcwd", result.stderr)


if __name__ == "__main__":
    support.main()
