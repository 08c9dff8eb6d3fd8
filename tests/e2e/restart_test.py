#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a start says of the run: a changed deck, nothing left to do, the data, a summary and what comes next."""

import pathlib
import re
import shlex
import signal
import subprocess

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = r"(?m)^  (train on|resume|generate|plot) +(\S.*)$"


class ChangedDeck(support.Case):
    """Starts on a run that has a checkpoint."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run")

    def nothing_left(self, run, *settings, ranks=1, options=()):
        """A start that trains nothing and leaves everything as it is."""
        before = support.snapshot(self.folder / run)
        result = self.train(run, *settings, ranks=ranks, options=options)
        self.assertEqual(support.snapshot(self.folder / run), before)
        self.assertEqual(result.err.count("nothing left to do"), 1, result.err)
        self.assertNotIn("finished", result.err)
        self.assertNotIn("stopped", result.err)
        return result

    def test_a_finished_run_has_nothing_left(self):
        for ranks in (1, 2):
            result = self.nothing_left("run", "optimizer.lr=1", ranks=ranks)

            self.assertIn("the checkpoint of step 20 is at train.steps 20", result.err)
            self.assertIn("--set train.steps=", result.err)
            self.assertIn("--resume never", result.err)
            self.assertIn("differs from that of step 20: optimizer.lr 0.01 -> 1", result.err)

    def test_fewer_steps_than_were_done(self):
        result = self.nothing_left("run", "train.steps=10")

        self.assertIn("the checkpoint of step 20 is beyond train.steps 10", result.err)
        self.assertIn("train.steps 20 -> 10", result.err)

    def test_a_step_to_stop_at_that_was_done(self):
        self.train("part", options=("--stop-after", "12"))

        for stop_after, relation in ((12, "at"), (10, "beyond")):
            result = self.nothing_left("part", options=("--stop-after", stop_after))
            self.assertIn(f"the checkpoint of step 12 is {relation} --stop-after {stop_after}", result.err)
        result = self.nothing_left("run", options=("--stop-after", 12))
        self.assertIn("the checkpoint of step 20 is at train.steps 20", result.err)

    def test_epochs_that_were_done(self):
        self.train("epochs", "train.epochs=1")

        result = self.nothing_left("epochs", "train.epochs=1")

        self.assertIn("is at train.epochs 1 (14 steps)", result.err)
        self.assertIn("--set train.epochs=", result.err)

    def test_changes_are_named_and_the_deck_of_every_start_is_kept(self):
        first = self.train("changed")
        result = self.train("changed", "optimizer.lr=0.02", "train.steps=22")

        self.assertNotIn("changed deck", first.err)
        self.assertIn("resuming at step 20 with a changed deck: optimizer.lr 0.01 -> 0.02\n", result.err)
        self.assertIn("train.steps 20 -> 22", result.err)
        run = self.folder / "changed"
        decks = {path.name: path.read_text(encoding="utf-8") for path in (run / "decks").iterdir()}
        self.assertEqual(sorted(decks), ["start_0001.yaml", "start_0002.yaml"])
        self.assertEqual(sorted(path.name for path in (run / "timing").iterdir()), ["start_0001", "start_0002"])
        self.assertIn("  lr: 0.01\n", decks["start_0001.yaml"])
        self.assertIn("  lr: 0.02\n", decks["start_0002.yaml"])
        self.assertEqual((run / "deck.yaml").read_text(encoding="utf-8"), decks["start_0002.yaml"])

    def test_a_learning_rate_that_the_changes_change_is_named(self):
        schedule = ("schedule.name=linear", "schedule.warmup_steps=0", "optimizer.lr=0.01", "schedule.final_fraction=0.1")
        self.train("rate", *schedule)

        result = self.train("rate", *schedule, "train.steps=40")

        named = re.search(r"step 21 has a learning rate of (\S+), by the deck of step 20 it was 0\.001 \(train\.steps 20 -> 40\)\n",
                          result.err)
        self.assertIsNotNone(named, result.err)
        rates = support.column(self.folder / "rate", "lr")
        self.assertAlmostEqual(rates[19], 0.001)
        self.assertAlmostEqual(rates[20], float(named[1]), places=5)
        same = self.train("rate", *schedule, "train.steps=41", "optimizer.lr=0.01", options=("--stop-after", "40"))
        self.assertNotIn("learning rate of", same.err, "nothing is left to do")

    def test_another_layout_is_no_other_training(self):
        self.train("layout", options=("--stop-after", "10"))

        same = self.train("layout", options=("--stop-after", "12"))
        result = self.train("layout", ranks=2)

        self.assertNotIn("changed deck", same.err)
        self.assertIn("resuming at step 12 with a changed deck: parallel.data 1 -> 2, train.microbatch 12 -> 6\n",
                      result.err)


class Summary(support.Case):
    """The end of a run, and the commands that it names."""

    def paste(self, line):
        """Runs a command as a user would who pastes it into a shell."""
        result = subprocess.run(["sh", "-c", line], cwd=self.folder, capture_output=True, timeout=100, check=False,
                                stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 0, f"{line}\n{result.stderr.decode()}")
        return result

    def check(self, run, ranks, *settings, options=()):
        """Figures and commands of a finished run; all commands are run."""
        result = self.train(run, *settings, ranks=ranks, options=options)
        summary = result.err[result.err.index("finished after step 20: 20 steps in "):]
        self.assertLessEqual(len(summary.splitlines()), 8)
        lines = support.metrics(self.folder / run)
        best = min((line["validation_loss"], line["step"]) for line in lines if "validation_loss" in line)
        self.assertIn(f"loss of step 20 {lines[-1]['loss']:.4f}, best validation loss {best[0]:.4f} (step {best[1]})", summary)
        self.assertRegex(summary, r" \d+ tokens/s overall; .* peak memory \d+\.\d [MG]iB a rank\n")
        found = re.findall(COMMAND, summary)
        self.assertEqual([name for name, _ in found], ["train on", "generate", "plot", "plot"])
        return result, found

    def test_pasted_commands_work(self):
        result, found = self.check("on ranks", 2, "run.name=it's", options=("--resume", "never"))

        self.assertEqual(result.raw, b"")
        launcher, *words = support.command(ranks=2)
        # The tests' environment allows more ranks than cores; who pastes the command has it not.
        self.assertEqual(shlex.split(found[0][1])[:4], [launcher, "--oversubscribe", *words[:2]])
        self.paste(found[0][1])
        self.assertEqual(support.column(self.folder / "on ranks", "step"), list(range(1, 41)))
        self.assertTrue(self.paste(found[1][1]).stdout.startswith(b"The"))

    def test_pasted_plots_work(self):
        python = subprocess.run(["python3", "-c", "import h5py, matplotlib"], capture_output=True, check=False)
        if python.returncode != 0:
            self.skipTest("no h5py or matplotlib")
        _, found = self.check("alone", 1)

        for _, line in found[2:]:
            self.paste(line)
        self.assertTrue(list((self.folder / "alone/report").glob("*.png")))

    def test_without_checkpoints_and_vocabulary_only_plots_are_named(self):
        result = self.train("none", "checkpoint.final=false", "checkpoint.every=0", "data.vocabulary=null")

        self.assertEqual([name for name, _ in re.findall(COMMAND, result.err)], ["plot", "plot"])

    def test_a_run_that_never_resumes_is_told_to(self):
        result = self.train("never", "checkpoint.resume=never", options=("--stop-after", "10"))

        self.assertIn("stopped after step 10 of 20", result.err)
        self.paste(re.search(COMMAND, result.err)[2])
        self.assertEqual(support.column(self.folder / "never", "step"), list(range(1, 21)))

    def test_a_run_that_was_asked_to_stop_says_how_to_go_on(self):
        process = self.start("train", "deck.yaml", *support.overrides(*support.ENDLESS, "run.directory=asked",
                                                                      "parallel.data=2"), ranks=2)
        path = self.folder / "asked" / "metrics.jsonl"
        self.assertTrue(support.wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 5, 30))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=20)

        self.assertEqual(process.returncode, 75, err)
        last = support.column(self.folder / "asked", "step")[-1]
        self.assertIn(f"stopped on request after step {last} of 1000000: ", err.decode())
        name, line = re.search(COMMAND, err.decode()).groups()
        self.assertEqual(name, "resume")
        self.paste(f"{line} --stop-after {last + 3}")
        self.assertEqual(support.column(self.folder / "asked", "step"), list(range(1, last + 4)))

    def test_memory_is_in_the_metrics(self):
        self.train("memory")
        timing = support.h5(self.folder / "memory/timing/start_0001/rank_00000.h5")
        found = support.column(self.folder / "memory", "memory_peak_bytes")

        self.assertTrue(all(size > 0 for size in found))
        if timing is not None:
            self.assertEqual(found, timing["steps/memory_peak_bytes"]["values"])


class Short(support.Case):
    """`--set train.steps=10` tries a deck out."""

    def test_a_long_deck_runs_ten_steps(self):
        deck = support.DECK.replace("warmup_steps: 2", "warmup_steps: 700").replace("steps: 20", "steps: 1000")
        deck = deck.replace("{every: 10}", "{every: 100, keep_every: 200}") + "timing: {trace_steps: [3, 500]}\n"
        (self.folder / "long.yaml").write_text(deck, encoding="utf-8")
        start = ("train", "long.yaml", *support.overrides("train.steps=10", "run.directory=short"))

        result = self.run_program(*start)
        twisted = self.run_program(*start, *support.overrides("schedule.warmup_steps=11"))

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.err.count("schedule.warmup_steps cut from 700 to 10"), 1)
        self.assertEqual(support.column(self.folder / "short", "step"), list(range(1, 11)))
        self.assertIn("  warmup_steps: 10\n", (self.folder / "short/deck.yaml").read_text(encoding="utf-8"))
        self.assert_refused(twisted, 2, "schedule.warmup_steps=11")

    def test_every_deck_of_the_inputs_is_planned_with_ten_steps(self):
        for deck in sorted((ROOT / "inputs").glob("*.yaml")):
            text = deck.read_text(encoding="utf-8")
            device = "cpu" if "device: cpu" in text else "cuda"
            large = "compute: bf16" in text
            start = ("plan", deck, "--device", device) if large else ("train", deck, "--dry-run")
            with self.subTest(deck=deck.name):
                result = self.run_program(*start, *support.overrides("train.steps=10"))
                self.assertEqual(result.code, 0, result.err)


class Data(support.Case):
    """How much data a run has."""

    def train_on(self, name, samples, *settings, code=0):
        """A run on a file of so many samples."""
        support.write_tokens(self.folder / f"{name}.bin", [32 + i % 64 for i in range(32 * samples + 1)])
        return self.train(name, f"data.train=[{name}.bin]", "data.validation=[]", "train.validate_every=0", *settings,
                          ranks=2, code=code)

    def test_epochs_are_said_once(self):
        result = self.train_on("enough", 100)

        self.assertEqual(result.err.count("20 steps of 12 samples are 2.4 epochs of the 100 training samples"), 1)
        self.assertNotIn("many times", result.err)

    def test_many_epochs_are_warned_of(self):
        self.assertIn("sees every sample many times", self.train_on("many", 16).err)

    def test_a_batch_that_repeats_samples_is_warned_of(self):
        self.assertIn("holds some samples more than once", self.train_on("few", 3, "train.steps=2").err)

    def test_a_batch_without_targets_is_named(self):
        support.write_tokens(self.folder / "same.bin", [32] * 1000)
        settings = ("data.train=[same.bin]", "data.ignore_token=32")

        short = self.train("unmarked", *settings, "train.steps=4")
        result = self.train("masked", *settings, ranks=2, code=3)

        for found in (short, result):
            self.assertEqual(found.err.count("no token of the batch of step 1 counts as a target"), 1, found.err)
        self.assert_refused(result, 3, "11 steps in a row", "data.ignore_token")


if __name__ == "__main__":
    support.main()
