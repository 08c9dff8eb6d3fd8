#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a start checks of disks and links, and runs that stop before their time is over."""

import json
import os
import pathlib
import subprocess
import time
import unittest

import support

LINKS = ("parallel.data=2", "parallel.tensor=2", "train.steps=3", "train.validate_every=0", "data.validation=[]")


class Links(support.Case):
    """Groups that are timed before the first step, on four ranks."""

    def start_with(self, run, *settings, code=0):
        """A short run."""
        result = self.run_program("train", "deck.yaml", *support.overrides(*LINKS, f"run.directory={run}", *settings), ranks=4)
        self.assertEqual(result.code, code, result.err)
        return result

    def test_every_kind_of_group_is_named_with_its_rate(self):
        plain = self.start_with("plain")
        checked = self.start_with("checked", "run.check_links=always")

        self.assertNotIn("links: ", plain.err)
        self.assertRegex(checked.err, r"links: world \S+ GB/s \(1 of 4 ranks\), data \S+ to \S+ GB/s \(2 of 2 ranks\), "
                                      r"tensor \S+ to \S+ GB/s \(2 of 2 ranks\), in all_reduce of 1 MiB")
        for key in ("loss", "grad_norm"):
            self.assertEqual(support.column(self.folder / "plain", key), support.column(self.folder / "checked", key))

    def test_groups_slower_than_the_machine_file_are_named(self):
        rows = [[group, "all_reduce", 2, 1 << 20, 1e-7] for group in ("data", "tensor")]
        numbers = ("memory_bytes", "launch_seconds", "network_latency_seconds", "network_bytes_per_second",
                   "storage_bytes_per_second")
        machine = {"format": "hyperslab machine", "format_version": 1, "name": "a dream", "device": "cpu", "sources": [],
                   "ranks_per_node": 8, **dict.fromkeys(numbers, 0), "peak_flops": {}, "overlap_cost": {}, "ops": {},
                   "collectives": rows}
        (self.folder / "dream.json").write_text(json.dumps(machine))

        result = self.start_with("dream", "run.machine=dream.json")

        self.assertRegex(result.err, r"slow link: the data group of ranks 0, 2 on host \S+ reaches \S+ GB/s in "
                                     r"all_reduce of 1 MiB, and the machine file of a dream expects ")

    def test_a_machine_file_that_is_not_there_is_refused(self):
        result = self.start_with("none", "run.machine=none.json", code=2)
        self.assertIn("run.machine: none.json: ", result.err)
        self.assertEqual(len(result.messages), 1, result.err)


