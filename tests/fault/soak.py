#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed, or meets another random fault, again and again, and resumes each time: its checkpoints and
metrics must be those of a run that nothing happened to, bit for bit.

    soak.py --binary build/bin/hyperslab [--rounds 200] [--seconds 0] [--seed 1] [--ranks 2] [--mode kill|any]
            [--json soak.json]

It ends after so many rounds, or behind the first round after so many seconds if they are given, and writes a record.
Mode kill: SIGKILL of a random rank, of all or of mpirun at a random moment. Mode any: also faults of HYPERSLAB_FAULT at
random points.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import fault_support
import support

EVERY = 9  # steps between checkpoints
STEPS_A_ROUND = 40
SILENT_SECONDS = 20
SETTINGS = (*fault_support.PLAIN, f"checkpoint.every={EVERY}", "checkpoint.keep=2", "model.layers=1",
            "model.dropout=0.1", "run.hang_timeout_seconds=5", "timing.every=50")
COMPARED = ("step", "loss", "grad_norm", "lr", "tokens")
POINTS = ("step.forward", "step.backward", "step.optimizer", "collective.call", "records.metrics", "start.data",
          "start.memory", "start.records", "checkpoint.load")
ACTIONS = ("kill", "error", "no_space", "stop", "delay_0.5")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="end behind the first round after so long; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mode", choices=("kill", "any"), default="kill")
    parser.add_argument("--set", action="append", default=[], help="a further key of the deck")
    parser.add_argument("--json", default="")
    return parser.parse_args()


class Soak:
    """The run under attack and its record."""

    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.draw = random.Random(args.seed)
        self.ends = collections.Counter()
        self.kinds = collections.Counter()
        self.settings = (*SETTINGS, f"parallel.data={args.ranks}", "train.steps=1000000", *args.set)

    def start(self, run, *options, fault=""):
        """A start of a run."""
        variables = {"HYPERSLAB_START_TIMEOUT_SECONDS": "20", **({"HYPERSLAB_FAULT": fault} if fault else {})}
        words = ("train", "deck.yaml", *support.overrides(f"run.directory={run}", *self.settings), *options)
        return fault_support.Job(self.folder, words, self.args.ranks, variables)

    def done(self, run):
        """The newest step in the metrics."""
        path = self.folder / run / "metrics.jsonl"
        lines = path.read_bytes().count(b"\n") if path.exists() else 0
        return lines

    def fault(self, step):
        """HYPERSLAB_FAULT for a round that begins behind `step`."""
        rank = self.draw.randrange(self.args.ranks)
        if self.draw.random() < 0.5:
            number = self.draw.randrange(1, 60)
            return f"*@/checkpoints/#{number}:{rank}:*:{self.draw.choice(ACTIONS)}"
        point = self.draw.choice(POINTS)
        actions = ("kill", "stop", "delay_0.5") if point == "records.metrics" else ACTIONS
        number = 1 if point.startswith(("start.", "checkpoint.")) else self.draw.randrange(1, STEPS_A_ROUND)
        return f"{point}#{number}:{rank}:*:{self.draw.choice(actions)}"

    def hit(self, job):
        """Kills something at a random moment; what it was."""
        kind = self.draw.choice(("rank", "rank", "rank", "all", "mpirun"))
        seconds = self.draw.uniform(0, 3)
        victim = self.draw.randrange(self.args.ranks)
        mpirun = job.process.pid
        try:
            support.wait_until(lambda: len(fault_support.processes_of(mpirun)) >= self.args.ranks, 60)
            time.sleep(seconds)
            ranks = fault_support.processes_of(mpirun)
            for process in {"mpirun": [mpirun], "all": ranks, "rank": ranks[victim:victim + 1]}[kind]:
                os.kill(process, signal.SIGKILL)
        except OSError:
            kind = "ended before"
        return kind

    def round(self):
        """One start that is disturbed."""
        begin = self.done("attacked")
        if self.args.mode == "any" and self.draw.random() < 0.5:
            fault = self.fault(begin)
            job = self.start("attacked", "--stop-after", begin + STEPS_A_ROUND, fault=fault)
            self.kinds[fault.split(":")[0].split("#")[0] + ":" + fault.rsplit(":", 1)[1]] += 1
        else:
            job = self.start("attacked", "--stop-after", begin + 100 * STEPS_A_ROUND)
            self.kinds[self.hit(job)] += 1
        self.end_if_childless(job.process)
        result = job.result(120)
        self.ends[str(result.code)] += 1
        if result.code is None or "fault of the program" in result.err:
            raise AssertionError(f"exit code {result.code}:\n{result.err}")

    def end_if_childless(self, process):
        """Open MPI 4.1 can stay behind for ever when a rank dies while it is being started: keep-running.sh ends it."""
        seen = end = time.monotonic()
        while process.poll() is None and end - seen < SILENT_SECONDS:
            end = time.monotonic()
            tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/children")
            with contextlib.suppress(OSError):  # it ends
                if any(task.read_text(encoding="ascii").split() for task in tasks):
                    seen = end
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            self.kinds["mpirun stayed behind"] += 1

    def compare(self):
        """The end of both runs."""
        last = self.done("attacked") + EVERY
        for run in ("attacked", "whole"):
            result = self.start(run, "--stop-after", last).result(3600)
            if result.code not in (0, 75):
                raise AssertionError(f"the last start of {run} ended with {result.code}:\n{result.err}")
        attacked, whole = self.folder / "attacked", self.folder / "whole"
        for key in COMPARED:
            if support.column(attacked, key) != support.column(whole, key):
                raise AssertionError(f"{key} of the run differs from that of an undisturbed one")
        step = fault_support.steps(whole / "checkpoints")[-1]
        folders = [fault_support.step_folder(run / "checkpoints", step) for run in (attacked, whole)]
        if support.tensors(folders[0]) != support.tensors(folders[1]):
            raise AssertionError(f"tensors of step {step} differ from those of an undisturbed run")
        return last

    def run(self):
        """All rounds, and the record."""
        begin = time.monotonic()
        rounds = 0
        while rounds < self.args.rounds and (
                self.args.seconds <= 0 or time.monotonic() - begin < self.args.seconds):
            self.round()
            rounds += 1
            if rounds % 10 == 0:
                print(f"round {rounds}: {self.done('attacked')} steps, exit codes {dict(self.ends)}", flush=True)
        attacked_seconds = time.monotonic() - begin
        last = self.compare()
        return {"mode": self.args.mode, "seed": self.args.seed, "ranks": self.args.ranks, "rounds": rounds,
                "seconds": round(attacked_seconds, 1), "steps": last, "exit_codes": dict(self.ends),
                "faults": dict(self.kinds), "equal": True}


def main():
    args = arguments()
    support._PROGRAM.update(binary=str(pathlib.Path(args.binary).resolve()), mpiexec=args.mpiexec)
    for key, value in {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1"}.items():
        os.environ.setdefault(key, value)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hyperslab_soak_"))
    (folder / "deck.yaml").write_text(support.DECK, encoding="utf-8")
    support.write_tokens(folder / "text.bin", [*support.text().encode(), 256])
    try:
        record = Soak(args, folder).run()
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"soak.py: {error}\nsoak.py: everything is in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    text = json.dumps(record, indent=1)
    print(text)
    if args.json:
        pathlib.Path(args.json).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
