#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces as hosts of two ranks each: they train, and a link that is cut, slow or losing packets or a
host that dies ends the job in 15 s with the host named. Skipped (exit code 77) where namespaces are not allowed."""

import os
import signal
import subprocess
import sys
import time

from fault_support import support  # fault_support finds the folder of two_hosts

import two_hosts


class TwoHosts(two_hosts.Hosts):
    """Jobs of two ranks on each."""

    def test_trains_to_the_bits_of_one_host(self):
        settings = ("train.steps=8", "checkpoint.every=8")
        code, messages, _, err = self.end_of(self.start_on_both("both", *settings, lines=0), time.monotonic())
        self.assertEqual((code, messages), (0, []), err)
        self.train("alone", *self.settings, "parallel.data=4", *settings, ranks=4)

        self.assertEqual(support.column(self.folder / "both", "loss"), support.column(self.folder / "alone", "loss"))

    def test_a_cut_link_ends_the_job(self):
        _, messages, _ = self.end_after_cut("cut")

        silent = rf".* host {two_hosts.HOSTS[1]} does not answer"
        self.assertRegex(messages[0],
                         rf"no rank got anything done for {two_hosts.TIMEOUT} s: rank 2 {silent}.*rank 3 {silent}")

    def test_a_link_that_is_cut_before_the_first_step_ends_the_job(self):
        os.environ["HYPERSLAB_FAULT"] = "start.records:0:*:delay_3"
        self.addCleanup(os.environ.pop, "HYPERSLAB_FAULT")
        process = self.start_on_both("early", *support.ENDLESS, lines=0)
        self.assertTrue(support.wait_until(lambda: (self.folder / "early/lock").exists(), 20))

        self.cut()
        code, messages, seconds, err = self.end_of(process, time.monotonic())

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, 3 + 3 * two_hosts.TIMEOUT + 10, err)
        self.assertRegex(messages[0], rf"host {two_hosts.HOSTS[1]} does not answer")

    def test_a_link_that_comes_back_in_time_ends_nothing(self):
        process = self.start_on_both("back", *support.ENDLESS)

        self.cut()
        time.sleep(1)
        two_hosts.ip("-n", self.spaces[1], "link", "set", "link0", "up")
        path = self.folder / "back/metrics.jsonl"
        done = path.read_bytes().count(b"\n")
        self.assertTrue(support.wait_until(lambda: path.read_bytes().count(b"\n") > done + 20, 20))
        # A signal that was lost with the link comes again; an mpirun whose ranks have ended would die of it.
        saved = self.folder / "back/checkpoints/latest"
        for _ in range(5):
            for name in two_hosts.LAUNCHERS:
                for launcher in self.processes(self.spaces[0], name):
                    os.kill(launcher, signal.SIGUSR1)
            if support.wait_until(saved.exists, 10):
                break
        code, messages, _, err = self.end_of(process, time.monotonic())

        self.assertEqual((code, messages), (75, []), err)

    def test_a_slow_link_that_loses_packets_ends_nothing(self):
        shape = ["ip", "netns", "exec", self.spaces[1], "tc", "qdisc", "add", "dev", "link0", "root", "tbf",
                 "rate", "20mbit", "burst", "8kb", "latency", "2ms"]
        if subprocess.run(shape, capture_output=True, check=False).returncode != 0:
            self.skipTest("no tc here that can shape a link")

        process = self.start_on_both("lossy", "train.steps=30", "checkpoint.every=10")
        code, messages, _, err = self.end_of(process, time.monotonic())

        self.assertEqual((code, messages), (0, []), err)
        counted = subprocess.run([*shape[:4], "tc", "-s", "qdisc", "show", "dev", "link0"], capture_output=True,
                                 check=True)
        self.assertNotIn(b"(dropped 0,", counted.stdout)

    def test_a_host_that_dies_ends_the_job(self):
        process = self.start_on_both("dead", *support.ENDLESS)

        begin = time.monotonic()
        self.cut()
        self.stopped = self.processes(self.spaces[1], "sh")  # what would be ssh, on the first host
        for shell in self.stopped:
            os.kill(shell, signal.SIGSTOP)
        for name in ("orted", "hyperslab"):
            for found in self.processes(self.spaces[1], name):
                os.kill(found, signal.SIGKILL)
        code, messages, seconds, err = self.end_of(process, begin)

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, two_hosts.LIMIT, err)
        self.assertIn(f"host {two_hosts.HOSTS[1]} ", messages[0])

    def test_a_killed_rank_of_the_other_host_is_named(self):
        process = self.start_on_both("rank", *support.ENDLESS)

        begin = time.monotonic()
        os.kill(self.processes(self.spaces[1], "hyperslab")[0], signal.SIGKILL)
        code, messages, seconds, err = self.end_of(process, begin)

        self.assertEqual(code, 137, err)
        self.assertLess(seconds, two_hosts.LIMIT, err)
        self.assertRegex(messages[0], rf"rank [23] .* host {two_hosts.HOSTS[1]} is gone")

    def test_a_killed_daemon_of_the_other_host_ends_the_job(self):
        process = self.start_on_both("daemon", *support.ENDLESS)

        begin = time.monotonic()
        os.kill(self.processes(self.spaces[1], "orted")[0], signal.SIGKILL)
        code, _, seconds, err = self.end_of(process, begin)

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, two_hosts.LIMIT, err)


if __name__ == "__main__":
    if not two_hosts.is_allowed():
        print("no right to make network namespaces, or no ip (iproute2)")
        sys.exit(77)
    support.main()
