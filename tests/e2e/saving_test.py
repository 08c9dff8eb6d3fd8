#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run keeps: checkpoints of finite steps only, one run in a directory, and going on where a disk
refuses what is not a checkpoint."""

import json
import shutil
import os
import struct
import subprocess

import support

RUINING = ("optimizer.lr=1.0e+30", "optimizer.clip_norm=0")
PLAIN = ("train.validate_every=0", "data.validation=[]", "schedule.warmup_steps=0", "schedule.name=constant")


def steps(folder):
    """Steps of the checkpoints there, ascending."""
    return sorted(int(path.name[5:]) for path in folder.glob("step_*"))


def set_first(path, name, value):
    """Changes the first value of a tensor (f32) of a safetensors file."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    begin = start + json.loads(data[8:start])[name]["data_offsets"][0]
    data[begin:begin + 4] = struct.pack("<f", value)
    path.write_bytes(data)


class NotFinite(support.Case):
    """Steps whose loss or gradients are not finite."""

    def start_good(self, run, *settings):
        """Six good steps."""
        self.train(run, *PLAIN, *settings, "train.steps=6")
        return self.folder / run / "checkpoints"

    def test_good_checkpoints_stay_and_the_advice_leads_to_one(self):
        settings = ("checkpoint.every=2", "checkpoint.keep=3")
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.start_good(f"good{ranks}", *settings)

                result = self.train(f"good{ranks}", *PLAIN, *settings, *RUINING, "train.steps=60", ranks=ranks,
                                    code=7)

                self.assertEqual(steps(folder), [2, 4, 6])
                self.assertEqual(len(result.messages), 1, result.err)
                self.assertIn("--resume 6", result.messages[0])
                self.assertEqual(result.err.count("its checkpoint waits for a finite step"), 1, result.err)
                result = self.train(f"good{ranks}", *PLAIN, *settings, "train.steps=8", options=("--resume", "6"))
                self.assertEqual(steps(folder), [4, 6, 8])

    def test_the_newest_proven_checkpoint_stays_beside_one_that_is_ruined(self):
        settings = ("checkpoint.every=1", "checkpoint.keep=2")
        folder = self.start_good("one", *settings)
        self.assertEqual(steps(folder), [5, 6])

        result = self.train("one", *PLAIN, *settings, *RUINING, "train.steps=60", code=7)

        self.assertEqual(steps(folder), [6, 7])  # step 7 was finite, and left what ruins step 8
        self.assertIn("--resume 6", result.messages[0])
        result = self.train("one", *PLAIN, *settings, "train.steps=60", code=7)
        self.assertIn("--resume 6", result.messages[0])
        self.assertEqual(steps(folder), [6, 7])
        self.train("one", *PLAIN, *settings, "train.steps=10", options=("--resume", "6"))

    def test_infinite_weights_are_not_saved(self):
        settings = ("checkpoint.every=1", "checkpoint.keep=2")
        folder = self.start_good("infinite", *settings)

        result = self.train("infinite", *PLAIN, *settings, "optimizer.lr=3.0e+38", "optimizer.clip_norm=0",
                            "optimizer.weight_decay=10", "train.steps=60", ranks=2, code=7)

        self.assertIn("step 7 left values in model/", result.err)
        self.assertEqual(steps(folder), [5, 6])

    def test_a_step_of_an_abandoned_attempt_is_not_proven(self):
        settings = ("checkpoint.every=1", "checkpoint.keep=2")
        folder = self.start_good("back", *settings)
        self.train("back", *PLAIN, *settings, *RUINING, "train.steps=60", code=7)
        self.assertEqual(steps(folder), [6, 7])

        result = self.train("back", *PLAIN, "checkpoint.every=2", "checkpoint.keep=2", "train.steps=8",
                            options=("--resume", "6"))

        self.assertIn("checkpoints of 1 newer step in", result.err)
        self.assertEqual(steps(folder), [6, 8])

    def test_abandoned_steps_do_not_use_up_keep(self):
        settings = (*PLAIN, "checkpoint.every=1", "train.steps=10")
        self.train("branch", *settings, "checkpoint.keep=6")
        folder = self.folder / "branch/checkpoints"
        self.assertEqual(steps(folder), [5, 6, 7, 8, 9, 10])

        self.train("branch", *settings, "checkpoint.keep=2", options=("--resume", "5", "--stop-after", "8"))
        self.assertEqual(steps(folder), [7, 8, 9, 10])
        result = self.train("branch", *settings, *RUINING, "train.steps=60", "checkpoint.keep=2", code=7)

        self.assertIn("--resume 8", result.messages[0])

    def start_overflowing(self, *settings, code):
        """The embedding of a token that the text lacks overflows in step 1; no loss depends on it."""
        if not (self.folder / "huge").exists():
            self.start_good("small", "checkpoint.every=6")
            self.run_program("checkpoint", "export", "small/checkpoints", "--output", "foreign")
            set_first(self.folder / "foreign/model.safetensors", "model.embed_tokens.weight", 3.3e38)
            result = self.run_program("checkpoint", "import", "foreign", "--output", "huge")
            self.assertEqual(result.code, 0, result.err)
        return self.train(f"overflow{code}", *PLAIN, *settings, "checkpoint.initial=huge", "optimizer.lr=0.01",
                          "optimizer.weight_decay=210", code=code)

    def test_infinite_values_are_reported_once_and_end_the_run(self):
        result = self.start_overflowing("checkpoint.every=2", "train.steps=60", code=7)

        self.assertEqual(result.err.count("left values in model/"), 1, result.err)
        self.assertIn("the last 3 checkpoints were not written, the newest of step 6", result.messages[0])
        self.assertIn("there is no checkpoint before that", result.messages[0])
        losses = support.column(self.folder / "overflow7", "loss")
        self.assertTrue(all(0 < loss < 1e30 for loss in losses), losses)

    def test_infinite_values_at_the_end_are_reported_once(self):
        result = self.start_overflowing("checkpoint.every=2", "train.steps=4", code=0)

        self.assertEqual(result.err.count("left values in model/"), 1, result.err)

    def test_an_end_that_is_not_finite_leaves_the_checkpoint_before(self):
        for name, end, options in (("last", "train.steps=9", ()), ("early", "train.steps=60", ("--stop-after", "9"))):
            with self.subTest(name):
                settings = ("checkpoint.every=6",)
                folder = self.start_good(name, *settings)

                result = self.train(name, *PLAIN, *settings, *RUINING, end, options=options)

                self.assertEqual(steps(folder), [6])
                self.assertIn("step 9 was not finite: no checkpoint of it; the newest before that is of step 6",
                              result.err)

    def test_without_any_checkpoint_the_advice_says_so(self):
        result = self.train("none", *PLAIN, *RUINING, "checkpoint.every=0", "train.steps=60", code=7)

        self.assertIn("there is no checkpoint before that", result.messages[0])


