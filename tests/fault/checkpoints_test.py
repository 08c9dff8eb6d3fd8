#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints: flipped bits and cut files are found, and the step before is loaded."""

import json
import random
import re
import shutil

import fault_support
import support

SETTINGS = (*fault_support.PLAIN, "checkpoint.every=2", "checkpoint.keep=2", "train.steps=6", "model.layers=1")
SEED = 16


class Damaged(fault_support.FaultCase):
    """Checkpoints of steps 4 and 6 of two ranks; step 6 is damaged."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", *SETTINGS, ranks=2)
        cls.newest = fault_support.step_folder(cls.folder / "run/checkpoints", 6)
        cls.files = sorted(path.name for path in cls.newest.iterdir() if path.is_file())

    def damage(self, file, data):
        """A copy of the newest step with another file in it; what verify says of it."""
        folder = self.folder / "damaged/step_00000006"
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(self.newest, folder)
        (folder / file).write_bytes(data)
        return folder, self.verify(folder.parent)

    def assert_falls_back(self, file, data):
        """The run goes on from step 4, and says why."""
        run = self.copy_to("run", "falls")
        (run / "checkpoints/step_00000006" / file).write_bytes(data)

        result = self.run_job("falls", *SETTINGS)

        self.assertRegex(result.err, r"(falling back to|resumed from \S+) ?step.?0*4\b|\(step 4, ")
        self.assert_equal_steps(run / "checkpoints", self.folder / "run/checkpoints", [6])
        self.assertEqual(support.column(run, "loss"), support.column(self.folder / "run", "loss"))


class Fault17(Damaged):
    """50 files cut at random."""

    def test_truncations(self):
        draw = random.Random(SEED)
        for number in range(50):
            file = draw.choice(self.files)
            data = (self.newest / file).read_bytes()
            size = draw.randrange(len(data))
            with self.subTest(file=file, size=size):
                _, result = self.damage(file, data[:size])

                self.assertEqual(result.code, 4, result.err)
                self.assertIn(re.sub(r"rank_0*", "", file), result.err)
                if number % 10 == 0:
                    self.assert_falls_back(file, data[:size])


class Fault18(Damaged):
    """200 bits flipped at random: found, or in no tensor and no structure."""

    def test_flipped_bits(self):
        draw = random.Random(SEED)
        tensors = support.tensors(self.newest)
        found, harmless = 0, 0
        for number in range(200):
            file = draw.choice(self.files)
            data = bytearray((self.newest / file).read_bytes())
            offset = draw.randrange(len(data))
            data[offset] ^= 1 << draw.randrange(8)
            with self.subTest(file=file, byte=offset):
                folder, result = self.damage(file, bytes(data))

                self.assertIn(result.code, (0, 4), result.err)
                self.assertNotIn("fault of the program", result.err)
                if result.code == 4:
                    found += 1
                    is_in_tensor = support.tensors(folder) != tensors if file.endswith(".h5") else True
                    if number % 20 == 0 and is_in_tensor:  # a resume reads tensors, and not HDF5's structure
                        self.assert_falls_back(file, bytes(data))
                    continue
                harmless += 1
                self.assertTrue(file.endswith(".h5"), f"{file} is not checked at byte {offset}")
                self.assertEqual(support.tensors(folder), tensors)
        print(json.dumps({"found": found, "harmless": harmless}))
        self.assertGreater(found, 100)


if __name__ == "__main__":
    support.main()
