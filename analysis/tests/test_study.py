# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import unittest
from pathlib import Path

from analysis.errors import UserError
from analysis.study.launch import Launcher, message_of, state_of
from analysis.study.points import expand
from analysis.study.prediction import Prediction, printed_bytes, read_prediction
from analysis.study.record import point_folder
from analysis.study.runner import run_points
from analysis.study.spec import read_study
from analysis.tests.commands import run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics
from analysis.tests.study_case import FAKE, ROOT, StudyTest


class Expansion(StudyTest):
    def test_axes_multiply_and_ranks_become_data_ranks(self) -> None:
        points = self.points(set={"parallel.tensor": 2}, axes={"ranks": [2, 4], "model.context": [8, 16]},
                             base=None)

        self.assertEqual([point.name for point in points], ["ranks_2-context_8", "ranks_2-context_16",
                                                            "ranks_4-context_8", "ranks_4-context_16"])
        self.assertEqual([point.settings["parallel.data"] for point in points], [1, 1, 2, 2])
        self.assertEqual([point.ranks for point in points], [2, 2, 4, 4])
        self.assertEqual(points[1].labels, {"ranks": "2", "model.context": "16"})
        self.assertEqual(len({point.identity for point in points}), 4)

    def test_without_ranks_the_layout_says_them(self) -> None:
        points = self.points(axes={"layout": {"a": {"parallel.data": 2}, "b": {"parallel.tensor": 3}}},
                             base={"layout": "a"})

        self.assertEqual({point.name: point.ranks for point in points}, {"a": 2, "b": 3})

    def test_weak_scaling_multiplies_the_batch_of_the_deck(self) -> None:
        points = self.points(scaling="weak", axes={"ranks": [1, 4]})

        self.assertEqual([point.settings["train.global_batch"] for point in points], [4, 16])

    def test_strong_scaling_keeps_the_batch(self) -> None:
        self.assertNotIn("train.global_batch", self.points(scaling="strong")[-1].settings)

    def test_presets_patterns_and_repetitions(self) -> None:
        points = self.points(
            axes={"train.global_batch": [64, 128], "ranks": [1, 2]}, repeat=2, base=None,
            point="train_b{train.global_batch}_g{ranks}", leave_out=[{"train.global_batch": 128, "ranks": 2}])

        self.assertEqual([point.name for point in points],
                         [f"train_b{name}-r{number}" for number in (1, 2) for name in ("64_g1", "64_g2", "128_g1")])
        self.assertEqual(points[0].identity, points[3].identity)

    def test_a_file_of_layouts_is_an_axis(self) -> None:
        Path("layouts.txt").write_text("# comment\nparallel.data=2 parallel.sequence=true\nparallel.data=4\n")

        points = self.points(axes={"layout": "layouts.txt"}, base=None)

        self.assertEqual([point.name for point in points], ["data_2.sequence", "data_4"])
        self.assertIs(points[0].settings["parallel.sequence"], True)

    def test_small_replaces_and_removes(self) -> None:
        path = self.write(set={"train.steps": 100}, base=None, small={
            "set": {"train.steps": 2}, "axes": {"ranks": None, "model.context": [4]}})
        points = expand(read_study(path, small=True), str(path))

        self.assertEqual([point.name for point in points], ["context_4"])
        self.assertEqual(points[0].settings["train.steps"], 2)

    def test_overrides_win_over_what_the_study_sets(self) -> None:
        path = self.write(set={"train.steps": 100})

        study = read_study(path, overrides=["train.steps=5", "data.train=[a.bin, b.bin]"])

        self.assertEqual(study.settings["train.steps"], 5)
        self.assertEqual(study.settings["data.train"], ["a.bin", "b.bin"])
        self.assertEqual(study.content["set"]["train.steps"], 5)
        for override, says in (("steps", "expected KEY=VALUE"), ("nodes=1", "`nodes` is no setting"),
                               ("train.steps=[1", "is no value of YAML")):
            with self.assertRaisesRegex(UserError, says):
                read_study(path, overrides=[override])

    def refused(self, says: str, small: bool = False, **changes: object) -> None:
        path = self.write(**changes)
        with self.assertRaises(UserError) as caught:
            expand(read_study(path, small), str(path))
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_an_axis_takes_other_values_or_some_of_its_presets(self) -> None:
        path = self.write(axes={"ranks": [1, 2, 4], "size": {"a, b": {"model.context": 8}, "c": {"model.context": 16}}})

        study = read_study(path, values=["ranks=[1,2]", 'size=["a, b"]'])

        self.assertEqual([point.name for point in expand(study, "")], ["ranks_1-a_b", "ranks_2-a_b"])
        self.assertEqual(study.content["axes"], {"ranks": [1, 2], "size": {"a, b": {"model.context": 8}}})
        for words, reported in (("size=[d]", "has no value `d`; it has a, b, c"), ("depth=[1]", "`depth` is no axis"),
                                ("ranks=2", "expected AXIS=[VALUE,...]")):
            with self.assertRaisesRegex(UserError, re.escape(reported)):
                read_study(path, values=[words])

    def test_what_a_study_must_not_say(self) -> None:
        for says, changes in (
                ("unknown key `axis`", {"axis": {}}),
                ("there is no column `speed`", {"tables": [{"columns": ["speed"]}]}),
                ("unknown key `rows`", {"tables": [{"columns": ["mfu"], "rows": 1}]}),
                ("`nodes` is no setting", {"axes": {"nodes": [1]}, "base": None}),
                ("`width` is no axis", {"base": {"width": 1}}),
                ("axis ranks has no value `3`", {"base": {"ranks": 3}}),
                ("a value stands twice", {"axes": {"ranks": [1, 1]}}),
                ("has no value", {"axes": {"ranks": []}}),
                ("kind is `pie`", {"plots": [{"kind": "pie"}]}),
                ("two plots are called `lines`", {"plots": [{"x": "ranks", "y": ["mfu"]}] * 2}),
                ("scaling is `both`", {"scaling": "both"}),
                ("`tables` is missing", {"tables": None}),
                ("`deck` is missing", {"deck": None}),
                ("deck.yml does not exist", {"deck": "deck.yml"}),
                ("command is `generate`", {"command": "generate"}),
                ("`warmup` is no option of train", {"command": "train", "set": {"warmup": 1}}),
                ("3 ranks are no multiple of the 2", {"set": {"parallel.tensor": 2}, "axes": {"ranks": [3]},
                                                      "base": None}),
                ("both set model.context", {"axes": {"model.context": [1], "size": {"a": {"model.context": 2}}},
                                            "base": None}),
                ("two points are called `a`", {"point": "a"}),
                ("`{size}` is neither", {"point": "a{size}"}),
                ("leaves no point", {"leave_out": [{"ranks": each} for each in (1, 2)]}),
                ("repeat is `0`", {"repeat": 0}),
                ("name is `a/b`", {"name": "a/b"})):
            with self.subTest(says):
                self.refused(says, **changes)
        self.refused("no section `small`", small=True)

    def test_yaml_that_cannot_be_read(self) -> None:
        for text, says in (("a: [1\n", "study.yaml:2:1"), ("a: 1\na: 2\n", "`a` is given twice"),
                           ("- 1\n", "expected keys with values")):
            Path("study.yaml").write_text(text, encoding="utf-8")
            code, out, err = self.run_study()
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, r"\Astudy.py: [^\n]+\n\Z")
            self.assertIn(says, err)

    def test_every_study_of_the_repository_expands_in_both_sizes(self) -> None:
        os.chdir(ROOT)
        paths = sorted(Path("inputs/studies").glob("*.yaml"))
        self.assertGreaterEqual(len(paths), 12)
        for path in paths:
            for small in (False, True):
                with self.subTest(str(path), small=small):
                    self.assertGreater(len(expand(read_study(path, small), str(path))), 1)
                    self.assertEqual(read_study(path).name, path.stem)

    def test_the_documents_count_the_points_of_every_study(self) -> None:
        os.chdir(ROOT)
        reported: dict[str, tuple[int, int]] = {}
        for line in Path("docs/studies.md").read_text(encoding="utf-8").splitlines():
            names = re.findall(r"`(\w+)\.yaml`", line.split("|")[1]) if line.startswith("| `") else []
            counts = [[int(number) for number in cell.split(",")] for cell in line.split("|")[3:5]] if names else []
            for index, name in enumerate(names):
                reported[name] = (counts[0][index % len(counts[0])], counts[1][index % len(counts[1])])
        paths = sorted(Path("inputs/studies").glob("*.yaml"))
        found = {path.stem: tuple(len(expand(read_study(path, small), str(path))) for small in (False, True))
                 for path in paths}

        self.assertEqual(reported, found)


