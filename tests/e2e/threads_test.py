# SPDX-License-Identifier: Apache-2.0
"""Threads of ranks: the cores of the host shared out, OMP_NUM_THREADS, binding, and what is said."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

import support

CORES = sorted(os.sched_getaffinity(0))
# What CTest and the user set for other runs would decide here.
ALONE = ("OMP_NUM_THREADS", "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_hwloc_base_binding_policy")
STEPS = ("train.steps=1", "schedule.warmup_steps=0", "train.validate_every=0", "data.validation=[]",
         "checkpoint.every=0", "checkpoint.final=false")


def quota():
    """Cores that a control group leaves to this process, by the files that containers have."""
    try:
        limit, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return 1e9 if limit == "max" else -(-int(limit) // int(period))
    except (OSError, ValueError):
        return 1e9


class ThreadsTest(support.Case):
    """Every start trains one step; the line and the timing files say what it computed with."""

    def train_with(self, run, ranks, launcher=(), prefix=(), **environment):
        """(threads by rank, what was printed)"""
        known = {key: value for key, value in os.environ.items() if key not in ALONE}
        words = support.command("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", f"parallel.data={ranks}", *STEPS), ranks=ranks)
        if ranks:
            words[1:1] = ["--quiet", *launcher]
        result = subprocess.run([*prefix, *words], cwd=self.folder, env={**known, **environment}, timeout=120,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False)
        text = result.stderr.decode()
        self.assertEqual(result.returncode, 0, text)
        files = sorted((self.folder / run / "timing" / "start_0001").glob("rank_*.h5"))
        found = [support.h5(file) for file in files]
        if None in found:
            self.skipTest("no python3 with h5py")
        return [file[""]["attributes"]["threads"] for file in found], text

    def assert_line(self, text, *parts):
        """There is one line on threads, with these parts."""
        lines = [line for line in text.splitlines() if "threads: " in line]
        self.assertEqual(len(lines), 1, text)
        for part in parts:
            self.assertRegex(lines[0], part)

    def open_cores(self, cores=len(CORES)):
        """So many of them may be used."""
        return int(min(cores, quota()))

    def test_unbound_ranks_share_the_cores(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                share = max(1, self.open_cores() // ranks)
                threads, text = self.train_with(f"unbound{ranks}", ranks,
                                                ("--oversubscribe", "--bind-to", "none"))

                self.assertEqual(threads, [share] * ranks)
                self.assert_line(text, f"threads: {share} a rank; {ranks} ranks? on {self.open_cores()} core")
                self.assertNotIn("OMP_NUM_THREADS", text)
                self.assertEqual("more ranks than cores: they yield while they wait" in text,
                                 ranks > self.open_cores())

    def test_without_a_launcher(self):
        threads, text = self.train_with("alone", 1)
        alone = [self.open_cores()]
        known = {key: value for key, value in os.environ.items() if key not in ALONE}
        words = support.command("train", "deck.yaml", *support.overrides("run.directory=no_mpirun", *STEPS))
        subprocess.run(words, cwd=self.folder, env=known, check=True, capture_output=True, timeout=120)
        file = support.h5(self.folder / "no_mpirun" / "timing" / "start_0001" / "rank_00000.h5")

        self.assertEqual([file[""]["attributes"]["threads"]], alone)
        # mpirun binds one rank to one core
        self.assertIn(threads, ([1], alone))
        self.assert_line(text, "1 rank on ")

    def test_omp_num_threads_decides(self):
        threads, text = self.train_with("one", 2, ("--oversubscribe", "--bind-to", "none"), OMP_NUM_THREADS="1")

        self.assertEqual(threads, [1, 1])
        self.assert_line(text, "threads: 1 a rank, as OMP_NUM_THREADS says")
        self.assertNotIn("asks for", text)

    def test_more_threads_than_cores_are_warned_of(self):
        many = len(CORES) + 1
        threads, text = self.train_with("many", 2, ("--oversubscribe", "--bind-to", "none"),
                                        OMP_NUM_THREADS=str(many))

        self.assertEqual(threads, [many, many])
        self.assertIn(f"OMP_NUM_THREADS asks for {many} threads a rank: {2 * many} threads on ", text)
        self.assertIn(f"set it to {max(1, self.open_cores() // 2)}", text)

    @unittest.skipUnless(shutil.which("taskset") and len(CORES) > 1, "needs taskset and two cores")
    def test_a_mask_is_all_there_is(self):
        threads, text = self.train_with("masked", 2, ("--oversubscribe", "--bind-to", "none"),
                                        ("taskset", "-c", str(CORES[0])))

        self.assertEqual(threads, [1, 1])
        self.assert_line(text, "2 ranks on 1 core of this host's", "closed to them", "they yield")

    @unittest.skipUnless(shutil.which("taskset") and len(CORES) > 1, "needs taskset and two cores")
    def test_bound_ranks_do_not_share(self):
        # What mpirun --bind-to core and srun do to ranks, here by hand.
        shell = 'exec taskset -c $(( $OMPI_COMM_WORLD_RANK == 0 ? FIRST : LAST )) "$@"'
        shell = shell.replace("FIRST", str(CORES[0])).replace("LAST", str(CORES[-1]))
        words = support.command("train", "deck.yaml", *support.overrides(
            "run.directory=bound", "parallel.data=2", *STEPS), ranks=2)
        words[1:1] = ["--quiet", "--oversubscribe", "--bind-to", "none"]
        program = words.index(support.command()[0])
        words[program:program] = ["sh", "-c", shell, "sh"]
        known = {key: value for key, value in os.environ.items() if key not in ALONE}
        result = subprocess.run(words, cwd=self.folder, env=known, capture_output=True, timeout=120, check=False)

        text = result.stderr.decode()
        self.assertEqual(result.returncode, 0, text)
        self.assert_line(text, "threads: 1 a rank; 2 ranks on 1 core of their own each, 2 cores")

    def test_the_start_line_names_the_rate(self):
        _, text = self.train_with("rate", 2, ("--oversubscribe", "--bind-to", "none"), HYPERSLAB_MATRIX_GFLOPS="")

        found = re.search(r"utilization against the measured matrix rate, ([0-9.]+) GFLOP/s of 2 ranks "
                          r".*counting of attention what its mask leaves", text)
        self.assertIsNotNone(found, text)
        rate = 1e9 * float(found[1])
        line = support.metrics(self.folder / "rate")[0]
        for key in ("mfu", "mfu_full"):
            self.assertGreater(line[key] * line["step_seconds"] * rate, 0)
        self.assertLess(line["mfu"], line["mfu_full"])

    def test_a_stated_rate_is_not_measured(self):
        _, text = self.train_with("stated", 2, ("--oversubscribe", "--bind-to", "none"), HYPERSLAB_MATRIX_GFLOPS="40")

        self.assertIn("utilization against the stated matrix rate, 80.0 GFLOP/s of 2 ranks (HYPERSLAB_MATRIX_GFLOPS)",
                      text)
        # By hand: 12 samples of 32 tokens; matrices 2 (4 32 32 + 3 32 128) + 257 32 = 40992; 6 FLOPs of each, and
        # 12 x 2 layers x width 32 x 32 tokens of all of attention, of which the mask leaves half.
        line = support.metrics(self.folder / "stated")[0]
        self.assertAlmostEqual(line["mfu_full"] * line["step_seconds"] * 80e9 / (384 * (245952 + 24576)), 1, places=9)
        self.assertAlmostEqual(line["mfu"] * line["step_seconds"] * 80e9 / (384 * (245952 + 12288)), 1, places=9)

    def test_a_rate_that_a_step_exceeds_gives_no_utilization(self):
        _, text = self.train_with("exceeded", 1, HYPERSLAB_MATRIX_GFLOPS="0.000001")

        lines = [line for line in text.splitlines() if "utilization is left out from here on" in line]
        self.assertEqual(len(lines), 1, text)
        self.assertRegex(lines[0], "step 1 ran at .* times the stated matrix rate .*HYPERSLAB_MATRIX_GFLOPS")
        self.assertIn("utilization unknown", text)
        self.assertNotRegex(text, "utilization [0-9]")
        for line in support.metrics(self.folder / "exceeded"):
            self.assertEqual([line["mfu"], line["mfu_full"]], [None, None])


if __name__ == "__main__":
    support.main()
