#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resuming from what does not fit, or from what is damaged."""

import support

TENSOR = "model/blocks.0.attention.query.weight"
ADVICE = "another run.name, or start over with --resume never"


class Resume(support.Case):
    """A finished run of two ranks with checkpoints of steps 10 and 20."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", ranks=2)
        cls.losses = support.column(cls.folder / "run", "loss")

    def refuse(self, run, words, *settings, options=(), code=4):
        """A resume that must fail and leave the run directory as it is."""
        before = support.snapshot(self.folder / run)
        result = self.run_program("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", "parallel.data=2", *settings), *options, ranks=2)
        self.assert_refused(result, code, *words)
        self.assertEqual(support.snapshot(self.folder / run), before)

    def test_another_model(self):
        for setting, words in (("width=64", "width=32 here width=64"), ("layers=3", "layers=2 here layers=3"),
                               ("activation=gelu", "activation=swiglu here activation=gelu")):
            self.refuse("run", ["step_00000020", "another model", words, ADVICE], f"model.{setting}")

    def test_another_model_of_equal_shapes(self):
        self.refuse("run", ["another model", "heads=", "here heads=8"], "model.heads=8")
        self.refuse("run", ["another model", "norm_eps=1e-05 here norm_eps=0.1"], "model.norm_eps=0.1")

    def test_another_order_of_samples(self):
        self.refuse("run", ["order of samples changed", "seed=77", "; resume with run.seed as before"], "run.seed=77")
        self.refuse("run", ["order of samples changed", "sampling=windows", "; resume with data.sampling as before"],
                    "data.sampling=windows")
        self.refuse("run", ["; resume with run.seed and data.sampling as before"], "data.sampling=windows", "run.seed=77")

    def test_a_fresh_start_sets_earlier_checkpoints_aside(self):
        run = self.copy_of("run", "started_over")
        result = self.run_program("train", "deck.yaml", *support.overrides(
            "run.directory=started_over", "parallel.data=2"), "--resume", "never", "--stop-after", "5", ranks=2)

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("checkpoints.old.1", result.err)
        self.assertEqual([path.name for path in sorted(run.glob("checkpoints/step_*"))], ["step_00000005"])
        self.assertEqual([path.name for path in sorted(run.glob("checkpoints.old.1/step_*"))],
                         ["step_00000010", "step_00000020"])

    def test_changed_training_data(self):
        support.write_tokens(self.folder / "other.bin", [*support.text().encode(), 10, 256])

        self.refuse("run", ["training data changed since step 20", "same files", ADVICE], "data.train=[other.bin]")
        self.refuse("run", ["training data changed"], "data.train=[text.bin, text.bin]")

    def test_changed_global_batch(self):
        self.refuse("run", ["global_batch 24", "240 samples", "480"], "train.global_batch=24")

    def test_a_step_that_is_not_there(self):
        self.refuse("run", ["step 15", "there are: 10 20"], options=("--resume", "15"))

    def check_fallback(self, name, damage, *words):
        """With step 20 damaged, steps 11 to 20 are done again and come out the same."""
        run = self.copy_of("run", name)
        damage(run / "checkpoints/step_00000020")
        result = self.train(name, ranks=2)

        for word in ("step_00000020", "resumed from", "step_00000010", *words):
            self.assertIn(word, result.err)
        self.assertEqual(support.column(run, "loss"), self.losses)
        self.assertEqual(support.tensors(run / "checkpoints/step_00000020"),
                         support.tensors(self.folder / "run/checkpoints/step_00000020"))

    def test_truncated_file_falls_back(self):
        self.check_fallback("cut", lambda step: support.cut(step / "rank_00001.h5", 7), "bytes, expected")

    def test_missing_file_falls_back(self):
        self.check_fallback("gone", lambda step: (step / "rank_00000.h5").unlink(), "rank_00000.h5")

    def test_torn_manifest_falls_back(self):
        self.check_fallback("torn", lambda step: support.cut(step / "manifest.json", 50), "manifest.json")

    def test_flipped_byte_falls_back(self):
        self.check_fallback("flip", lambda step: support.flip_byte(step, TENSOR), TENSOR, "CRC32C")

    def test_flipped_byte_of_a_step_asked_for_is_refused(self):
        run = self.copy_of("run", "asked")
        support.flip_byte(run / "checkpoints/step_00000020", TENSOR)

        self.refuse("asked", [TENSOR, "CRC32C"], options=("--resume", "20"))

    def test_missing_or_wrong_latest_does_not_matter(self):
        for name, text in [("nolatest", None), ("lost", "step_00000077\n"), ("garbage", "\x00\x01")]:
            with self.subTest(latest=text):
                latest = self.copy_of("run", name) / "checkpoints/latest"
                latest.unlink()
                if text is not None:
                    latest.write_text(text, encoding="utf-8")
                result = self.train(name, ranks=2)
                self.assertIn("step_00000020 (step 20", result.err)
                self.assertIn("newest complete step", result.err)

    def test_nothing_sound_is_left(self):
        cut = self.copy_of("run", "allcut") / "checkpoints"
        flipped = self.copy_of("run", "allflipped") / "checkpoints"
        for step in ("step_00000010", "step_00000020"):
            support.cut(cut / step / "rank_00000.h5", 3)
            support.flip_byte(flipped / step, TENSOR)

        self.refuse("allcut", ["none of 2 checkpoints is complete", "step_00000010", "--resume never"])
        before = support.snapshot(self.folder / "allflipped")
        result = self.run_program("train", "deck.yaml", *support.overrides(
            "run.directory=allflipped", "parallel.data=2"), ranks=2)
        self.assertEqual(result.code, 4, result.err)
        self.assertEqual(len(result.messages), 1)
        self.assertEqual(support.snapshot(self.folder / "allflipped"), before)

    def test_an_unfinished_step_is_no_checkpoint(self):
        step = self.folder / "fresh/checkpoints/step_00000005.tmp"
        step.mkdir(parents=True)
        (step / "rank_00000.h5").write_bytes(b"half")

        self.train("fresh", "train.steps=3", ranks=2)

        self.assertEqual(support.column(self.folder / "fresh", "step"), [1, 2, 3])
        self.assertFalse(step.exists())


if __name__ == "__main__":
    support.main()