class Running(StudyTest):
    def test_goes_on_where_it_stopped(self) -> None:
        self.write(axes={"ranks": [1, 2, 4]})
        self.assertEqual(self.run_study("--only", "ranks_2")[0], 0)
        self.assertEqual(self.calls(), ["ranks_2"])

        code, out, err = self.run_study()

        self.assertEqual(code, 0, err)
        self.assertEqual(self.calls(), ["ranks_1", "ranks_4"])
        self.assertIn("[3/3] ranks_4: done", err)
        self.assertIn("python3 -m analysis study runs/tiny", out)
        self.assertEqual(self.run_study()[0], 0)
        self.assertEqual(self.calls(), [])

    def test_memory_and_divergence_are_results_and_faults_are_not(self) -> None:
        self.write(axes={"end": {name: {"run.seed": code} for name, code in
                                 (("fits", 0), ("oom", 6), ("diverged", 7), ("fault", 1), ("stop", 75))}}, base=None)

        code, _, err = self.run_study()

        self.assertEqual(code, 1)
        self.assertIn("oom: out of memory", err)
        self.assertEqual([self.state(name) for name in ("fits", "oom", "diverged", "fault", "stop")],
                         ["done", "out of memory", "diverged", "failed", "stopped"])
        self.calls()
        self.run_study()
        self.assertEqual(self.calls(), ["fault", "stop"])

    def test_exit_codes_and_messages(self) -> None:
        self.assertEqual(state_of(6, "out of memory: 9"), "out of memory")
        self.assertEqual(state_of(6, "no such device"), "failed")
        self.assertEqual(message_of("a\nhyperslab: what\nmpirun says more\n"), "hyperslab: what")
        self.assertEqual(message_of("a\nhyperslab: what\n", 137), "hyperslab: what")
        self.assertRegex(message_of("ranks_1: 124.440 M parameters\n", 137), r"killed \(code 137\), probably .* memory")
        self.assertEqual(message_of("a\nstopped on request\n  plot      python3 -m analysis\n"), "stopped on request")

    def test_another_studys_folder_is_refused(self) -> None:
        self.write(axes={"ranks": [1]})
        self.run_study()
        self.write(name="other", axes={"ranks": [1]})

        code, out, err = self.run_study("--output", "runs/tiny")

        self.assertEqual((code, out), (2, ""))
        self.assertIn("runs/tiny holds the study `tiny`, not `other`", err)
        Path("elsewhere").mkdir()
        Path("elsewhere/file").touch()
        self.assertIn("holds something else", self.run_study("--output", "elsewhere")[2])

    def test_a_point_that_was_defined_otherwise_is_refused(self) -> None:
        self.write(axes={"ranks": [1]})
        self.run_study()

        self.write(axes={"ranks": [1]}, set={"train.steps": 3})
        self.assertIn("point ranks_1 was run with train.steps nothing, which is now 3", self.run_study()[2])
        self.write(axes={"ranks": [1, 2]})
        self.assertEqual(self.run_study()[0], 0)  # a longer axis is the same study
        Path("deck.yaml").write_text("train: {global_batch: 8}\n", encoding="utf-8")
        self.assertIn("another text of deck.yaml", self.run_study()[2])

    def test_a_key_that_no_deck_has_is_named_before_anything_runs(self) -> None:
        self.write(set={"train.global_bach": 1})

        code, _, err = self.run_study()

        self.assertEqual(code, 2)
        self.assertEqual(err, "study.py: study.yaml: the deck has no key train.global_bach (did you mean train.global_batch?); see "
                              f"{ROOT / 'analysis/tests/fake_program.py'} --keys\n")
        self.assertEqual(self.calls(), [])

    def test_a_damaged_record_is_named(self) -> None:
        self.write(axes={"ranks": [1]})
        self.run_study()
        Path("runs/tiny/points/ranks_1/point.json").write_text("{", encoding="utf-8")

        code, _, err = self.run_study()

        self.assertEqual(code, 2)
        self.assertRegex(err, r"\Astudy.py: runs/tiny/points/ranks_1/point.json cannot be read [^\n]+\n\Z")

    def test_dry_run_starts_nothing(self) -> None:
        self.write(axes={"ranks": [2]}, base=None)

        code, out, _ = self.run_study("--dry-run")

        self.assertEqual(code, 0)
        self.assertIn("ranks_2 (waiting)\n  env RANKS=2 ", out)
        self.assertIn("--set parallel.data=2", out)
        self.assertFalse(Path("runs").exists())
        self.assertIn("there is no such point (did you mean ranks_2?); the first are ranks_2", self.run_study("--only", "ranks_9")[2])

    def test_index_lists_every_experiment(self) -> None:
        self.write(axes={"ranks": [1, 2]})
        self.run_study()

        with Path("runs/index.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))

        self.assertEqual([(row["study"], row["point"], row["state"], row["ranks"]) for row in rows],
                         [("tiny", "ranks_1", "done", "1"), ("tiny", "ranks_2", "done", "2")])
        self.assertEqual(rows[0]["program"], "hyperslab 0.0.0 (fake)")

    def test_a_launcher_that_is_not_there_leaves_no_point_that_seems_to_run(self) -> None:
        self.write(axes={"ranks": [1]})

        code, _, err = self.run_study(launcher="no/such/launcher")

        self.assertEqual(code, 2)
        self.assertIn("cannot start no/such/launcher: No such file or directory", err)
        self.assertEqual(self.state("ranks_1"), "failed")

    def test_a_signal_reaches_the_point_and_the_study_goes_on_later(self) -> None:
        self.write(axes={"end": {"one": {"run.seed": "wait"}, "two": {"run.seed": 0}}}, base=None)
        process = self.start_study()
        while not Path("waits").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.02)

        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)

        self.assertEqual(process.returncode, 75, err)
        self.assertEqual(self.state("one"), "stopped")
        self.assertFalse(Path("runs/tiny/points/two/point.json").exists())

    def test_a_study_ends_after_its_seconds(self) -> None:
        self.write(axes={"end": {"one": {"run.seed": "wait"}, "two": {"run.seed": 0}}}, base=None)

        code, _, _ = self.run_study("--seconds", "2")

        self.assertEqual((code, self.state("one")), (75, "stopped"))
        self.assertFalse(Path("runs/tiny/points/two/point.json").exists())

    def test_a_point_that_another_study_ended_meanwhile_is_not_run_again(self) -> None:
        points = self.points()
        self.run_study()
        self.calls()

        code = run_points(points, {}, Launcher(FAKE, sys.executable, Path("runs/tiny"), {}))

        self.assertEqual((code, self.calls()), (0, []))

    def test_a_point_is_run_by_one_study_at_a_time(self) -> None:
        self.write(axes={"end": {"one": {"run.seed": "wait"}, "two": {"run.seed": 0}}}, base=None)
        first = self.start_study()
        while not Path("waits").exists():
            self.assertIsNone(first.poll())
            time.sleep(0.02)
        self.calls()

        _, out, _ = self.run_study()
        first.send_signal(signal.SIGUSR1)
        first.communicate(timeout=60)

        self.assertIn("one: another jobs/study.py runs it", out)
        self.assertEqual(self.calls(), ["two"])

    def test_index_lists_runs_that_belong_to_no_study(self) -> None:
        self.write(axes={"ranks": [1]})
        run = Path("runs/alone")
        write_deck(run)
        write_metrics(run, [metrics_row(1), metrics_row(2)])
        Path("runs/alone/notes.txt").touch()
        self.run_study()

        with Path("runs/index.csv").open(encoding="utf-8") as file:
            row = next(csv.DictReader(file))

        self.assertEqual((row["run"], row["study"], row["step"], row["learning_rate"], row["directory"]),
                         ("alone", "", "2", "0.002", "runs/alone"))

    def test_slurm_scripts(self) -> None:
        self.write(axes={"ranks": [1, 4]}, point="train_g{ranks}")

        code, out, err = self.run_study("--slurm", "gpus-per-task=1")

        self.assertEqual(code, 0, err)
        names = ["study.slurm", "train_g1.slurm", "train_g4.slurm"]
        self.assertEqual([Path(line).name for line in out.split()], names)
        for name in names:
            subprocess.run(["bash", "-n", str(Path("runs/tiny") / name)], check=True)
        array = Path("runs/tiny/study.slurm").read_text(encoding="utf-8")
        for line in ("#SBATCH --array=0-1", "#SBATCH --ntasks=4", "#SBATCH --gpus-per-task=1",
                     "points=(train_g1 train_g4)"):
            self.assertIn(line, array)
        self.assertEqual(self.calls(), [])


