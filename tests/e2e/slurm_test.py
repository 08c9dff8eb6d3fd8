#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batch scripts of jobs/slurm on a Slurm cluster of two nodes that this host plays."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import slurm_cluster
import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "jobs" / "slurm"
STUDY_STEPS = 300
STUDY = f"""\
name: two
title: Two points
deck: deck.yaml
set: {{train.steps: {STUDY_STEPS}, train.validate_every: 0, data.validation: [], checkpoint.every: 0}}
environment: {{OMP_NUM_THREADS: 1}}
axes: {{ranks: [1, 2]}}
base: {{ranks: 1}}
tables:
  - {{title: Times, columns: [step_seconds, speed_up, final_loss]}}
plots:
  - {{kind: lines, name: rate, title: Rate, x: ranks, y: [tokens_per_second]}}
"""


PYTHON = support.python_of_reports()


class Slurm(support.Case):
    """Jobs of two ranks, each on a node of its own."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls._home = tempfile.TemporaryDirectory(prefix="hyperslab_slurm_")
        cls.addClassCleanup(cls._home.cleanup)
        cls.cluster = slurm_cluster.Cluster(cls._home.name)
        cls.enterClassContext(cls.cluster)
        cls.cluster.environment["HYPERSLAB"] = support.command()[0]

    def submit(self, script, *words, options=()):
        """A job of two nodes with a rank on each."""
        return self.cluster.submit("--nodes=2", "--ntasks-per-node=1", "--output=job-%j.out", *options,
                                   SCRIPTS / script, *words, cwd=self.folder)

    def output(self, job):
        """What the job has printed so far."""
        path = self.folder / f"job-{job}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def await_state(self, job, state, seconds=60):
        """Fails with the job's output if it does not come to the state."""
        if not self.cluster.wait_until(lambda: self.cluster.state(job) == state, seconds):
            self.fail(f"job {job} is {self.cluster.state(job)}, not {state}:\n{self.output(job)}")

    def await_steps(self, run, count):
        """Until a run has done steps."""
        path = self.folder / run / "metrics.jsonl"
        if not self.cluster.wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= count, 60):
            self.fail(f"{run} has not done {count} steps")

    @staticmethod
    def settings(run, *others):
        """Overrides for two data ranks."""
        return support.overrides(f"run.directory={run}", "parallel.data=2", *others)

    def test_srun_starts_a_rank_on_each_node(self):
        job = self.submit("train.sbatch", "deck.yaml", *self.settings("by_srun"))
        self.await_state(job, "COMPLETED")
        self.assertEqual(len(support.metrics(self.folder / "by_srun")), 20, self.output(job))

    def test_mpirun_starts_a_rank_on_each_node(self):
        job = self.submit("train-mpirun.sbatch", "deck.yaml", *self.settings("by_mpirun"))
        self.await_state(job, "COMPLETED")
        self.assertEqual(len(support.metrics(self.folder / "by_mpirun")), 20, self.output(job))

    def test_an_array_runs_every_line(self):
        lines = [" ".join(["deck.yaml", *self.settings(f"line_{lr}", f"optimizer.lr={lr}", "train.steps=4")])
                 for lr in ("0.01", "0.001")]
        (self.folder / "runs.txt").write_text("\n".join(lines) + "\n")
        job = self.submit("decks.sbatch", "runs.txt", options=["--array=1-2"])
        for task in (1, 2):
            self.await_state(f"{job}_{task}", "COMPLETED")
        for lr in ("0.01", "0.001"):
            self.assertEqual(len(support.metrics(self.folder / f"line_{lr}")), 4)

    def test_a_preempted_job_saves_and_goes_on(self):
        steps = 400
        job = self.submit("train.sbatch", "deck.yaml", *self.settings(
            "preempted", f"train.steps={steps}", "train.validate_every=0", "data.validation=[]", "checkpoint.every=0"))
        self.await_steps("preempted", 20)
        urgent = self.cluster.submit("--partition=urgent", "--nodes=2", "--ntasks-per-node=2",
                                     "--output=urgent.out", "--wrap=sleep 1", cwd=self.folder)
        self.await_state(urgent, "COMPLETED")
        # Slurm lets a job that was put back wait for two minutes.
        self.await_state(job, "PENDING", 40)
        self.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        self.await_state(job, "COMPLETED", 120)
        self.assertEqual(self.cluster.job(job)["Restarts"], "1", self.output(job))
        found = support.column(self.folder / "preempted", "step")
        self.assertEqual(found, list(range(1, steps + 1)), self.output(job))
        self.assertIn("resumed", self.output(job))

    def python(self, *words):
        """A Python program of the checkout, in the folder of the test."""
        done = subprocess.run([PYTHON, *map(str, words)], cwd=self.folder, capture_output=True, text=True, check=False,
                              env={**self.cluster.environment, "PYTHONPATH": str(ROOT)})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def await_array(self, job, tasks, state, seconds):
        """Fails with the outputs if a task of the array does not come to the state."""
        for task in range(tasks):
            if not self.cluster.wait_until(lambda name=f"{job}_{task}": self.cluster.state(name) == state, seconds):
                outputs = "".join(path.read_text() for path in sorted(self.folder.glob(f"runs/two/slurm-{job}_*.out")))
                self.fail(f"task {task} of {job} is {self.cluster.state(f'{job}_{task}')}, not {state}:\n{outputs}")

    def test_a_study_as_an_array_is_preempted_and_becomes_a_report(self):
        if PYTHON is None:
            self.skipTest("no Python with h5py, matplotlib, PyYAML and Jinja2")
        (self.folder / "two.yaml").write_text(STUDY, encoding="utf-8")
        written = self.python(ROOT / "jobs" / "study.py", "two.yaml", "--binary", support.command()[0], "--slurm",
                              "time=01:00:00")
        self.assertEqual(written.split(), [f"runs/two/{name}.slurm" for name in ("study", "ranks_1", "ranks_2")])

        job = self.cluster.submit("runs/two/study.slurm", cwd=self.folder)
        for ranks in (1, 2):
            self.await_steps(f"runs/two/points/ranks_{ranks}", 20)
        urgent = self.cluster.submit("--partition=urgent", "--nodes=2", "--ntasks-per-node=2", "--output=urgent.out",
                                     "--wrap=sleep 1", cwd=self.folder)
        self.await_state(urgent, "COMPLETED", 90)
        self.await_array(job, 2, "PENDING", 60)
        for task in range(2):
            self.cluster.ask("scontrol", "update", f"JobId={job}_{task}", "StartTime=now")
        self.await_array(job, 2, "COMPLETED", 150)

        for task, ranks in enumerate((1, 2)):
            place = self.folder / f"runs/two/points/ranks_{ranks}"
            self.assertEqual(self.cluster.job(f"{job}_{task}")["Restarts"], "1")
            self.assertEqual(json.loads((place / "point.json").read_text())["state"], "done")
            self.assertEqual(support.column(place, "step"), list(range(1, STUDY_STEPS + 1)))
        self.assertIn("ranks_2", (self.folder / "runs/index.csv").read_text())
        self.python("-m", "analysis", "report", "runs/two")
        page = (self.folder / "runs/two/report/report.html").read_text(encoding="utf-8")
        for words in ("Times", "speed-up", "2 ranks"):
            self.assertIn(words, page)

    def test_a_killed_rank_is_started_again_in_the_same_job(self):
        for script in ("train.sbatch", "train-mpirun.sbatch"):
            with self.subTest(script):
                run = f"killed_{script.split('.', maxsplit=1)[0]}"
                job = self.submit(script, "deck.yaml", *self.settings(
                    run, "train.steps=250", "train.validate_every=0", "data.validation=[]", "checkpoint.every=30"))
                self.await_steps(run, 40)
                found = subprocess.run(["pgrep", "-f", f"train deck.yaml --set run.directory={run} "], capture_output=True,
                                       text=True, check=True)
                ranks = [int(word) for word in found.stdout.split()
                         if pathlib.Path(f"/proc/{word}/exe").resolve().name == "hyperslab"]
                os.kill(max(ranks), signal.SIGKILL)

                self.await_state(job, "COMPLETED", 120)

                lines = (self.folder / run / "restarts.jsonl").read_text().splitlines()
                self.assertEqual([json.loads(line)["code"] for line in lines], [137], self.output(job))
                self.assertEqual(support.column(self.folder / run, "step"), list(range(1, 251)))

    def test_a_script_without_a_deck_says_how_to_call_it(self):
        job = self.submit("train.sbatch")
        self.await_state(job, "FAILED")
        self.assertIn("sbatch [OPTIONS] jobs/slurm/train.sbatch DECK", self.output(job))


if __name__ == "__main__":
    reason = slurm_cluster.missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    support.main()
