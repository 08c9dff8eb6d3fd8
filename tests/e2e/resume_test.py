#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stop and resume: the same bits on the same ranks, the same curve on other ranks."""

import support

EXACT = ("step", "loss", "grad_norm", "lr", "tokens", "perplexity", "token_accuracy", "skipped_steps")
LAST = "checkpoints/step_00000020"


class SameRanks(support.Case):
    """Bit for bit, past the end of the first epoch."""

    def check(self, name, ranks, *settings):
        """An uninterrupted run and one that stopped twice leave the same numbers and tensors."""
        whole, parts = self.folder / f"{name}_whole", self.folder / f"{name}_parts"
        self.train(whole.name, *settings, ranks=ranks)
        self.train(parts.name, *settings, ranks=ranks, options=("--stop-after", "7"))
        self.assertEqual(support.column(parts, "step"), list(range(1, 8)))
        self.train(parts.name, *settings, ranks=ranks, options=("--stop-after", "13"))
        result = self.train(parts.name, *settings, ranks=ranks)

        self.assertIn("resumed from", result.err)
        for key in EXACT:
            self.assertEqual(support.column(parts, key), support.column(whole, key), key)
        for key in ("validation_loss", "validation_token_accuracy"):
            self.assertEqual([line.get(key) for line in support.metrics(parts)],
                             [line.get(key) for line in support.metrics(whole)])
        self.assertEqual(support.tensors(parts / LAST), support.tensors(whole / LAST))
        self.assertEqual(sorted(path.name for path in (parts / "timing").iterdir()),
                         ["start_0001", "start_0002", "start_0003"])

    def test_with_dropout_on_two_ranks(self):
        self.check("dropout", 2, "model.dropout=0.1")

    def test_with_windows_on_one_rank(self):
        self.check("windows", 1, "data.sampling=windows", "train.microbatch=4")

    def test_with_dropout_and_windows_on_four_ranks(self):
        self.check("both", 4, "model.dropout=0.1", "data.sampling=windows", "train.microbatch=1")

    def test_the_same_start_twice_gives_the_same_bits(self):
        for run in ("once", "twice"):
            self.train(run, "model.dropout=0.1", ranks=4)

        self.assertEqual(support.column(self.folder / "once", "loss"),
                         support.column(self.folder / "twice", "loss"))
        self.assertEqual(support.tensors(self.folder / "once" / LAST),
                         support.tensors(self.folder / "twice" / LAST))

    def test_another_seed_gives_another_run(self):
        self.train("seed7")
        self.train("seed8", "run.seed=8")

        self.assertNotEqual(support.column(self.folder / "seed7", "loss"),
                            support.column(self.folder / "seed8", "loss"))

    def test_a_chosen_step_is_done_again(self):
        self.train("again", "checkpoint.every=5")
        before = support.column(self.folder / "again", "loss")

        result = self.train("again", "checkpoint.every=5", options=("--resume", "10"))

        self.assertIn("step_00000010", result.err)
        self.assertEqual(support.column(self.folder / "again", "loss"), before)

    def test_a_run_in_bf16_continues_exactly_and_stays_near_fp32(self):
        settings = ("precision.compute=bf16", "checkpoint.keep=all")
        self.train("narrow", *settings)
        run = self.folder / "narrow"
        losses, final = support.column(run, "loss"), support.tensors(run / "checkpoints/step_00000020")

        self.train("narrow", *settings, options=("--resume", "10"))

        self.assertEqual(support.column(run, "loss"), losses)
        self.assertEqual(support.tensors(run / "checkpoints/step_00000020"), final)
        self.train("wide")
        self.assert_close(losses, support.column(self.folder / "wide", "loss"), 5e-3)
        self.assertNotEqual(losses, support.column(self.folder / "wide", "loss"))
        evaluated = self.run_program("eval", "--checkpoint", run / "checkpoints")
        self.assertIn("--set precision.compute=bf16 computes as the run did", evaluated.out + evaluated.err)

    def test_changed_data_are_refused_and_the_same_data_go_on(self):
        tokens = self.folder / "changing.bin"
        ids = [*support.text().encode(), 256]
        settings = ("data.train=[changing.bin]",)
        support.write_tokens(tokens, ids)
        self.train("changed", *settings, options=("--stop-after", "7"))

        support.write_tokens(tokens, [*ids[:1000], ids[1000] ^ 1, *ids[1001:]])
        refused = self.train("changed", *settings, code=4)
        support.write_tokens(tokens, ids)
        result = self.train("changed", *settings)

        self.assert_refused(refused, 4, "the training data changed since step 7", "resume with the same files")
        self.assertIn("resumed from changed/checkpoints/step_00000007", result.err)
        self.assertEqual(support.column(self.folder / "changed", "step"), list(range(1, 21)))

    def test_never_starts_from_the_first_step(self):
        self.train("never")

        result = self.train("never", "train.steps=4", options=("--resume", "never"))

        self.assertNotIn("resumed", result.err)
        self.assertEqual(support.column(self.folder / "never", "step"), [1, 2, 3, 4])


class OtherRanks(support.Case):
    """Sample order, masks and initial values belong to the run, not to its layout."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = ("model.dropout=0.1", "checkpoint.keep=all", "train.validate_batches=0")
        for ranks in (1, 2, 3, 4):
            cls.train(f"ranks{ranks}", *cls.settings, ranks=ranks)
        cls.losses = support.column(cls.folder / "ranks1", "loss")

    def test_every_number_of_ranks_gives_the_same_curve(self):
        for ranks in (2, 3, 4):
            run = self.folder / f"ranks{ranks}"
            self.assert_close(support.column(run, "loss"), self.losses, 1e-5)
            self.assert_close([support.metrics(run)[-1]["validation_loss"]],
                              [support.metrics(self.folder / "ranks1")[-1]["validation_loss"]], 1e-5)

    def test_every_number_of_ranks_starts_from_the_same_weights(self):
        for ranks in (1, 3):
            self.train(f"first{ranks}", *self.settings, "optimizer.lr=1.0e-30",
                       "optimizer.weight_decay=0", ranks=ranks, options=("--stop-after", "1"))

        one, three = (support.tensors(self.folder / f"first{n}/checkpoints/step_00000001") for n in (1, 3))
        for name in one:
            if name.startswith("model/"):
                self.assertEqual(one[name], three[name], name)

    def check(self, before, after):
        """Ten steps on `before` ranks, ten on `after` ranks."""
        run = self.folder / f"from{before}to{after}"
        self.train(run.name, *self.settings, ranks=before, options=("--stop-after", "10"))
        first = support.column(run, "loss")
        result = self.train(run.name, *self.settings, ranks=after)

        self.assertIn(f"written by data {before} x", result.err)
        self.assertEqual(first, support.column(self.folder / f"ranks{before}", "loss")[:10])
        self.assert_close(support.column(run, "loss"), self.losses, 1e-5)

    def test_from_four_to_two(self):
        self.check(4, 2)

    def test_from_two_to_three(self):
        self.check(2, 3)

    def test_from_one_to_four(self):
        self.check(1, 4)


if __name__ == "__main__":
    support.main()
