#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/keep-running.sh: what it starts again, when it gives up, and on which hosts it goes on."""

import json
import os
import pathlib
import signal
import subprocess
import time

import support

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "keep-running.sh"

# Stands for mpirun: notes how it was called; its n-th start does what line n of plan.txt says: a code, the step that
# is finished by then, and what the watchdog says.
STAND_IN = """\
#!/bin/bash
echo "$*" >>calls.txt
read -r code step words < <(sed -n "$(wc -l <calls.txt)p" plan.txt)
mkdir -p run
for ((i = 1; i <= step; i++)); do echo "{\\"step\\": $i, \\"loss\\": 1}"; done >run/metrics.jsonl
[ -z "$words" ] || echo "$words" >&2
exit "$code"
"""
# Stays behind without a process of its own.
CHILDLESS = """\
#!/bin/bash
echo "$*" >>calls.txt
mkdir -p run
if [ "$(wc -l <calls.txt)" = 1 ]; then exec -a mpirun tail -f /dev/null; fi
"""
# Stands for hyperslab: knows its deck alone.
PROGRAM = """\
#!/bin/bash
printf 'run:\\n  directory: run\\nparallel:\\n  data: 1\\n'
"""
# The same as ssh: `down` does not answer.
AGENT = """\
#!/bin/bash
[ "$1" != down ]
"""
BATCH = ("train.global_batch=24", "train.validate_every=0", "data.validation=[]")


def gone(rank, host):
    """What the program says of a rank that died."""
    return f"hyperslab: rank {rank} (data {rank}, tensor 0, pipeline 0) host {host} is gone (killed, or crashed), last heard of"


