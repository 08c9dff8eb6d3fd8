# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of several nodes on this host alone, from Debian's slurm-wlm; it needs root."""

import os
import pathlib
import pwd
import re
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")

# Two partitions over all nodes: jobs of `urgent` put jobs of `normal` back into the queue, which have 30 s to save.
CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs={cpus} RealMemory=2000
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 MaxTime=INFINITE
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
"""


def missing():
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {', '.join(absent)}: apt install slurm-wlm" if absent else ""


def free_ports(count):
    """Ports in a row that nothing listens on now."""
    for first in range(17800, 60000, 50):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise RuntimeError("no free ports")


class Cluster:
    """Daemons in a folder of their own, for the time of a with statement."""

    def __init__(self, folder, nodes=2, cpus=2):
        self.folder = pathlib.Path(folder)
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.cpus = cpus
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        self.folder.chmod(0o755)
        for name in ("state", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            (self.folder / name).mkdir()
        port = free_ports(1 + len(self.nodes))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=socket.gethostname().split(".")[0], folder=self.folder, port=port, first_port=port + 1,
            last_port=port + len(self.nodes), last=len(self.nodes) - 1, cpus=self.cpus))
        try:
            self._start_munge()
            self._run("slurmctld")
            for node in self.nodes:
                self._run("slurmd", "-N", node)
            self._await_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(["scancel", "--user=root"], env=self.environment, check=False, capture_output=True, timeout=30)
        self.wait_until(lambda: not self.queue(), 40)
        for file in (*self.folder.glob("slurmd-*.pid"), self.folder / "slurmctld.pid", self.folder / "munge" / "pid"):
            self._end(file)

    def _end(self, pid_file):
        """Ends a daemon and waits for it."""
        try:
            process = int(pid_file.read_text())
            os.kill(process, 15)
        except (OSError, ValueError):
            return
        self.wait_until(lambda: not pathlib.Path(f"/proc/{process}").exists(), 20)

    def _run(self, *words):
        subprocess.run(words, env=self.environment, check=True, capture_output=True, timeout=30)

    def _start_munge(self):
        user = pwd.getpwnam("munge")
        home = self.folder / "munge"
        home.mkdir()
        (home / "key").write_bytes(os.urandom(128))
        (home / "key").chmod(0o400)
        for path in (home, home / "key"):
            os.chown(path, user.pw_uid, user.pw_gid)
        subprocess.run(["munged", f"--key-file={home}/key", f"--socket={home}/socket", f"--pid-file={home}/pid",
                        f"--log-file={home}/log", f"--seed-file={home}/seed"],
                       user=user.pw_uid, group=user.pw_gid, check=True, timeout=30)

    def _await_nodes(self):
        def idle():
            found = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T", "--partition=normal")
            return sorted(found.splitlines()) == [f"{node} idle" for node in self.nodes]
        if not self.wait_until(idle, 30):
            raise RuntimeError(f"nodes are not idle:\n{self.ask('sinfo')}")

    def ask(self, *words):
        """What a command of Slurm prints."""
        return subprocess.run(words, env=self.environment, check=False, capture_output=True, text=True,
                              timeout=60).stdout

    def queue(self):
        """Lines "JOB STATE" of what waits or runs."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i %T").split("\n")[:-1]

    def submit(self, *words, **options):
        """Hands a script to sbatch; returns the job's number."""
        done = subprocess.run(["sbatch", "--parsable", *map(str, words)], env=self.environment, check=True,
                              capture_output=True, text=True, timeout=60, **options)
        return done.stdout.strip()

    def job(self, number):
        """Key -> value of `scontrol show job`; an ended job is known for some minutes."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", number, "--oneliner")))

    def state(self, number):
        """JobState of a job."""
        return self.job(number).get("JobState", "")

    @staticmethod
    def wait_until(condition, seconds):
        """Whether the condition came true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.2)
        return bool(condition())