class Locks(support.Case):
    """Two runs in one directory."""

    def start_endless(self, run, *settings, ranks=0):
        """Starts it and waits until it has done some steps."""
        process = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, f"run.directory={run}", f"parallel.data={max(ranks, 1)}", *settings), ranks=ranks)
        path = self.folder / run / "metrics.jsonl"
        self.addCleanup(self.end, process)
        self.assertTrue(support.wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 5, 30))
        return process

    def end(self, process):
        """Nothing is left running, whatever a test has met."""
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_the_second_is_refused_and_the_holder_is_reported(self):
        first = self.start_endless("both")
        host = os.uname().nodename

        for ranks in (1, 2):
            result = self.train("both", "train.steps=3", ranks=ranks, code=5)
            self.assert_refused(result, 5, f"both is used by process {first.pid} on host {host} since 2",
                                "choose another run.directory")
        self.assertTrue((self.folder / "both/lock").read_text().startswith(f"process {first.pid} "))
        self.train("alone", "train.steps=3")

        first.terminate()
        _, err = first.communicate(timeout=20)
        self.assertEqual(first.returncode, 75, err)
        self.assertEqual((self.folder / "both/lock").read_text(), "")
        self.train("both", *support.ENDLESS, options=("--stop-after", "1"))

    def test_a_killed_run_leaves_no_lock(self):
        first = self.start_endless("killed", ranks=2)

        first.kill()
        first.communicate()

        def again():
            result = self.run_program("train", "deck.yaml", *support.overrides("run.directory=killed",
                                                                                "train.steps=3"))
            return result.code == 0
        self.assertTrue(support.wait_until(again, 20), "the ranks end with mpirun")

    def test_a_directory_of_checkpoints_elsewhere_is_locked_too(self):
        first = self.start_endless("apart", "checkpoint.directory=shared")

        result = self.train("other", "checkpoint.directory=shared", "train.steps=3", code=5)

        self.assert_refused(result, 5, f"shared is used by process {first.pid} ", "checkpoint.directory")
        self.assertFalse((self.folder / "other").exists())
        first.terminate()
        first.communicate(timeout=20)
        for options in ((), ("--resume", "never"), ()):
            self.train("apart", "checkpoint.directory=shared", "train.steps=2", options=options)
        self.assertEqual((self.folder / "shared/lock").read_text(), "")

    def test_a_start_over_keeps_the_new_directory_locked(self):
        self.train("over", "checkpoint.directory=steps", "train.steps=3")
        first = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, "run.directory=over", "checkpoint.directory=steps"), "--resume", "never")
        self.addCleanup(self.end, first)
        path = self.folder / "over/metrics.jsonl"
        self.assertTrue(support.wait_until(lambda: path.read_bytes().count(b"\n") >= 5, 30))

        result = self.train("over2", "checkpoint.directory=steps", "train.steps=3", code=5)

        self.assert_refused(result, 5, f"steps is used by process {first.pid} ")

    def test_a_start_over_without_earlier_checkpoints_does_not_refuse_itself(self):
        for _ in range(2):
            self.train("fresh", "checkpoint.directory=new", "checkpoint.every=0", "checkpoint.final=false",
                       "train.steps=2", options=("--resume", "never"))
        self.assertEqual(steps(self.folder / "new"), [])

    def test_checkpoints_in_the_run_directory_are_locked_too(self):
        first = self.start_endless("inner")

        result = self.train("thief", "checkpoint.directory=inner/checkpoints", "train.steps=3", code=5)

        self.assert_refused(result, 5, f"inner/checkpoints is used by process {first.pid} ")
        self.assertFalse((self.folder / "thief").exists())
        self.assertEqual(steps(self.folder / "inner/checkpoints"), [])

    def test_a_start_over_never_sets_the_run_directory_aside(self):
        for name, checkpoints in (("same", "same"), ("outer/run", "outer")):
            with self.subTest(name):
                settings = (f"checkpoint.directory={checkpoints}", "train.steps=2")
                self.train(name, *settings)

                result = self.train(name, *settings, options=("--resume", "never"), code=2)

                self.assert_refused(result, 2, "choose another checkpoint.directory")
                self.assertEqual(steps(self.folder / checkpoints), [2])
                self.assertEqual((self.folder / name / "lock").read_text(), "")
                self.train(name, f"checkpoint.directory={checkpoints}", "train.steps=3")

    def test_an_import_keeps_out_of_a_live_run(self):
        self.train("source", "train.steps=2")
        self.run_program("checkpoint", "export", "source/checkpoints", "--output", "hf")
        first = self.start_endless("live")
        unfinished = self.folder / "live/checkpoints/step_00000099.tmp"
        unfinished.mkdir()

        for output in ("live/checkpoints", "live"):
            result = self.run_program("checkpoint", "import", "hf", "--output", output)

            self.assert_refused(result, 5, f"live is used by process {first.pid} ", "choose another --output")
            self.assertTrue(unfinished.exists())
        self.end(first)
        (self.folder / "away").mkdir()
        result = self.run_program("checkpoint", "import", "hf", "--output", "away/checkpoints")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([path.name for path in (self.folder / "away").iterdir()], ["checkpoints"])
        self.assertFalse((self.folder / "away/checkpoints/lock").exists())

    def test_a_removed_directory_of_checkpoints_is_made_again_with_its_lock(self):
        process = self.start_endless("remade", "checkpoint.every=20")
        checkpoints = self.folder / "remade/checkpoints"
        self.assertTrue(support.wait_until(lambda: (checkpoints / "latest").exists(), 30))
        while checkpoints.exists():  # a save may be in progress
            shutil.rmtree(checkpoints, ignore_errors=True)
            if not (checkpoints / "lock").exists():
                break

        self.assertTrue(support.wait_until(lambda: (checkpoints / "lock").exists(), 30))
        self.assertIn(f"process {process.pid} ", (checkpoints / "lock").read_text())
        result = self.run_program("train", "deck.yaml", *support.overrides(
            "run.directory=other", "checkpoint.directory=remade/checkpoints"))
        self.assert_refused(result, 5, f"used by process {process.pid} ")
        process.terminate()
        err = process.communicate(timeout=30)[1].decode()
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("remade/checkpoints: was removed, or its lock was, while the run goes on; it is made again", err)

    def test_what_a_killed_start_left_is_removed(self):
        self.train("probes", "train.steps=2")
        (self.folder / "probes/.probe.4711").write_text("probe")

        self.train("probes", "train.steps=3")

        self.assertFalse((self.folder / "probes/.probe.4711").exists())


