#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Numbers that go wrong: spikes of loss, numbers that are not finite, replicas that differ."""

import json
import os
import pathlib
import random
import re
import signal

import support

CONTEXT = 32
SPIKES = ("data.train=[odd.bin]", "data.validation=[]", "train.validate_every=0", "train.steps=90",
          "train.global_batch=4", "schedule.warmup_steps=10", "optimizer.lr=3e-3", "checkpoint.every=10",
          "checkpoint.keep=all", "spikes.warmup_steps=40", "spikes.window=32")
TIMES = ("step_seconds", "tokens_per_second", "mfu", "mfu_full", "wall_seconds", "memory_peak_bytes")


def write_odd_tokens(path):
    """English with a sample of random bytes among every hundred."""
    chance = random.Random(3)
    ids = [*support.text().encode()] * 8
    for sample in range(50, len(ids) // CONTEXT - 1, 100):
        begin = sample * CONTEXT
        ids[begin:begin + CONTEXT] = [chance.randrange(128, 256) for _ in range(CONTEXT)]
    support.write_tokens(path, ids)


def spikes_of(run):
    """Step -> (z-score, whether it was left out) of every line that reports a spike."""
    return {line["step"]: (line["spike"], line.get("left_out", 0)) for line in support.metrics(run) if "spike" in line}


class Spikes(support.Case):
    """A text with odd samples."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_odd_tokens(cls.folder / "odd.bin")

    def curve(self, run):
        """The lines of metrics.jsonl without times, each step once and in order."""
        lines = support.metrics(self.folder / run)
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]

    def last_tensors(self, run):
        """The tensors of the last checkpoint."""
        return support.tensors(self.folder / run / "checkpoints/step_00000090")

    def resumed(self, run, policy, stop):
        """A run that stops after a step and goes on."""
        settings = (*SPIKES, f"spikes.policy={policy}")
        self.train(run, *settings, options=("--stop-after", str(stop)))
        self.train(run, *settings)

    def test_a_spike_is_logged_and_counted(self):
        result = self.train("logged", *SPIKES)

        spikes = spikes_of(self.folder / "logged")
        self.assertGreaterEqual(len(spikes), 2)
        for step, (z, left_out) in spikes.items():
            self.assertGreater(step, 40)
            self.assertGreater(z, 6)
            self.assertEqual(left_out, 0)
            self.assertIn(f"spike at step {step}: ", result.err)
        self.assertRegex(result.err, rf"{len(spikes)} spikes \(0 left out\)")
        self.train("ignored", *SPIKES, "spikes.policy=ignore")
        self.assertEqual(spikes_of(self.folder / "ignored"), {})
        self.assertEqual(self.last_tensors("ignored"), self.last_tensors("logged"))
        self.assertNotIn("spikes", support.manifest(self.folder / "ignored/checkpoints/step_00000090"))

    def test_a_skipped_step_updates_nothing(self):
        result = self.train("skip", *SPIKES, "spikes.policy=skip")

        spikes = spikes_of(self.folder / "skip")
        self.assertGreaterEqual(len(spikes), 2)
        self.assertTrue(all(left_out == 1 for _, left_out in spikes.values()))
        self.assertIn("its batch is left out", result.err)
        last = support.manifest(self.folder / "skip/checkpoints/step_00000090")
        self.assertEqual(last["adam_step"], 90 - len(spikes))
        self.assertEqual(last["skipped_steps"], 0)
        self.resumed("skip_resumed", "skip", max(spikes) - 1)
        self.assertEqual(self.curve("skip_resumed"), self.curve("skip"))
        self.assertEqual(self.last_tensors("skip_resumed"), self.last_tensors("skip"))

    def test_every_layout_skips_the_same_steps(self):
        settings = (*SPIKES, "spikes.policy=skip", "checkpoint.every=0")
        self.train("one", *settings)
        expected = spikes_of(self.folder / "one")
        layouts = {"data": ("parallel.data=2",), "zero": ("parallel.data=2", "parallel.zero=1"),
                   "zero2": ("parallel.data=2", "parallel.zero=2"),
                   "tensor": ("parallel.data=1", "parallel.tensor=2"),
                   "pipeline": ("parallel.data=1", "parallel.pipeline=2", "train.microbatch=1")}
        for name, layout in layouts.items():
            with self.subTest(name):
                self.train(name, *settings, *layout, ranks=2)
                found = spikes_of(self.folder / name)
                self.assertEqual(found.keys(), expected.keys())
                for step, (z, _) in found.items():
                    self.assertLess(abs(z - expected[step][0]), 0.02 * z)
                one, other = support.column(self.folder / "one", "loss"), support.column(self.folder / name, "loss")
                self.assert_close(other, one, 1e-3)

    def test_rolling_back_leaves_the_batch_out(self):
        result = self.train("back", *SPIKES, "spikes.policy=roll_back")

        spikes = spikes_of(self.folder / "back")
        self.assertGreaterEqual(len(spikes), 2)
        self.assertTrue(all(left_out == 1 for _, left_out in spikes.values()))
        for step in spikes:
            target = (step - 3) // 10 * 10
            self.assertIn(f"training rolls back to step {target} and leaves the batch out", result.err)
        record = json.loads((self.folder / "back/left_out_steps.json").read_text(encoding="utf-8"))
        self.assertEqual(record, {"left_out": sorted(spikes), "roll_backs": len(spikes)})
        self.train("skipped", *SPIKES, "spikes.policy=skip")
        self.assertEqual(self.curve("back"), self.curve("skipped"))
        self.assertEqual(self.last_tensors("back"), self.last_tensors("skipped"))
        self.resumed("back_resumed", "roll_back", max(spikes) - 1)
        self.assertEqual(self.curve("back_resumed"), self.curve("back"))
        self.assertEqual(self.last_tensors("back_resumed"), self.last_tensors("back"))
        # A start that goes back before the steps leaves them out at once.
        replayed = self.train("back", *SPIKES, "spikes.policy=roll_back", options=("--resume", "40"))
        self.assertNotIn("goes back", replayed.err)
        self.assertEqual(self.curve("back"), self.curve("skipped"))

    def test_rolling_back_on_two_ranks(self):
        settings = (*SPIKES, "parallel.zero=1", "spikes.policy=roll_back")
        result = self.train("two", *settings, ranks=2)

        self.assertIn("training rolls back to step", result.err)
        self.train("two_skipped", *SPIKES, "parallel.zero=1", "spikes.policy=skip", ranks=2)
        self.assertEqual(self.curve("two"), self.curve("two_skipped"))

    def test_rollbacks_are_bounded(self):
        result = self.train("bounded", *SPIKES, "spikes.policy=roll_back", "spikes.max_roll_backs=1", code=7)

        self.assertEqual(len(result.messages), 1, result.err)
        self.assertIn("another spike after 1 rollbacks", result.err)
        self.assertIn("spikes.max_roll_backs", result.err)

    def test_without_an_older_checkpoint_training_goes_on(self):
        result = self.train("none", *SPIKES, "spikes.policy=roll_back", "checkpoint.every=0")

        self.assertIn("training goes on: no checkpoint is 3 steps older or more", result.err)
        self.assertTrue(all(left_out == 0 for _, left_out in spikes_of(self.folder / "none").values()))


class NotFinite(support.Case):
    """Fault 35."""

    def test_the_first_bad_step_is_named(self):
        for name, zero, ranks in (("one", 0, 1), ("two", 0, 2), ("sharded", 2, 2)):
            with self.subTest(name):
                result = self.train(name, "optimizer.lr=1e30", "optimizer.clip_norm=0", f"parallel.zero={zero}",
                                    "train.steps=30", ranks=ranks, code=7)

                found = re.search(r"step (\d+) \(samples (\d+) to (\d+) in the order of the run\) was not finite",
                                  result.err)
                self.assertIsNotNone(found, result.err)
                step, first, last = map(int, found.groups())
                self.assertEqual((first, last), (12 * step - 12, 12 * step - 1))
                for rank in range(ranks):
                    self.assertRegex(result.err, rf"rank {rank} \(data {rank}, .*\) on host \S+: .*the gradient of \w+")
                self.assertEqual(result.err.count("computed once more"), 1)


class Replicas(support.Case):
    """Fault 37: memory of a rank changes."""

    SETTINGS = (*support.ENDLESS, "train.trainable=[norm]", "run.compare_replicas_every=5")

    def change_memory(self, pid, pattern):
        """Flips a byte of the first copy of the pattern in the memory of a process."""
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
                place, rights = line.split()[:2]
                begin, end = (int(text, 16) for text in place.split("-"))
                if not rights.startswith("rw") or line.endswith(("[vvar]", "[vsyscall]")):
                    continue
                try:
                    memory.seek(begin)
                    at = memory.read(end - begin).find(pattern)
                except OSError:
                    continue
                if at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([pattern[0] ^ 1]))
                    return True
        return False

    def pids_of_ranks(self, process):
        """Rank -> process id."""
        pids = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            ranks = [value for value in variables if value.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if parent == process.pid and ranks:
                pids[int(ranks[0].split(b"=")[1])] = int(entry.name)
        return pids

    def diverge(self, run, ranks):
        """Trains until a frozen parameter of rank 1 changes; the result."""
        self.train(run, *self.SETTINGS, ranks=ranks, options=("--stop-after", "5"))
        step = next((self.folder / run / "checkpoints").glob("step_*"))
        frozen = bytes(support.tensors(step)["model/blocks.0.attention.query.weight"][:256])
        process = self.start("train", "deck.yaml",
                             *support.overrides(f"run.directory={run}", f"parallel.data={ranks}", *self.SETTINGS),
                             ranks=ranks, env={**os.environ, **support.QUICK_END})
        try:
            metrics = self.folder / run / "metrics.jsonl"
            self.assertTrue(support.wait_until(lambda: len(metrics.read_bytes().splitlines()) > 30, 30))
            pid = self.pids_of_ranks(process)[1]
            os.kill(pid, signal.SIGSTOP)
            changed = self.change_memory(pid, frozen)
            os.kill(pid, signal.SIGCONT)
            self.assertTrue(changed)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
        return support.Result(process.returncode, b"", err.decode("utf-8"), 0)

    def test_one_of_three_is_named(self):
        result = self.diverge("three", 3)

        self.assertEqual(result.code, 7, result.err)
        self.assertEqual(len(result.messages), 1, result.err)
        self.assertRegex(result.err, r"rank 1 \(data 1, tensor 0, pipeline 0\) on host \S+ differs from the other 2 of 3")

    def test_copies_of_shards(self):
        layout = ("parallel.data=4", "parallel.zero=3", "parallel.shard=2", "train.microbatch=1", "train.steps=6",
                  "run.compare_replicas_every=1")
        self.train("copies", *layout, ranks=4)
        process = self.start("train", "deck.yaml", *support.overrides("run.directory=wrong", *layout), ranks=4,
                             env={**os.environ, **support.QUICK_END, "HYPERSLAB_FAULT": "step.parameters:2:3:flip"})
        err = process.communicate(timeout=120)[1].decode("utf-8")

        self.assertEqual(process.returncode, 7, err)
        self.assertRegex(err, r"after step 3 parameters .* rank 0 .*rank 2 .* cannot show which of them is wrong")

    def test_two_cannot_tell(self):
        result = self.diverge("two", 2)

        self.assertEqual(result.code, 7, result.err)
        self.assertRegex(result.err, r"rank 0 .*rank 1 .* cannot show which of them is wrong")

    def test_layouts_that_agree_train_on(self):
        layouts = {"replicated": ("parallel.data=2",), "zero1": ("parallel.data=2", "parallel.zero=1"),
                   "zero2": ("parallel.data=2", "parallel.zero=2"),
                   "tensor": ("parallel.data=1", "parallel.tensor=2"),
                   "pipeline": ("parallel.data=1", "parallel.pipeline=2", "train.microbatch=6")}
        self.train("alone", "train.steps=6", ranks=2)
        for name, layout in layouts.items():
            with self.subTest(name):
                self.train(name, "train.steps=6", "run.compare_replicas_every=1", *layout, ranks=2)
        self.assertEqual(support.column(self.folder / "replicated", "loss"),
                         support.column(self.folder / "alone", "loss"))


if __name__ == "__main__":
    support.main()