class Kernels(support.Case):
    """OpenBLAS's, on a processor that it does not know."""

    def kernels_of_starts(self, ranks=0, **variables):
        """OPENBLAS_CORETYPE in every start of the program."""
        library = os.environ["HYPERSLAB_UNKNOWN_PROCESSOR"]
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
        program = support.command("bench", "--help")
        launcher = support.command("bench", "--help", ranks=ranks)[:-len(program)]
        done = subprocess.run([*launcher, "env", f"LD_PRELOAD={library}", *program], cwd=self.folder, text=True,
                              capture_output=True, timeout=60, check=False, env={**environment, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--steps", done.stdout)
        starts = [line.split() for line in done.stderr.splitlines() if line.startswith("kernels: ")]
        self.assertEqual({program for _, _, program in starts}, {pathlib.Path(program[0]).name})
        return [kernels for _, kernels, _ in starts]

    def test_the_program_asks_for_those_of_the_widest_vectors(self):
        flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        if "avx2" not in flags:
            self.skipTest("no AVX2 here")
        widest = "SkylakeX" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags) else "Haswell"

        self.assertEqual(self.kernels_of_starts(), ["none", widest])
        self.assertEqual(sorted(self.kernels_of_starts(ranks=2)), sorted(2 * ["none", widest]))

    def test_threads_that_wait_give_up_their_core(self):
        library = os.environ["HYPERSLAB_UNKNOWN_PROCESSOR"]
        unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "OMP_NUM_THREADS")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        for variables, counts in (({"OMP_NUM_THREADS": "2"}, ["none", "3000"]), ({"OMP_NUM_THREADS": "1"}, ["none"]),
                                  ({"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "7"}, ["7"]),
                                  ({"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}, ["none"])):
            with self.subTest(variables):
                done = subprocess.run(["env", f"LD_PRELOAD={library}", *support.command("bench", "--help")],
                                      cwd=self.folder, text=True, capture_output=True, timeout=60, check=False,
                                      env={**environment, "OPENBLAS_CORETYPE": "Haswell", **variables})
                found = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("spins: ")]
                self.assertEqual((done.returncode, [count for count in found if count != "env"]), (0, counts), done.stderr)

    def test_a_choice_of_the_users_stays(self):
        self.assertEqual(self.kernels_of_starts(OPENBLAS_CORETYPE="Nehalem"), ["Nehalem"])


class Disks(support.Case):
    """Directories and the room in them."""

    def on_small_disk(self, size, *settings, options=""):
        """A run whose checkpoints lie on a file system of that many KiB."""
        words = support.command("train", "deck.yaml", *support.overrides(
            f"run.directory=small{size}", "checkpoint.directory=mounted", "checkpoint.every=2", *settings))
        (self.folder / "mounted").mkdir(exist_ok=True)
        script = f'mount -t tmpfs -o size={size}k none mounted && exec "$@" {options}'
        return subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *words], cwd=self.folder, capture_output=True,
                              check=False, text=True, timeout=60)

    @unittest.skipUnless(support.can_mount(), "no file system can be mounted here")
    def test_no_room_for_one_checkpoint_ends_the_start(self):
        result = self.on_small_disk(200)

        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertRegex(result.stderr, r"mounted: a checkpoint needs 0\.\d MiB and 0\.\d MiB are free; make room")
        self.assertNotIn("step 1/", result.stderr)
        self.assertFalse((self.folder / "small200/metrics.jsonl").exists())

    @unittest.skipUnless(support.can_mount(), "no file system can be mounted here")
    def test_little_room_is_reported(self):
        result = self.on_small_disk(1400, "train.steps=2", "checkpoint.keep=3")
        self.assertNotIn("there is room for", result.stderr)  # for what two steps write

        result = self.on_small_disk(1400, "train.steps=20", "checkpoint.keep=3", options="--stop-after 8")

        self.assertRegex(result.stderr, r"mounted: there is room for \d more checkpoints? of 0\.\d MiB \(1\.\d MiB are "
                                        r"free\), and this start will need room for 4; make room")

    def test_a_file_in_the_way_of_checkpoints_is_named(self):
        (self.folder / "file").write_text("in the way")
        result = self.train("blocked", "checkpoint.directory=file/saved", code=5)
        self.assertIn("file/saved: cannot make this directory", result.err)


class Walltime(support.Case):
    """Runs without end that stop in time."""

    def stops_in_time(self, run, seconds, *settings, ranks=0, **environment):
        """Starts a run that has so many seconds; returns its standard error."""
        begin = time.monotonic()
        process = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, f"run.directory={run}", f"parallel.data={max(ranks, 1)}", *settings), ranks=ranks,
            env={**os.environ, **environment})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, err)
        self.assertLess(time.monotonic() - begin, seconds + 1)
        last = support.column(self.folder / run, "step")[-1]
        self.assertEqual((self.folder / run / "checkpoints/latest").read_text().strip(), f"step_{last:08d}")
        return err.decode()

    def test_the_time_of_the_deck(self):
        err = self.stops_in_time("timed", 12, "run.walltime_minutes=0.2", "train.validate_every=50",
                                 "data.validation=[text.bin]", ranks=2)
        self.assertRegex(err, r"stopping after step \d+ since \d+ s of run.walltime_minutes are left: 3 steps of up to "
                              r"\S+ s and a save of up to \S+ s need \d+ s")
        last = support.column(self.folder / "timed", "step")[-1]
        self.train("timed", *support.ENDLESS, options=("--stop-after", last + 3))
        self.assertEqual(support.column(self.folder / "timed", "step"), list(range(1, last + 4)))

    def test_the_time_of_the_job(self):
        err = self.stops_in_time("job", 12, SLURM_JOB_ID="12", SLURM_JOB_END_TIME=str(int(time.time()) + 11))
        self.assertIn("of the job's time limit (Slurm) are left", err)


if __name__ == "__main__":
    support.main()