class Slurm(StudyTest):
    """Scripts under bash, with programs that stand for Slurm's: srun runs what follows its options."""

    def setUp(self) -> None:
        super().setUp()
        Path("bin").mkdir()
        for name, text in (("srun", 'while [[ $1 == --* ]]; do shift; done\nexec "$@"'),
                           ("scontrol", 'echo "$@" >>scontrol.txt')):
            path = Path("bin") / name
            path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
            path.chmod(0o755)

    def start(self, name: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                       "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return subprocess.Popen(["bash", f"runs/tiny/{name}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=environment)

    def test_a_task_of_the_array_runs_its_point(self) -> None:
        self.write(axes={"ranks": [1, 2]})
        self.run_study("--slurm")

        process = self.start("study.slurm", SLURM_ARRAY_TASK_ID="1")
        _, err = process.communicate()

        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.calls(), ["ranks_2"])
        self.assertFalse(Path("scontrol.txt").exists())

    def test_the_signal_before_the_time_limit_saves_and_requeues(self) -> None:
        self.write(axes={"end": {"one": {"run.seed": "wait"}}}, base=None)
        self.run_study("--slurm")
        process = self.start("one.slurm", SLURM_JOB_ID="77")
        while not Path("waits").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.02)

        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=60)

        self.assertEqual(process.returncode, 75, err)
        self.assertEqual(Path("scontrol.txt").read_text(encoding="utf-8"), "requeue 77\n")
        self.assertEqual(self.state("one"), "stopped")