class KeepRunning(support.Case):
    """The script beside the real program or beside a stand-in for mpirun."""

    def setUp(self):
        for name in ("calls.txt", "run/restarts.jsonl", "run/metrics.jsonl"):
            (self.folder / name).unlink(missing_ok=True)
        self.script("stand-in", STAND_IN)
        self.script("agent", AGENT)

    def script(self, name, text):
        """A script in the test's folder."""
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def keep(self, *words, **environment):
        """Starts the script."""
        process = subprocess.Popen([SCRIPT, *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **support.QUICK_END, **environment})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def play(self, plan, *options, launcher=("-np", "4"), settings=("parallel.data=4",), **environment):
        """Code and standard error with a stand-in that does as planned."""
        (self.folder / "plan.txt").write_text("".join(f"{line}\n" for line in plan))
        process = self.keep("--delay", 0, *options, "./stand-in", *launcher, support.command()[0], "train", "deck.yaml",
                            *support.overrides(*settings, *BATCH), **environment)
        _, err = process.communicate(timeout=30)
        return process.returncode, err

    def calls(self):
        """Command lines of the stand-in."""
        return (self.folder / "calls.txt").read_text().splitlines()

    def restarts(self, run="run"):
        """Lines of restarts.jsonl."""
        path = self.folder / run / "restarts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def test_a_killed_rank_of_eight_costs_less_than_30_seconds(self):
        process = self.keep(*support.command("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, "checkpoint.every=20", "parallel.data=8", "train.global_batch=16", "run.directory=eight"),
            "--resume", "never", ranks=8))
        metrics = self.folder / "eight/metrics.jsonl"

        def steps():
            return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

        # Steps go on beside the save of step 20, so that any number of them may come before it is complete.
        self.assertTrue(support.wait_until((self.folder / "eight/checkpoints/latest").exists, 120))
        ranks = subprocess.run(["pgrep", "-f", "run.directory=eight --resume never$"], capture_output=True, check=True, text=True)
        before = steps()
        victim = max(int(number) for number in ranks.stdout.split()
                     if pathlib.Path(f"/proc/{number}/exe").resolve().name == "hyperslab")
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        start = metrics.stat().st_ino, len(self.restarts("eight"))
        self.assertTrue(support.wait_until(lambda: len(self.restarts("eight")) == start[1] + 1, 30))
        line = self.restarts("eight")[0]
        resumed = line["checkpoint"]
        started = self.folder / "eight/timing/start_0002"
        self.assertTrue(support.wait_until(started.exists, 30))
        self.assertTrue(support.wait_until(lambda: steps() > resumed, 30))
        seconds = time.monotonic() - begin
        print(f"from kill -9 of one of 8 ranks to the next finished step: {seconds:.1f} s", flush=True)
        self.assertLess(seconds, 30)
        self.assertTrue(support.wait_until(lambda: steps() > before + 5, 30))

        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)

        self.assertEqual(process.returncode, 75, err)
        self.assertEqual((line["code"], line["attempt"], line["ranks"], line["left_out"]), (137, 1, 8, []))
        self.assertGreater(resumed, 0)
        self.assertEqual(len(self.restarts("eight")), 1, err)
        found = support.column(self.folder / "eight", "step")
        self.assertEqual(found, list(range(1, len(found) + 1)))

    def test_codes_that_no_start_mends_end_it(self):
        for code in (2, 3, 4, 7):
            with self.subTest(code=code):
                self.setUp()
                found, err = self.play([f"{code} 5", "0 9"])
                self.assertEqual(found, code, err)
                self.assertEqual(len(self.calls()), 1)
                self.assertIn("gave up", err)

    def test_the_real_program_s_bad_deck_ends_it(self):
        process = self.keep(*support.command("train", "deck.yaml", *support.overrides("model.heeds=2"), ranks=2))
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 2)
        self.assertIn("model.heeds", err)

    def test_progress_keeps_it_going(self):
        plan = [f"{code} {step}" for step, code in enumerate((8, 137, 139, 134, 205, 75, 8, 5), 3)]
        found, err = self.play([*plan, "0 20"])
        self.assertEqual(found, 0, err)
        lines = self.restarts()
        self.assertEqual([line["code"] for line in lines], [8, 137, 139, 134, 205, 75, 8, 5])
        self.assertEqual([line["step"] for line in lines], list(range(3, 11)))
        self.assertEqual([line["attempt"] for line in lines], list(range(1, 9)))
        self.assertIn("--resume auto", self.calls()[1])

    def test_the_same_step_thrice_ends_it(self):
        found, err = self.play(["137 4", "137 7", "8 7", "137 6", "0 9"])
        self.assertEqual(found, 137, err)
        self.assertEqual(len(self.calls()), 4)
        self.assertIn("3 failures, and none got further", err)

    def test_an_environment_that_is_wrong_gets_one_more_start(self):
        for code in (1, 6):
            with self.subTest(code=code):
                self.setUp()
                found, _ = self.play([f"{code} 4", f"{code} 4", "0 9"])
                self.assertEqual((found, len(self.calls())), (code, 2))

    def test_it_waits_longer_the_more_often_it_fails(self):
        self.play(["137 4", "137 4", "137 4"], "--delay", "1")
        self.assertEqual([line["delay_seconds"] for line in self.restarts()], [1, 2])

    def test_a_launcher_that_stays_behind_without_a_process_is_ended(self):
        self.script("stand-in", CHILDLESS)
        process = self.keep("--delay", 0, "--silent", 1, "./stand-in", support.command()[0], "train", "deck.yaml")

        _, err = process.communicate(timeout=30)

        self.assertEqual((process.returncode, len(self.calls())), (0, 2), err)
        self.assertIn("./stand-in has had no process for 1 s, and is ended", err)
        self.assertEqual([line["code"] for line in self.restarts()], [137])

    def test_a_limit_of_restarts(self):
        found, err = self.play([f"137 {step}" for step in range(1, 9)], "--most", "2")
        self.assertEqual((found, len(self.calls())), (137, 3))
        self.assertIn("--most 2", err)

    def test_the_end_of_the_time_is_no_reason_to_start_again(self):
        line = "stopping after step 5 since 10 s of run.walltime_minutes are left"
        self.assertEqual(self.play([f"75 5 {line}", "0 9"])[0], 75)
        self.setUp()
        self.assertEqual(self.play(["75 5", "0 9"], SLURM_JOB_ID="12")[0], 75)
        self.assertEqual(len(self.calls()), 1)

    def test_a_host_that_was_named_twice_is_left_out(self):
        launcher = ("-np", "8", "--mca", "plm_rsh_agent", "./agent", "--host", "a:2,b:2,c:2,d:2")
        found, err = self.play([f"137 4 {gone(3, 'b')}", f"8 5 {gone(3, 'b')}; ranks 0-2 wait", "0 9"],
                               launcher=launcher, settings=("parallel.data=8",))
        self.assertEqual(found, 0, err)
        first, second, third = self.calls()
        self.assertIn("--host a:2,b:2,c:2,d:2", first)
        self.assertIn("-np 8 ", second)
        self.assertIn("-np 6 ", third)
        self.assertIn("--host a:2,c:2,d:2", third)
        self.assertIn("--set parallel.data=6", third)  # 24 samples divide by 6
        self.assertEqual([line["left_out"] for line in self.restarts()], [[], ["b"]])
        self.assertEqual(self.restarts()[1]["ranks"], 6)

    def test_a_host_that_does_not_answer_is_left_out_at_once(self):
        (self.folder / "hosts").write_text("a slots=2\n# none\ndown slots=2 max_slots=4\nc slots=2\n")
        launcher = ("-np", "6", "--hostfile", "hosts")
        words = gone(3, "down.cluster.org").replace("is gone (killed, or crashed)", "does not answer (stopped)")
        found, err = self.play([f"8 4 {words}", "0 9"], launcher=launcher, OMPI_MCA_plm_rsh_agent="./agent",
                               settings=("parallel.data=3", "parallel.tensor=2"))
        self.assertEqual(found, 0, err)
        self.assertIn("-np 4 --hostfile /", self.calls()[1])
        self.assertIn("--set parallel.data=2", self.calls()[1])
        self.assertEqual(self.restarts()[0]["left_out"], ["down"])

    def test_fewer_data_ranks_are_those_that_the_deck_allows(self):
        launcher = ("-np", "8", "--host", "a:1,down:1,b:6")
        found, err = self.play([f"137 4 {gone(1, 'down')}", "0 9"], launcher=launcher, settings=("parallel.data=8",),
                               OMPI_MCA_plm_rsh_agent="./agent")
        self.assertEqual(found, 0, err)
        self.assertIn("-np 6 ", self.calls()[1])  # 7 do not divide 24

    def test_in_a_job_of_slurm_the_rest_of_its_nodes_goes_on(self):
        (self.folder / "bin").mkdir(exist_ok=True)
        self.script("bin/srun", STAND_IN)
        self.script("bin/scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\nn3\\n'\n")
        self.script("bin/sinfo", '#!/bin/bash\n[ "$3" = n2 ] && echo "down*" || echo allocated\n')
        (self.folder / "plan.txt").write_text(f"8 4 {gone(3, 'n2')}\n0 9\n")
        process = self.keep("--delay", 0, "srun", "--mpi=pmix", support.command()[0], "train", "deck.yaml",
                            *support.overrides("parallel.data=6", *BATCH),
                            PATH=f"{self.folder}/bin:{os.environ['PATH']}", SLURM_JOB_ID="12", SLURM_JOB_NODELIST="n[1-3]",
                            SLURM_JOB_NUM_NODES="3")
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        for words in ("--ntasks 4 ", "--nodes 2 ", "--exclude n2 ", "--set parallel.data=4"):
            self.assertIn(words, self.calls()[1])

    def test_a_signal_ends_the_pause_before_a_restart(self):
        (self.folder / "plan.txt").write_text("137 4\n")
        process = self.keep("--delay", 60, "./stand-in", support.command()[0], "train", "deck.yaml")
        self.assertTrue(support.wait_until(self.restarts, 20))
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=5), 75)
        self.assertEqual(len(self.calls()), 1)

    def test_a_signal_ends_it_with_75(self):
        (self.folder / "stand-in").write_text("#!/bin/bash\ntrap 'exit 75' USR1\necho >calls.txt\nsleep 20 >/dev/null 2>&1 & wait\n")
        process = self.keep("./stand-in", "-np", 2, support.command()[0], "train", "deck.yaml",
                            *support.overrides("parallel.data=2"))
        self.assertTrue(support.wait_until((self.folder / "calls.txt").exists, 20))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=10), 75)
        self.assertEqual(self.restarts(), [])

    def keep_fake(self, *options, **environment):
        """Starts the script with a stand-in for the program, too; its scratch folders lie in `scratch`."""
        self.script("program", PROGRAM)
        (self.folder / "scratch").mkdir(exist_ok=True)
        return self.keep("--delay", 0, *options, "./stand-in", "./program", "train", "deck.yaml",
                         TMPDIR=str(self.folder / "scratch"), **environment)

    def test_a_command_that_ends_at_once_ends_it_with_its_code(self):
        for code in (137, 75, 143):
            self.script("stand-in", f"#!/bin/sh\necho >>calls.txt\nexit {code}\n")
            for turn in range(6):
                with self.subTest(code=code, turn=turn):
                    (self.folder / "calls.txt").unlink(missing_ok=True)
                    process = self.keep_fake()
                    _, err = process.communicate(timeout=60)
                    self.assertEqual((process.returncode, len(self.calls())), (code, 3), err)
                    self.assertIn("3 failures, and none got further", err)
                    self.assertNotIn("No such file", err)
        self.assertEqual(list((self.folder / "scratch").iterdir()), [])

    def hang_up(self, **popen):
        """The script's process, whose terminal was closed while its command ran."""
        self.script("stand-in", "#!/bin/bash\ntrap 'exit 75' USR1\ntrap 'exit 1' HUP\necho >>calls.txt\n"
                                "sleep 3 >/dev/null 2>&1 & wait $!\n")
        self.script("program", PROGRAM)
        process = subprocess.Popen([SCRIPT, "./stand-in", "./program", "train", "deck.yaml"], cwd=self.folder,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True, **popen)
        self.addCleanup(process.kill)
        self.assertTrue(support.wait_until((self.folder / "calls.txt").exists, 20))
        os.killpg(process.pid, signal.SIGHUP)
        return process

    def test_a_terminal_that_closes_asks_the_run_to_save(self):
        self.assertEqual(self.hang_up().wait(timeout=20), 75)
        self.assertEqual(self.restarts(), [])

    def test_under_nohup_the_run_goes_on(self):
        process = self.hang_up(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual(process.wait(timeout=20), 0)
        self.assertEqual((len(self.calls()), self.restarts()), (1, []))

    def test_what_a_killed_script_left_is_removed_by_the_next(self):
        self.script("stand-in", "#!/bin/bash\necho >>calls.txt\nsleep 1\n")
        process = self.keep_fake()
        self.assertTrue(support.wait_until((self.folder / "calls.txt").exists, 20))
        process.kill()
        process.wait(timeout=10)
        self.assertEqual(len(list((self.folder / "scratch").iterdir())), 1)
        self.script("stand-in", "#!/bin/sh\nexit 0\n")
        second = self.keep_fake()
        second.communicate(timeout=20)
        self.assertEqual(second.returncode, 0)
        self.assertEqual(list((self.folder / "scratch").iterdir()), [])

    def test_a_command_without_the_program_is_refused(self):
        process = self.keep("mpirun", "-np", "2", "true")
        _, err = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 2)
        self.assertIn("hyperslab train DECK", err)


if __name__ == "__main__":
    support.main()
