#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces as hosts of two ranks each: they train, and a link that is cut, slow or losing packets or a
host that dies ends the job in 15 s with the host named. Skipped (exit code 77) where namespaces are not allowed."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import fault_support
import support

TIMEOUT = 4
LIMIT = 15  # seconds
NETWORK = "10.213.7"
LAUNCHERS = ("mpirun", "mpiexec")  # names of one program
HOSTS = ("hslab-a", "hslab-b")
PLAIN = (*fault_support.PLAIN, "parallel.data=4", f"run.hang_timeout_seconds={TIMEOUT}", "model.layers=1")

AGENT = """#!/bin/sh
shift
exec ip netns exec {space} unshare -u sh -c "hostname {host}; $*"
"""


def ip(*words, check=True):
    """Runs ip."""
    return subprocess.run(["ip", *words], capture_output=True, check=check)


class TwoHosts(support.Case):
    """mpirun runs on the first host."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.spaces = [f"{host}-{os.getpid()}" for host in HOSTS]
        agent = cls.folder / "agent"
        agent.write_text(AGENT.format(space=cls.spaces[1], host=HOSTS[1]), encoding="utf-8")
        agent.chmod(0o755)
        for space in cls.spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")

    @classmethod
    def tearDownClass(cls):
        for space in cls.spaces:
            ip("netns", "del", space, check=False)
        super().tearDownClass()

    def setUp(self):
        self.stopped = []
        ip("-n", self.spaces[0], "link", "add", "link0", "type", "veth", "peer", "name", "link0",
           "netns", self.spaces[1])
        for number, space in enumerate(self.spaces, 1):
            ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "link0")
            ip("-n", space, "link", "set", "link0", "up")

    def tearDown(self):
        for space in self.spaces:
            for process in self.processes(space):
                os.kill(process, signal.SIGKILL)
        ip("-n", self.spaces[0], "link", "del", "link0", check=False)

    def processes(self, space, name=""):
        """Those in a namespace, with this name."""
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, check=False).stdout.split()
        named = []
        for process in map(int, found):
            try:
                comm = pathlib.Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if name in ("", comm) and fault_support.is_alive(process):
                named.append(process)
        return named

    def start_on_both(self, run, *settings, lines=10):
        """Starts a job on both hosts, and waits until it has done some steps."""
        mpirun, _, _, program, *rest = support.command(
            "train", "deck.yaml", *support.overrides(f"run.directory={run}", *PLAIN, *settings), ranks=4)
        network = f"{NETWORK}.0/24"
        words = ["exec", mpirun, "--mca", "mpi_yield_when_idle", "1", "--mca", "plm_rsh_agent",
                 str(self.folder / "agent"), "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", network,
                 "--mca", "oob_tcp_if_include", network,
                 "--host", f"{NETWORK}.1:2,{NETWORK}.2:2", "-np", "4", "-x", "OMP_NUM_THREADS", program, *rest]
        quoted = " ".join(f"'{word}'" if word != "exec" else word for word in words)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.spaces[0], "unshare", "-u", "sh", "-c", f"hostname {HOSTS[0]}; {quoted}"],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ))
        path = self.folder / run / "metrics.jsonl"
        begun = lines == 0 or support.wait_until(
            lambda: path.exists() and path.read_bytes().count(b"\n") >= lines, 40)
        if not begun:
            process.kill()
        self.assertTrue(begun, begun or process.communicate()[1].decode())
        return process

    def end_of(self, process, begin):
        """Exit code, messages and seconds; nothing is left on either host."""
        ended = support.wait_until(lambda: process.poll() is not None, LIMIT + 15)
        seconds = time.monotonic() - begin
        if not ended:
            process.kill()
        for shell in self.stopped:
            os.kill(shell, signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT)
        self.assertTrue(ended, err.decode())
        left = [name for space in self.spaces for name in ("hyperslab", *LAUNCHERS, "orted")
                if not support.wait_until(lambda s=space, n=name: not self.processes(s, n), LIMIT - seconds)]
        err = err.decode("utf-8", "replace")
        self.assertEqual(left, [], err)
        return process.returncode, [line for line in err.splitlines() if line.startswith("hyperslab: ")], seconds, err

    def cut(self):
        """No packet comes through from now on."""
        ip("-n", self.spaces[1], "link", "set", "link0", "down")

    def test_trains_to_the_bits_of_one_host(self):
        settings = ("train.steps=8", "checkpoint.every=8")
        code, messages, _, err = self.end_of(self.start_on_both("both", *settings, lines=0), time.monotonic())
        self.assertEqual((code, messages), (0, []), err)
        self.train("alone", *PLAIN[:-2], *settings, "model.layers=1", ranks=4)

        self.assertEqual(support.column(self.folder / "both", "loss"), support.column(self.folder / "alone", "loss"))

    def test_a_cut_link_ends_the_job(self):
        process = self.start_on_both("cut", *support.ENDLESS)

        self.cut()
        code, messages, seconds, err = self.end_of(process, time.monotonic())

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, LIMIT, err)
        silent = rf".* host {HOSTS[1]} does not answer"
        self.assertRegex(messages[0], rf"no rank got anything done for {TIMEOUT} s: rank 2 {silent}.*rank 3 {silent}")

    def test_a_link_that_is_cut_before_the_first_step_ends_the_job(self):
        os.environ["HYPERSLAB_FAULT"] = "start.records:0:*:delay_3"
        self.addCleanup(os.environ.pop, "HYPERSLAB_FAULT")
        process = self.start_on_both("early", *support.ENDLESS, lines=0)
        self.assertTrue(support.wait_until(lambda: (self.folder / "early/lock").exists(), 20))

        self.cut()
        code, messages, seconds, err = self.end_of(process, time.monotonic())

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, 3 + 3 * TIMEOUT + 10, err)
        self.assertRegex(messages[0], rf"host {HOSTS[1]} does not answer")

    def test_a_link_that_comes_back_in_time_ends_nothing(self):
        process = self.start_on_both("back", *support.ENDLESS)

        self.cut()
        time.sleep(1)
        ip("-n", self.spaces[1], "link", "set", "link0", "up")
        path = self.folder / "back/metrics.jsonl"
        done = path.read_bytes().count(b"\n")
        self.assertTrue(support.wait_until(lambda: path.read_bytes().count(b"\n") > done + 20, 20))
        # A signal that was lost with the link comes again; an mpirun whose ranks have ended would die of it.
        saved = self.folder / "back/checkpoints/latest"
        for _ in range(5):
            for name in LAUNCHERS:
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
        self.assertLess(seconds, LIMIT, err)
        self.assertIn(f"host {HOSTS[1]} ", messages[0])

    def test_a_killed_rank_of_the_other_host_is_named(self):
        process = self.start_on_both("rank", *support.ENDLESS)

        begin = time.monotonic()
        os.kill(self.processes(self.spaces[1], "hyperslab")[0], signal.SIGKILL)
        code, messages, seconds, err = self.end_of(process, begin)

        self.assertEqual(code, 137, err)
        self.assertLess(seconds, LIMIT, err)
        self.assertRegex(messages[0], rf"rank [23] .* host {HOSTS[1]} is gone")

    def test_a_killed_daemon_of_the_other_host_ends_the_job(self):
        process = self.start_on_both("daemon", *support.ENDLESS)

        begin = time.monotonic()
        os.kill(self.processes(self.spaces[1], "orted")[0], signal.SIGKILL)
        code, _, seconds, err = self.end_of(process, begin)

        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, LIMIT, err)


def is_allowed():
    """Whether this user may make a network namespace with a link."""
    space = f"hslab-probe-{os.getpid()}"
    try:
        made = ip("netns", "add", space, check=False).returncode == 0
        linked = made and ip("-n", space, "link", "add", "link0", "type", "veth", "peer", "name", "link1",
                             check=False).returncode == 0
        ip("netns", "del", space, check=False)
    except OSError:
        return False
    return linked


if __name__ == "__main__":
    if not is_allowed():
        print("no right to make network namespaces, or no ip (iproute2)")
        sys.exit(77)
    support.main()