class AllStudies(StudyTest):
    def run_all(self, *words: str) -> str:
        done = subprocess.run([str(ROOT / "jobs/gpu-studies.sh"), "--small", "--gpus", "1", "--binary", "/bin/true",
                               *words], capture_output=True, text=True, check=True, cwd=self.folder,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        return done.stdout

    def test_packs_what_reports_need_and_goes_on_with_it(self) -> None:
        self.run_all("--output", "first", "--pack", "first.tar.gz", "accumulation")
        out = self.run_all("--output", "second", "--pack", "second.tar.gz", "--from", "first.tar.gz", "accumulation")

        with tarfile.open("second.tar.gz") as packed:
            names = packed.getnames()
        self.assertEqual(sum(name.endswith("/point.json") for name in names), 9)
        self.assertIn("./accumulation/study.yaml", names)
        self.assertRegex(out, r"(?m)^accumulation +9 .* 9 done$")
        self.assertNotIn("running", Path("second/logs/accumulation.GPU_0.log").read_text(encoding="utf-8"))

    def test_every_study_of_the_repository_is_in_its_list(self) -> None:
        out = self.run_all("--list")

        for path in (ROOT / "inputs/studies").glob("*.yaml"):
            if "\n  run.device: cpu\n" not in path.read_text(encoding="utf-8"):  # a study for machines without a GPU
                self.assertRegex(out, rf"(?m)^{path.stem} ")


class Reporting(StudyTest):
    def test_columns_have_the_numbers_that_were_measured(self) -> None:
        self.write(tables=[
            {"title": "Times", "across": "model.context", "columns": ["step_seconds", "speed_up", "efficiency"]},
            {"columns": ["first_step_seconds", "memory_peak_bytes", "memory_peak_bytes_change",
                         "memory_prediction_error"]}],
            plots=[{"name": "a", "x": "ranks", "y": ["step_seconds"], "log": ["x", "y"]},
                   {"kind": "bars", "name": "b", "x": "ranks", "y": ["tokens_per_second"], "change": True}])
        self.run_study()

        code, out, err = run_command("study", "runs/tiny")

        self.assertEqual((code, err), (0, ""))
        lines = [line.split() for line in out.splitlines()]
        self.assertIn(["1", "100.00", "1.00", "100.0", "100.00", "1.00", "100.0"], lines)
        self.assertIn(["2", "50.00", "2.00", "100.0", "50.00", "2.00", "100.0"], lines)
        self.assertIn(["2", "16", "100.00", "16.0", "0.0", "0.00"], lines)
        for name in ("a", "b"):
            self.expect_png(Path(f"runs/tiny/report/{name}.png"), at_least=8000)
        with Path("runs/tiny/report/study.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["step_seconds"] for row in rows], ["0.1", "0.1", "0.05", "0.05"])
        self.assertIn("| 2 | 50.00 | 2.00 |", Path("runs/tiny/report/study.md").read_text(encoding="utf-8"))

    def test_out_of_memory_stands_in_tables_and_repetitions_are_taken_together(self) -> None:
        self.write(axes={"size": {"fits": {"run.seed": 0}, "large": {"run.seed": 6}}}, repeat=2,
                   base={"size": "fits"}, tables=[{"columns": ["step_seconds", "speed_up"]}])
        self.run_study()

        _, out, _ = run_command("study", "runs/tiny")

        self.assertRegex(out, r"(?m)^fits +100\.00 +1\.00$")
        self.assertRegex(out, r"(?m)^large +out of memory +out of memory$")
        self.assertIn("note: large-r1: out of memory (hyperslab: out of memory: 9 bytes", out)

    def test_modes_that_are_measured_together_are_an_axis(self) -> None:
        self.write(axes={"ranks": [1, 2]}, set={"mode": "all"}, tables=[
            {"columns": ["step_seconds", "speed_up", "memory_prediction_error"]}])
        self.run_study()

        _, out, _ = run_command("study", "runs/tiny")

        lines = [line.split() for line in out.splitlines()]
        self.assertIn(["ranks", "mode", "time", "(ms)", "speed-up", "predicted", "by", "measured", "memory", "-", "1",
                       "(%)"], lines)
        self.assertIn(["2", "forward", "12.50", "2.00", "-"], lines)  # a plan is of a whole step
        self.assertIn(["2", "step", "50.00", "2.00", "0.00"], lines)

    def test_tables_pick_a_mode_that_is_no_axis_of_the_file(self) -> None:
        self.write(axes={"end": {"fits": {"run.seed": 0}, "large": {"run.seed": 6}}}, base=None, set={"mode": "all"},
                   tables=[{"columns": ["step_seconds"], "where": {"mode": "forward"}}])
        self.run_study()

        _, out, _ = run_command("study", "runs/tiny")

        self.assertRegex(out, r"(?m)^fits +25\.00$")
        self.assertRegex(out, r"(?m)^large +out of memory$")

    def test_what_is_relative_to_a_base_needs_another_row(self) -> None:
        self.write(axes={"ranks": [1], "model.context": [8, 16]}, tables=[
            {"across": "ranks", "columns": ["step_seconds", "speed_up"]}])
        self.run_study()

        _, out, _ = run_command("study", "runs/tiny")

        self.assertRegex(out, r"(?m)^context +step \(ms\)$")

    def test_a_study_of_plans(self) -> None:
        self.write(command="plan", axes={"model.context": [8, 20480]}, base={"model.context": 8},
                   tables=[{"columns": ["memory_predicted_bytes", "memory_predicted_bytes_change"]}])
        self.assertEqual(self.run_study()[0], 0)

        _, out, _ = run_command("study", "runs/tiny")

        self.assertRegex(out, r"(?m)^context  predicted memory \(GiB\)  predicted memory, change \(%\)$")
        self.assertRegex(out, r"(?m)^20480 +20\.00 +255,900\.0$")

    def test_a_half_run_study_is_reported_as_far_as_it_is(self) -> None:
        self.write(axes={"ranks": [1, 2]})
        self.run_study("--only", "ranks_2")

        _, out, _ = run_command("study", "runs/tiny")

        self.assertRegex(out, r"(?m)^2 +50\.00 +- +8\.0$")  # there is no base yet
        self.assertIn("note: 1 of 2 points did not run: 1\n", out)

    def test_a_row_of_a_point_that_was_stopped_says_so(self) -> None:
        self.write(axes={"ranks": [1, 2]})
        self.run_study()
        path = point_folder(Path("runs/tiny"), "ranks_2") / "point.json"
        path.write_text(path.read_text(encoding="utf-8").replace('"done"', '"stopped"'), encoding="utf-8")

        run_command("report", "runs/tiny")

        page = Path("runs/tiny/report/report.md").read_text(encoding="utf-8")
        self.assertIn("step (ms) 100.00 to 50.00 (-50.0 %); it was stopped before its end.", page)

    def test_a_report_sets_what_plan_said_beside_what_bench_measured(self) -> None:
        self.write(axes={"ranks": [1, 2]})
        self.run_study()
        (point_folder(Path("runs/tiny"), "ranks_2") / "plan.json").write_text(
            '{"memory_bytes": 8598323, "step_seconds": 0.045}', encoding="utf-8")

        run_command("report", "runs/tiny")

        page = Path("runs/tiny/report/report.md").read_text(encoding="utf-8")
        section = page[page.index("## Predicted beside measured"):].split("\n## ")[0]
        self.assertIn("memory of the fullest rank of the plans, made before each run, differs from the measured one by at "
                      "most 2.5 %, in the median by 1.2 %, over 2 rows.", section)
        self.assertIn("| 1 | 8.00 | 8.00 | 0.0 | - | 100.00 | - |", section)
        self.assertIn("| 2 | 8.20 | 8.00 | 2.5 | 45.00 | 50.00 | -10.0 |", section)

    def test_a_report_on_a_study_with_a_point_that_was_stopped_in_its_first_step(self) -> None:
        for left in ("", '{"step": 1, "lo'):
            with self.subTest(left):
                self.write(axes={"ranks": [1, 2]})
                self.run_study()
                (point_folder(Path("runs/tiny"), "ranks_2") / "metrics.jsonl").write_text(left, encoding="utf-8")

                code, out, err = run_command("report", "runs/tiny")

                self.assertEqual((code, err), (0, ""), out)
                self.assertIn("report.html", out)

    def test_a_report_on_a_study(self) -> None:
        self.write()
        self.run_study()

        code, out, err = run_command("report", "runs/tiny")

        self.assertEqual((code, err), (0, ""), out)
        page = Path("runs/tiny/report/report.html").read_text(encoding="utf-8")
        self.assertIn("<td>llama: tiny</td>", page)
        self.assertIn("<td>hyperslab 0.0.0 (fake)</td>", page)
        self.assertIn("context 16: ranks 2 beside ranks 1: peak memory (MiB) 16.0 to 16.0 (unchanged); "
                      "step (ms) 100.00 to 50.00 (-50.0 %).", page)

    def test_folders_that_hold_no_study(self) -> None:
        Path("empty").mkdir()
        self.expect_error("study", "empty", says="empty is no study's folder")
        self.write(axes={"ranks": [1]})
        self.run_study("--slurm")
        self.expect_error("study", "runs/tiny", says="holds no point yet")
        self.run_study()
        self.expect_error("report", "runs/tiny", "empty", "--output", "out", says="empty")

    def test_prediction_of_a_plan(self) -> None:
        path = Path("plan.txt")
        path.write_text("model  x\nlargest       pipeline 0: 970.5 GiB on each of its 2 ranks\n", encoding="utf-8")
        self.assertEqual(printed_bytes(path), 970.5 * 2 ** 30)
        path.write_text("no line\n", encoding="utf-8")
        self.assertTrue(math.isnan(printed_bytes(path)))
        path.write_text("largest       pipeline 0: 9.5 GiB on each of its 2 ranks\n"
                        "in use        8.5 GiB at most at one time of a step, without workspace\n", encoding="utf-8")
        both = read_prediction(Path("."))
        self.assertEqual((both.memory_of("bench"), both.memory_of("train")), (9.5 * 2 ** 30, 8.5 * 2 ** 30))
        Path("plan.json").write_text('{"memory_bytes": 5, "step_seconds": 0.5}', encoding="utf-8")
        self.assertEqual(read_prediction(Path(".")).memory_of("train"), 5.0)
        Path("plan.json").write_text('{"memory_bytes": 5, "memory_in_use_bytes": 4, "step_seconds": 0.5}', encoding="utf-8")
        self.assertEqual(read_prediction(Path(".")), Prediction(5.0, 0.5, 4.0))


if __name__ == "__main__":
    unittest.main()
