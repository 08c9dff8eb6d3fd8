#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/data/*.sh for sets of images, without a network: archives of the sets' layouts under file://."""

import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile

import support
from data_jobs import DataJobs, sha256


def python_with_numpy():
    """This Python or the system's, whichever has NumPy; None if neither has."""
    for python in (sys.executable, "/usr/bin/python3"):
        asked = subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False)
        if asked.returncode == 0:
            return python
    return None


def ppm(red):
    """An image of 4 x 4 pixels."""
    return b"P6 4 4 255\n" + struct.pack("3B", red, 0, 255 - red) * 16


def cifar_records(labels):
    """CIFAR's binary format."""
    return b"".join(bytes([label]) + bytes([label]) * 3072 for label in labels)


def tar_gz(files):
    """An archive of bytes by name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


@support.unittest.skipIf(shutil.which("curl") is None, "no curl")
class ImageSets(DataJobs):
    """Each script on what it would fetch, or on a copy."""

    def packed(self, name, split):
        """What pack-images wrote of a split."""
        return json.loads((self.folder / "data" / name / split / "set.json").read_text(encoding="utf-8"))

    def serve_tiny(self, extra=()):
        """TinyImageNet with two classes; returns its archive."""
        out = io.BytesIO()
        root = "tiny-imagenet-200/"
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(root + "wnids.txt", "n02\nn01\n")
            for name in ("n01", "n02"):
                archive.writestr(f"{root}train/{name}/images/{name}_0.JPEG", ppm(10))
                archive.writestr(f"{root}val/images/val_{name}.JPEG", ppm(20))
            archive.writestr(root + "val/val_annotations.txt", "val_n01.JPEG\tn01\t0\t0\t3\t3\nval_n02.JPEG\tn02\t0\t0\t3\t3\n")
        self.serve("tiny-imagenet-200.zip", out.getvalue())
        self.replace("tinyimagenet.sh", {
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821": sha256(out.getvalue()),
            "1500 << 20": "1 << 20"})

    def copy_of_imagenet(self, classes):
        """Class folders below train and val, these alone."""
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        for part in ("train", "val"):
            for name in classes:
                folder = self.folder / "copy" / part / name
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "a.JPEG").write_bytes(ppm(30))
        return str(self.folder / "copy")

    def test_cifar10_is_packed_by_split(self):
        batches = {f"cifar-10-batches-bin/data_batch_{i}.bin": cifar_records([i, i - 1]) for i in range(1, 6)}
        batches["cifar-10-batches-bin/test_batch.bin"] = cifar_records([9])
        batches["cifar-10-batches-bin/batches.meta.txt"] = b"\n".join(b"class%d" % i for i in range(10)) + b"\n"
        archive = tar_gz(batches)
        self.serve("~kriz/cifar-10-binary.tar.gz", archive)
        self.replace("cifar10.sh", {
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd": sha256(archive), "600 << 20": "1 << 20"})

        words = self.job("cifar10")

        self.assertEqual(self.packed("cifar10", "train")["images"], 10)
        self.assertEqual(self.packed("cifar10", "validation")["images"], 1)
        self.assertIn("inputs/vit-cifar10.yaml --set 'data.train=[", words)
        self.assertFalse(list((self.folder / "data/cifar10/source").iterdir()))

    def test_tinyimagenet_is_fetched_once(self):
        self.serve_tiny()
        self.job("tinyimagenet", "--keep")
        self.assertTrue((self.folder / "data/tinyimagenet/source/tiny-imagenet-200.zip").is_file())
        shutil.rmtree(self.folder / "www")

        words = self.job("tinyimagenet")

        self.assertNotIn("fetching", words)
        self.assertEqual(self.packed("tinyimagenet", "train")["classes"], ["n02", "n01"])
        self.assertEqual(self.packed("tinyimagenet", "validation")["images"], 2)

    def test_another_archive_is_refused(self):
        self.serve_tiny()
        self.serve("tiny-imagenet-200.zip", b"damaged")

        words = self.job("tinyimagenet", code=3)

        self.assertIn("SHA-256", words)
        self.assertFalse((self.folder / "data/tinyimagenet/train").exists())

    def test_imagenet100_takes_its_classes_from_a_copy(self):
        classes = (self.jobs / "data" / "imagenet100.txt").read_text(encoding="utf-8").split()
        self.assertEqual((len(classes), classes), (100, sorted(set(classes))))
        copy = self.copy_of_imagenet([*classes, "n99999999"])

        words = self.job("imagenet", "--classes", "100", "--folder", copy)

        for split in ("train", "validation"):
            self.assertEqual(self.packed("imagenet100", split)["classes"], classes)
        self.assertIn("inputs/vit-s16-imagenet100.yaml", words)
        self.assertTrue((self.folder / "copy/train" / classes[0] / "a.JPEG").is_file())

    def test_imagenet_without_an_account_or_a_copy_says_so(self):
        self.assertIn("HF_TOKEN", self.job("imagenet", code=2, HF_TOKEN=""))
        self.assertIn("give --folder", self.job("imagenet", "--classes", "100", code=2))
        self.assertIn("expected 100 or 1000", self.job("imagenet", "--classes", "7", code=2))
        self.assertIn("needs a value", self.job("imagenet", "--folder", code=2))
        copy = self.copy_of_imagenet(["n01440764"])
        self.assertIn("1 class folders", self.job("imagenet", "--folder", copy, code=3))
        self.assertIn("has no class folder", self.job("imagenet", "--classes", "100", "--folder", copy, code=3))
        self.assertIn("no such folder", self.job("imagenet", "--folder", "/nowhere", code=3))
        self.assertIn("no --small", self.job("cifar10", "--small", code=2))
        self.assertIn("on the internet", self.job("cifar10", code=3, url="http://127.0.0.1:9"))

    def folders(self, *words, code=0):
        """Runs image_folders.py; its words."""
        python = python_with_numpy()
        if python is None:
            self.skipTest("no NumPy")
        result = subprocess.run([python, str(self.jobs / "data/image_folders.py"), *map(str, words)],
                                capture_output=True, check=False, timeout=60, cwd=self.folder, text=True)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stderr

    def test_shapes_are_drawn_and_packed(self):
        for name in ("shapes", "again"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            self.folders("draw", name, "--images", 6, "--size", 16)

        for split, images in (("train", 60), ("validation", 12)):
            self.checked(self.run_program("pack-images", "--input", "shapes", "--split", split, "--output", f"packed-{split}"))
            found = json.loads((self.folder / f"packed-{split}/set.json").read_text(encoding="utf-8"))
            self.assertEqual((found["images"], len(found["classes"])), (images, 12))
        files = sorted(path.relative_to(self.folder / "shapes") for path in (self.folder / "shapes").rglob("*.ppm"))
        for file in files:
            self.assertEqual((self.folder / "shapes" / file).read_bytes(), (self.folder / "again" / file).read_bytes())

    def test_a_folder_is_split(self):
        for name in ("cat", "dog"):
            (self.folder / "pets" / name).mkdir(parents=True, exist_ok=True)
            for index in range(11):
                (self.folder / "pets" / name / f"{index}.ppm").write_bytes(ppm(index))
            (self.folder / "pets" / name / "notes.txt").write_text("no image", encoding="utf-8")
        shutil.rmtree(self.folder / "halves", ignore_errors=True)

        self.folders("split", "pets", "halves")

        self.assertEqual(len(list((self.folder / "halves/train").rglob("*.ppm"))), 18)
        self.assertEqual(len(list((self.folder / "halves/val").rglob("*.ppm"))), 4)
        self.assertEqual((self.folder / "halves/train/dog/7.ppm").read_bytes(), ppm(7))
        self.assertEqual(self.folders("split", "pets", "halves", code=1), "halves exists; name a new folder, or remove it\n")
        self.assertEqual(self.folders("split", "nowhere", "other", code=1), "nowhere: No such file or directory\n")
        shutil.rmtree(self.folder / "pets/dog")
        self.assertIn("1 class folders, expected at least 2", self.folders("split", "pets", "other", code=1))
        (self.folder / "pets/dog").mkdir()
        (self.folder / "pets/one").mkdir()
        (self.folder / "pets/one/1.ppm").write_bytes(ppm(1))
        for words in (("pets", "other"), ("pets",)):
            said = self.folders("split", *words, code=1)
            self.assertIn("dog has 0, one has 1: add images, or take these folders away", said)
        self.assertFalse((self.folder / "other").exists())


if __name__ == "__main__":
    support.main()