class Refusals(support.Case):
    """Disks that refuse what is not a checkpoint."""

    def run_in(self, before, after, *arguments):
        """Runs the program in a mount namespace of its own, between two shell commands."""
        prefix = ["unshare", "-m", "sh", "-c",
                  f'{before} || exit 99\n"$@"\ncode=$?\n{after}\nexit $code', "sh"]
        probe = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True,
                               check=False)
        if probe.returncode:
            self.skipTest("no right to mount")
        found = subprocess.run([*prefix, *support.command(*arguments)], cwd=self.folder, capture_output=True,
                               timeout=120, check=False)
        return support.Result(found.returncode, found.stdout, found.stderr.decode(), 0)

    def test_a_full_disk_costs_lines_and_not_the_run(self):
        (self.folder / "mounted").mkdir()
        settings = support.overrides("run.directory=mounted", "checkpoint.directory=room", "train.steps=150",
                                     "train.log_norms=1", "train.validate_every=0", "data.validation=[]")
        result = self.run_in("mount -t tmpfs -o size=160k none mounted", "cp mounted/*.jsonl .",
                             "train", "deck.yaml", *settings)

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(steps(self.folder / "room")[-1], 150)
        self.assertIn("No space left on device; training goes on", result.err)
        self.assertRegex(result.err, r"norms\.jsonl: \d+ line\(s\) are lost")
        self.assertLess(len(result.err.splitlines()), 60, result.err)
        for name in ("metrics.jsonl", "norms.jsonl"):
            lines = (self.folder / name).read_text().splitlines()
            self.assertGreater(len(lines), 0)
            self.assertEqual([json.loads(line)["step"] for line in lines], list(range(1, len(lines) + 1)))

    def test_an_old_checkpoint_that_stays_stops_nothing(self):
        settings = ("checkpoint.every=2", "checkpoint.keep=2")
        self.train("stays", *settings, "train.steps=2")
        held = self.folder / "stays/checkpoints/step_00000002/held"
        held.mkdir()
        arguments = ("train", "deck.yaml", *support.overrides("run.directory=stays", *settings))

        for end in (8, 12):
            result = self.run_in(f"for d in stays/checkpoints/*/held; do mount -t tmpfs none $d; done", ":",
                                 *arguments, "--set", f"train.steps={end}")

            self.assertEqual(result.code, 0, result.err)
            self.assertEqual((self.folder / "stays/checkpoints/latest").read_text(), f"step_{end:08d}\n")
            self.assertEqual(result.err.count("held: removing it failed: Device or resource busy"), 1, result.err)
        found = [path.name for path in (self.folder / "stays/checkpoints").glob("step_*")]
        self.assertIn("step_00000002.tmp", found)
        self.run_program(*arguments, "--set", "train.steps=14")
        self.assertFalse((self.folder / "stays/checkpoints/step_00000002.tmp").exists())

    def test_a_run_directory_that_is_removed_is_reported(self):
        process = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, "run.directory=gone", "checkpoint.directory=elsewhere"))
        path = self.folder / "gone/metrics.jsonl"
        self.assertTrue(support.wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 5, 30))
        subprocess.run(["rm", "-r", "gone"], cwd=self.folder, check=True)
        removed = b"metrics.jsonl: was removed"
        before = self.lines_up_to(process, removed)
        before += self.lines_up_to(process, b"step ")  # training goes on

        process.terminate()
        _, err = process.communicate(timeout=20)

        self.assertEqual(process.returncode, 75, err)
        self.assertEqual((before + err).count(removed), 1, err)

    def lines_up_to(self, process, words):
        """Standard error up to a line with these words."""
        lines = b""
        for line in process.stderr:
            lines += line
            if words in line:
                return lines
        self.fail(lines.decode())


if __name__ == "__main__":
    support.main()
