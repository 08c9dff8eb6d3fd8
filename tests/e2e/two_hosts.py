# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces as hosts, for tests of what crosses the link between them, and of a link or a host that fails."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import support

TIMEOUT = 4
LIMIT = 15  # seconds
NETWORKS = ("10.213.7", "10.213.8")
LAUNCHERS = ("mpirun", "mpiexec")  # names of one program
HOSTS = ("hslab-a", "hslab-b")

AGENT = """#!/bin/sh
shift
exec ip netns exec {space} unshare -u sh -c "hostname {host}; {exports}; $*"
"""


def ip(*words, check=True):
    """Runs ip."""
    return subprocess.run(["ip", *words], capture_output=True, check=check)


def make_link(name, spaces):
    """An interface of this name in both namespaces; the process that joins them where the kernel has no veth."""
    made = ip("-n", spaces[0], "link", "add", name, "type", "veth", "peer", "name", name, "netns", spaces[1], check=False)
    if made.returncode == 0:
        return None
    script = pathlib.Path(__file__).with_name("tap_link.py")
    joiner = subprocess.Popen([sys.executable, str(script), name, *spaces], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
    if joiner.stdout.readline() != b"ready\n":
        joiner.communicate()
        raise OSError("the kernel has neither veth nor taps")
    return joiner


def remove_link(name, space, joiner):
    """What make_link made."""
    if joiner is None:
        ip("-n", space, "link", "del", name, check=False)
    else:
        joiner.communicate()


class Hosts(support.Case):
    """mpirun runs on the first host."""

    slots = 2  # ranks of a host
    links = ("link0",)  # MPI takes the first
    settings = (*support.PLAIN, f"run.hang_timeout_seconds={TIMEOUT}", "model.layers=1")
    limit = LIMIT  # seconds after which nothing of a job is left
    exports = ("true", "true")  # a shell command before those of each host

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.spaces = [f"{host}-{os.getpid()}" for host in HOSTS]
        agent = cls.folder / "agent"
        agent.write_text(AGENT.format(space=cls.spaces[1], host=HOSTS[1],
                                      exports=cls.exports[1]), encoding="utf-8")
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
        self.gone = None
        self.joiners = [make_link(link, self.spaces) for link in self.links]
        for number, space in enumerate(self.spaces, 1):
            for link, network in zip(self.links, NETWORKS):
                ip("-n", space, "addr", "add", f"{network}.{number}/24", "dev", link)
                ip("-n", space, "link", "set", link, "up")

    def tearDown(self):
        for space in self.spaces:
            for process in self.processes(space):
                os.kill(process, signal.SIGKILL)
        for link, joiner in zip(self.links, self.joiners):
            remove_link(link, self.spaces[0], joiner)

    def processes(self, space, name=""):
        """Those in a namespace, with this name."""
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, check=False).stdout.split()
        named = []
        for process in map(int, found):
            try:
                comm = pathlib.Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if name in ("", comm) and support.alive(process):
                named.append(process)
        return named

    def start_on_both(self, run, *settings, lines=10, options=()):
        """Starts a job on both hosts, and waits until it has done some steps; `options` are those of mpirun."""
        ranks = 2 * self.slots
        mpirun, _, _, program, *rest = support.command(
            "train", "deck.yaml", *support.overrides(
                f"run.directory={run}", *self.settings, f"parallel.data={ranks}", *settings), ranks=ranks)
        network = f"{NETWORKS[0]}.0/24"
        words = ["exec", mpirun, "--mca", "mpi_yield_when_idle", "1", "--mca", "plm", "rsh", "--mca", "plm_rsh_agent",
                 str(self.folder / "agent"), "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", network,
                 "--mca", "oob_tcp_if_include", network,
                 "--host", f"{NETWORKS[0]}.1:{self.slots},{NETWORKS[0]}.2:{self.slots}", "-np", str(ranks), *options,
                 "-x", "OMP_NUM_THREADS", program, *rest]
        quoted = " ".join(f"'{word}'" if word != "exec" else word for word in words)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.spaces[0], "unshare", "-u", "sh", "-c", f"hostname {HOSTS[0]}; {self.exports[0]}; {quoted}"],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ))
        path = self.folder / run / "metrics.jsonl"

        def has_begun():
            return lines == 0 or (path.exists() and path.read_bytes().count(b"\n") >= lines)

        support.wait_until(lambda: has_begun() or process.poll() is not None, 40)
        begun = has_begun()
        if not begun:
            process.kill()
        self.assertTrue(begun, begun or process.communicate()[1].decode())
        return process

    def end_of(self, process, begin):
        """Exit code, messages and seconds; nothing is left on either host, after the seconds in `gone`."""
        ended = support.wait_until(lambda: process.poll() is not None, self.limit + 15)
        seconds = time.monotonic() - begin
        if not ended:
            process.kill()
        for shell in self.stopped:
            os.kill(shell, signal.SIGKILL)
        _, err = process.communicate(timeout=LIMIT)
        self.assertTrue(ended, err.decode())
        left = [name for space in self.spaces for name in ("hyperslab", *LAUNCHERS, "orted")
                if not support.wait_until(lambda s=space, n=name: not self.processes(s, n), self.limit - seconds)]
        self.gone = time.monotonic() - begin
        err = err.decode("utf-8", "replace")
        self.assertEqual(left, [], err)
        return process.returncode, [line for line in err.splitlines() if line.startswith("hyperslab: ")], seconds, err

    def end_after_cut(self, run, *links):
        """Exit code, messages and seconds of a job whose links are cut while it trains; no name: all of them."""
        process = self.start_on_both(run, *support.ENDLESS)
        self.cut(*links)
        code, messages, seconds, err = self.end_of(process, time.monotonic())
        self.assertNotEqual(code, 0, err)
        self.assertLess(seconds, LIMIT, err)
        return code, messages, seconds

    def cut(self, *links):
        """No packet comes through these from now on; no name: through any."""
        for link in links or self.links:
            ip("-n", self.spaces[1], "link", "set", link, "down")


def is_allowed():
    """Whether this user may make two network namespaces with a link."""
    spaces = [f"hslab-probe-{host}-{os.getpid()}" for host in "ab"]
    try:
        for space in spaces:
            ip("netns", "add", space)
        remove_link("link0", spaces[0], make_link("link0", spaces))
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        for space in spaces:
            with contextlib.suppress(OSError):
                ip("netns", "del", space, check=False)
    return True
