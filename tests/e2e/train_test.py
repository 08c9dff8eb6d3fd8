#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train: it learns, leaves the files that users rely on, and keeps the checkpoints asked for."""

import json
import math

import support

METRICS = {"step", "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "mfu",
           "mfu_full", "perplexity", "token_accuracy", "wall_seconds"}
VALIDATION = {"validation_loss", "validation_perplexity", "validation_token_accuracy", "validation_bits_per_byte"}
COLUMNS = {"step", "step_seconds", "data_seconds", "forward_seconds", "backward_seconds",
           "optimizer_seconds", "reduce_seconds", "reduce_exposed_seconds", "tensor_comm_seconds", "context_comm_seconds", "expert_comm_seconds",
           "pipeline_comm_seconds", "pipeline_idle_seconds", "wait_seconds", "checkpoint_seconds", "tokens",
           "memory_peak_bytes", "memory_now_bytes", "reduce_busy_seconds"}
ATTRIBUTES = {"rank", "host", "device", "data", "pipeline", "context", "tensor", "world_size", "commit",
              "start_time"}


class TwoRanks(support.Case):
    """One run on two ranks, looked at from all sides."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.result = cls.train("run", "timing.trace_steps=[3]", ranks=2)
        cls.run_folder = cls.folder / "run"

    def test_loss_falls(self):
        losses = support.column(self.run_folder, "loss")

        self.assertAlmostEqual(losses[0], math.log(257), delta=0.1)
        self.assertLess(losses[-1], 0.6 * losses[0])

    def test_metrics_have_a_line_per_step_with_every_key(self):
        lines = support.metrics(self.run_folder)

        self.assertEqual([line["step"] for line in lines], list(range(1, 21)))
        for line in lines:
            self.assertLessEqual(METRICS, set(line))
            self.assertTrue(all(math.isfinite(line[key]) for key in METRICS), line)
            self.assertEqual(line["tokens"], line["step"] * 12 * 32)
            self.assertAlmostEqual(line["perplexity"], math.exp(line["loss"]), places=6)
            self.assertEqual(VALIDATION <= set(line), line["step"] in (10, 20))

    def test_wall_time_is_that_of_the_steps_and_what_is_between(self):
        walls, steps = (support.column(self.run_folder, name) for name in ("wall_seconds", "step_seconds"))

        for i in range(1, 20):  # the last ones are learned of together
            self.assertGreaterEqual(walls[i] - walls[i - 1], 0.5 * steps[i], f"step {i + 1}")
        self.assertGreaterEqual(walls[-1], 0.95 * sum(steps))
        self.assertLess(walls[-1], self.result.seconds)

    def test_wall_time_goes_on_where_a_start_ended(self):
        first = self.train("two starts", options=("--stop-after", 7))
        second = self.train("two starts")

        walls, steps = (support.column(self.folder / "two starts", name)
                        for name in ("wall_seconds", "step_seconds"))
        for i in range(1, 20):
            self.assertGreaterEqual(walls[i] - walls[i - 1], 0.5 * steps[i], f"step {i + 1}")
        self.assertLess(walls[-1], first.seconds + second.seconds)

    def test_learning_rate_warms_up_and_decays(self):
        rates = support.column(self.run_folder, "lr")

        self.assertAlmostEqual(rates[0], 0.005, places=8)
        self.assertAlmostEqual(rates[1], 0.01, places=8)
        self.assertEqual(rates[1:], sorted(rates[1:], reverse=True))
        self.assertAlmostEqual(rates[-1], 0.001, places=8)

    def test_resolved_deck_is_read_again_and_stays_the_same(self):
        resolved = (self.run_folder / "deck.yaml").read_bytes()

        result = self.run_program("train", "run/deck.yaml", ranks=2)

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual((self.run_folder / "deck.yaml").read_bytes(), resolved)
        self.assertEqual(len(support.metrics(self.run_folder)), 20)

    def test_checkpoints_are_complete(self):
        for step in (10, 20):
            folder = self.run_folder / f"checkpoints/step_{step:08d}"
            self.assertEqual({path.name for path in folder.iterdir()},
                             {"manifest.json", "rank_00000.h5", "rank_00001.h5"})
            self.assertEqual(support.manifest(folder)["step"], step)
        self.assertEqual((self.run_folder / "checkpoints/latest").read_text().strip(), "step_00000020")

    def test_checkpoint_files_hold_slabs_that_the_manifest_names(self):
        folder = self.run_folder / "checkpoints/step_00000020"
        found = {file.name: support.h5(file) for file in folder.glob("rank_*.h5")}
        if None in found.values():
            self.skipTest("no h5py")

        for name, entry in support.manifest(folder)["tensors"].items():
            for piece in entry["pieces"]:
                slab = found[piece["file"]][f"{name}/{piece['dataset']}"]
                self.assertEqual(slab["attributes"]["global_shape"], entry["global_shape"])
                self.assertEqual(slab["attributes"]["offset"], piece["offset"])
                self.assertEqual(slab["attributes"]["count"], piece["count"])

    def test_timing_columns_have_equal_lengths(self):
        for rank in range(2):
            found = support.h5(self.run_folder / f"timing/start_0001/rank_{rank:05d}.h5")
            if found is None:
                self.skipTest("no h5py")
            attributes = found[""]["attributes"]
            steps = {name: found[f"steps/{name}"]["values"] for name in COLUMNS}

            self.assertLessEqual(ATTRIBUTES, set(attributes))
            self.assertEqual((attributes["rank"], attributes["data"], attributes["world_size"]),
                             (rank, rank, 2))
            self.assertEqual(steps["step"], list(range(1, 21)))
            self.assertEqual({len(values) for values in steps.values()}, {20})
            self.assertEqual(set(steps["tokens"]), {6 * 32})
            self.assertTrue(all(seconds > 0 for seconds in steps["forward_seconds"]))
            self.assertTrue(all(n > 0 for n in steps["memory_peak_bytes"]))
            self.assertIn("events", found)
            self.assertIn("memory", found)
            for exposed, busy in zip(steps["reduce_exposed_seconds"], steps["reduce_busy_seconds"]):
                self.assertLessEqual(exposed, busy * (1 + 1e-9))

    def test_log_has_plain_lines(self):
        self.assertNotIn("\r", self.result.err)
        self.assertNotIn("\x1b", self.result.err)
        self.assertIn("step 10/20  loss", self.result.err)
        self.assertRegex(self.result.err, r"validation loss .* perplexity .* accuracy .* bits per byte \d")
        self.assertEqual(self.result.raw, b"")


class OneReplica(support.Case):
    """Two pipeline stages that share no parameter: there are no gradients to reduce."""

    def test_waiting_is_no_reduction(self):
        self.train("run", "parallel.data=1", "parallel.pipeline=2", "train.microbatch=3", "train.steps=6", ranks=2)

        waits = []
        for rank in range(2):
            found = support.h5(self.folder / f"run/timing/start_0001/rank_{rank:05d}.h5")
            if found is None:
                self.skipTest("no h5py")
            for name in ("reduce_seconds", "reduce_busy_seconds", "reduce_exposed_seconds"):
                self.assertEqual(set(found[f"steps/{name}"]["values"]), {0.0}, name)
            waits += found["steps/wait_seconds"]["values"]
        self.assertGreater(sum(waits), 0)


class Settings(support.Case):
    """Keys of the deck that change what a run keeps and writes."""

    def kept(self, run):
        """The steps of which there are checkpoints."""
        return sorted(int(path.name[5:]) for path in (self.folder / run / "checkpoints").glob("step_*"))

    def test_keep_and_milestones(self):
        self.train("keep", "train.steps=12", "checkpoint.every=2", "checkpoint.keep=2",
                   "checkpoint.keep_every=6")

        self.assertEqual(self.kept("keep"), [6, 10, 12])

    def test_keep_all(self):
        self.train("all", "train.steps=7", "checkpoint.every=1", "checkpoint.keep=all")

        self.assertEqual(self.kept("all"), list(range(1, 8)))

    def test_the_last_step_is_always_kept(self):
        self.train("last", "train.steps=7", "checkpoint.every=0")

        self.assertEqual(self.kept("last"), [7])

    def test_a_finished_run_leaves_none_if_none_is_asked_for(self):
        self.train("none", "train.steps=4", "checkpoint.every=0", "checkpoint.final=false")

        self.assertFalse((self.folder / "none/checkpoints/latest").exists())

    def test_checkpoints_go_where_the_deck_says(self):
        self.train("apart", "train.steps=4", "checkpoint.directory=elsewhere/steps")

        self.assertTrue((self.folder / "elsewhere/steps/step_00000004/manifest.json").is_file())
        self.assertFalse((self.folder / "apart/checkpoints").exists())

    def test_epochs_give_the_steps(self):
        samples = (len(support.text()) + 1 - 1) // 32

        self.train("epochs", "train.steps=0", "train.epochs=2", "schedule.warmup_steps=0")

        self.assertEqual(len(support.metrics(self.folder / "epochs")), 2 * samples // 12)

    def test_z_loss_is_logged_beside_the_loss_and_pulls_the_normalizer_to_one(self):
        self.train("plain")
        self.train("free", "train.z_loss=1.0e-6")
        self.train("pulled", "train.z_loss=0.1")
        self.train("pulled apart", "train.z_loss=0.1", "train.microbatch=2", ranks=2)

        pulled = support.column(self.folder / "pulled", "z_loss")
        self.assertNotIn("z_loss", support.metrics(self.folder / "plain")[0])
        self.assertEqual(support.column(self.folder / "pulled", "loss")[0], support.column(self.folder / "plain", "loss")[0])
        # At first all 257 logits are near 0: Z is 257.
        self.assertAlmostEqual(pulled[0], 0.1 * math.log(257) ** 2, delta=0.1)
        self.assertLess(pulled[-1] / 0.1, 0.9 * support.column(self.folder / "free", "z_loss")[-1] / 1e-6)
        for key in ("loss", "z_loss"):
            self.assert_close(support.column(self.folder / "pulled apart", key), support.column(self.folder / "pulled", key), 1e-3)

    def test_log_norms_writes_finite_numbers(self):
        self.train("norms", "train.steps=6", "train.log_norms=2", ranks=2)

        lines = [json.loads(line) for line in
                 (self.folder / "norms/norms.jsonl").read_text(encoding="utf-8").splitlines()]
        names = {name[len("model/"):] for name in
                 support.tensors(self.folder / "norms/checkpoints/step_00000006")
                 if name.startswith("model/")}
        self.assertEqual([line["step"] for line in lines], [2, 4, 6])
        for line in lines:
            self.assertEqual(set(line["weight_norm"]), names)
            self.assertEqual(set(line["gradient_norm"]), names)
            self.assertEqual(set(line["activation_rms"]), {"embedding", "blocks.0", "blocks.1"})
            for kind in ("weight_norm", "gradient_norm", "activation_rms"):
                for name, value in line[kind].items():
                    self.assertTrue(math.isfinite(value) and value > 0, f"{kind} {name} {value}")

    def test_gradient_norms_add_up_to_the_logged_norm(self):
        self.train("sums", "train.steps=3", "train.log_norms=1", "optimizer.clip_norm=0", ranks=2)

        logged = support.column(self.folder / "sums", "grad_norm")
        for line, expected in zip((self.folder / "sums/norms.jsonl").read_text().splitlines(), logged):
            squares = sum(value ** 2 for value in json.loads(line)["gradient_norm"].values())
            self.assertAlmostEqual(math.sqrt(squares) / expected, 1, delta=1e-5)

    def test_bits_per_byte_need_a_vocabulary_that_gives_them(self):
        settings = ("train.steps=2", "checkpoint.every=0")
        support.write_tokens(self.folder / "beyond.bin", [1, 2, 299] * 100)
        cases = [((), None),
                 (("data.vocabulary=null",), ""),
                 (("data.vocabulary=null", "data.validation=[beyond.bin]", "model.vocabulary=300"), "")]
        for number, (changes, warning) in enumerate(cases):
            with self.subTest(changes=changes):
                result = self.train(f"bits{number}", *settings, *changes, ranks=2)

                last = support.metrics(self.folder / f"bits{number}")[-1]
                self.assertTrue(math.isfinite(last["validation_loss"]))
                self.assertEqual("validation_bits_per_byte" in last, warning is None)
                self.assertEqual("without bits per byte" in result.err, bool(warning))
                self.assertIn(warning or "", result.err)

    def test_a_vocabulary_that_did_not_make_the_tokens_is_refused(self):
        support.write_tokens(self.folder / "beyond.bin", [1, 2, 299] * 100)
        (self.folder / "words.txt").write_text("the cat " * 40, encoding="utf-8")
        self.run_program("tokenize", "--train-vocab", "259", "--input", "words.txt", "--output-vocab", "words")
        self.run_program("tokenize", "--vocab", "words", "--input", "words.txt", "--output", "words.bin")
        self.run_program("tokenize", "--vocab", "bytes", "--input", "words.txt", "--output", "bytes.bin")
        cases = [(("data.vocabulary=nowhere",), ("vocabulary 'nowhere'", "found nothing")),
                 (("data.validation=[beyond.bin]", "model.vocabulary=300"), ("below the vocabulary of 257", "id 299")),
                 (("data.train=[words.bin]", "data.vocabulary=words", "data.validation=[]", "train.validate_every=0",
                   "model.vocabulary=259", "train.steps=1"), None),
                 (("data.train=[bytes.bin]", "data.vocabulary=words", "model.vocabulary=300"),
                  ("bytes.bin", "'words' (259 ids)", "another one of 257"))]
        for number, (changes, words) in enumerate(cases):
            with self.subTest(changes=changes):
                result = self.run_program("train", "deck.yaml", *support.overrides(
                    f"run.directory=other{number}", "parallel.data=2", *changes), ranks=2)
                if words is None:
                    self.assertEqual(result.code, 0, result.err)
                    continue
                self.assert_refused(result, 3, *words)
                self.assertFalse((self.folder / f"other{number}").exists())

    def test_a_vocabulary_beyond_the_model_is_refused(self):
        support.write_vocabulary(self.folder / "large", 300)
        for changes in ((), ("data.validation=[]", "train.validate_every=0")):
            with self.subTest(changes=changes):
                result = self.run_program("train", "deck.yaml", *support.overrides(
                    "run.directory=refused", "parallel.data=2", "data.vocabulary=large", *changes), ranks=2)

                self.assert_refused(result, 3, "vocabulary 'large'", "at most 257", "model.vocabulary", "found 300")
                self.assertFalse((self.folder / "refused").exists())
        padded = self.train("padded", "train.steps=2", "model.vocabulary=320", "data.vocabulary=large")
        self.assertIn("'large' has 300 ids: 20 rows of the model's tables pad it", padded.err)

    def test_one_batch_is_learned_by_heart(self):
        self.train("overfit", "train.steps=150", "train.global_batch=2", "train.overfit_one_batch=true",
                   "train.validate_every=0", "data.validation=[]", "checkpoint.every=0")

        self.assertLess(support.column(self.folder / "overfit", "loss")[-1], 0.05)

    def test_gpt2_trains_on_three_ranks(self):
        self.train("gpt2", "model.family=gpt2", ranks=3)

        losses = support.column(self.folder / "gpt2", "loss")
        self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == "__main__":
    support.main()
