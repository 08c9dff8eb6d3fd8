#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens on two GPUs of one host when a rank or the network between them fails, and a checkpoint of llama-1b that
goes on in another layout. NCCL without P2P and shared memory stands for a network. jobs/gpu-faults.sh runs it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/fault"), str(ROOT / "tests/e2e")]

import fault_support  # noqa: E402  pylint: disable=wrong-import-position
import support  # noqa: E402  pylint: disable=wrong-import-position
import two_hosts  # noqa: E402  pylint: disable=wrong-import-position

SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
TIMEOUT = 5
SPARE = 12  # seconds beside the limits that a job takes to start and to end
SETTINGS = ("run.device=cuda", "train.validate_every=0", "data.validation=[]", "train.steps=40", "checkpoint.every=4",
            f"run.hang_timeout_seconds={TIMEOUT}")
LAYOUTS = """\
parallel.data=2
parallel.data=2 parallel.zero=2
parallel.tensor=2 parallel.sequence=true
parallel.pipeline=2
"""


def figure(words):
    """A line of the record."""
    print(f"   {words}", file=sys.stderr, flush=True)


class LostRanks(fault_support.FaultCase):
    """A rank is stopped or killed in a step."""

    def lose(self, action, code, pattern, **environment):
        """A job whose rank 1 is lost in the forward pass, in a collective and in the optimizer."""
        network = "sockets" if environment else "P2P"
        for point in ("step.forward", "collective.call", "step.optimizer"):
            with self.subTest(point=point, network=network):
                result = self.run_job(f"{action}_{point}_{network}", *SETTINGS, fault=f"{point}#1:1:10:{action}",
                                      code=code, quick=False, **environment)
                self.assert_one_line(result, pattern)
                self.assertLess(result.seconds, 3 * TIMEOUT + SPARE)
                figure(f"{action} at {point}, {network}: code {result.code} after {result.seconds:.1f} s, start included:")
                figure(f"  {result.messages[0]}")

    def test_a_stopped_rank_is_named(self):
        for environment in ({}, SOCKETS):
            self.lose("stop", 8, r"rank 1 .*does not answer .*, last heard of (in step \d|before the first step)", **environment)

    def test_a_killed_rank_is_named(self):
        for environment in ({}, SOCKETS):
            self.lose("kill", 137, r"rank 1 .* is gone \(killed, or crashed\)", **environment)


class OverSockets(support.Case):
    """Layouts of two GPUs beside one, over sockets."""

    def test_layouts_agree_with_one_rank(self):
        (self.folder / "layouts.txt").write_text(LAYOUTS, encoding="utf-8")
        os.environ.update(SOCKETS)
        try:
            for precision in ("fp32", "bf16"):
                result = self.run_program(
                    "parity", ROOT / "inputs/parity-16h.yaml", "--matrix", "layouts.txt",
                    *support.overrides("run.device=cuda", f"precision.compute={precision}"), ranks=2, timeout=200)
                self.assertEqual(result.code, 0, result.out + result.err)
                for line in result.out.splitlines():
                    figure(f"{precision}: {line}")
        finally:
            for name in SOCKETS:
                os.environ.pop(name)


@unittest.skipUnless(two_hosts.is_allowed(), "no right to make network namespaces with a link, or no ip (iproute2)")
class TwoHosts(two_hosts.Hosts):
    """A GPU in each of two network namespaces; MPI and the watchdog have one link, NCCL another."""

    slots = 1
    links = ("link0", "link1")
    settings = SETTINGS
    exports = tuple(f"export CUDA_VISIBLE_DEVICES={number} NCCL_HOSTID={host} NCCL_SOCKET_IFNAME=link1 "
                    + " ".join(f"{name}={value}" for name, value in SOCKETS.items())
                    for number, host in enumerate(two_hosts.HOSTS))

    def reported(self, what, code, messages, seconds):
        """Lines of the record."""
        figure(f"{what}: code {code} after {seconds:.1f} s, nothing left on either host after {self.gone:.1f} s:")
        figure(f"  {messages[0]}")

    def test_a_cut_link_ends_the_job(self):
        code, messages, seconds = self.end_after_cut("cut")

        self.assertRegex(messages[0], rf"rank 1 .* host {two_hosts.HOSTS[1]} does not answer")
        self.reported("all links cut", code, messages, seconds)

    def test_a_cut_link_of_nccl_alone_ends_the_job(self):
        code, messages, seconds = self.end_after_cut("cut_nccl", "link1")

        self.assertRegex(messages[0], rf"no rank got anything done for {TIMEOUT} s: .*waits? for the device")
        self.reported("the link of NCCL cut", code, messages, seconds)

    def test_a_killed_rank_of_the_other_host_is_named(self):
        process = self.start_on_both("rank", *support.ENDLESS)

        begin = time.monotonic()
        os.kill(self.processes(self.spaces[1], "hyperslab")[0], 9)
        code, messages, seconds, err = self.end_of(process, begin)

        self.assertEqual(code, 137, err)
        self.assertRegex(messages[0], rf"rank 1 .* host {two_hosts.HOSTS[1]} is gone")
        self.reported("killed rank of the other host", code, messages, seconds)


class OtherLayout(unittest.TestCase):
    """llama-1b with its optimizer, 18 GB."""

    STEPS = 8
    DECK = ("run.device=cuda", "data.train=[synthetic]", "data.validation=[]", "train.validate_every=0",
            "train.global_batch=8", "train.microbatch=2", "schedule.warmup_steps=4", f"train.steps={STEPS}",
            "checkpoint.every=4", "checkpoint.keep=2", "checkpoint.keep_every=0", "checkpoint.final=false")
    RELATIVE = 2e-3  # of the loss of a step

    def train(self, run, *settings):
        """Seconds of a run of two ranks."""
        begin = time.monotonic()
        done = subprocess.run(
            support.command("train", ROOT / "inputs/llama-1b.yaml",
                            *support.overrides(f"run.directory={run}", *self.DECK, *settings), ranks=2),
            capture_output=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr.decode("utf-8", "replace"))
        for line in re.findall(r".*checkpoint.*", done.stdout.decode("utf-8", "replace")):
            figure(line.strip())
        return time.monotonic() - begin

    def test_llama_1b_goes_on_in_another_layout(self):
        with tempfile.TemporaryDirectory(prefix="hyperslab_layout_") as folder:
            first, second = pathlib.Path(folder) / "data", pathlib.Path(folder) / "tensor"
            seconds = self.train(first, "parallel.data=2", "parallel.zero=1")
            figure(f"data 2, zero 1, {self.STEPS} steps with a save after 4: {seconds:.1f} s")
            losses = support.column(first, "loss")
            (second / "checkpoints").mkdir(parents=True)
            shutil.move(first / "checkpoints/step_00000004", second / "checkpoints")
            seconds = self.train(second, "parallel.data=1", "parallel.tensor=2", "checkpoint.every=0")
            figure(f"tensor 2, resumed after step 4: {seconds:.1f} s with loading")
            found = support.column(second, "loss")[-4:]
            figure(f"losses of data 2: {losses[-4:]}")
            figure(f"of tensor 2: {found}")
            self.assertEqual(len(losses), self.STEPS)
            for loss, expected in zip(found, losses[-4:], strict=True):
                self.assertLess(abs(loss - expected), self.RELATIVE * expected)


if __name__ == "__main__":
    support.main()
