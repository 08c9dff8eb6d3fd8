#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small files beside a run or a result: where storage ends, they stay as they were, and the reason is reported."""

import json
import os
import resource
import shutil
import subprocess
import unittest

import support

LIMIT = 100  # bytes of a file: fewer than each of these files has


def limit_files():
    """In the program that is started: writing beyond the limit fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


class Storage(support.Case):
    """A finished run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=2")
        # Apart from its run, which would record the figures of tasks.
        shutil.copytree(cls.folder / "run/checkpoints", cls.folder / "saved")

    def refuse(self, path, *arguments):
        """A command that must leave the file at `path` as it is, and nothing beside it."""
        before = support.snapshot(self.folder)
        process = self.start(*arguments, preexec_fn=limit_files)
        out, err = process.communicate(timeout=30)

        self.assert_refused(support.Result(process.returncode, out, err.decode("utf-8"), 0), 5,
                            f"cannot write '{path}': File too large")
        self.assertEqual(support.snapshot(self.folder), before)

    def test_results(self):
        checkpoint = ("--checkpoint", "run/checkpoints")
        commands = {"eval": ("eval", "deck.yaml", *checkpoint),
                    "generate": ("generate", *checkpoint, "--prompt", "The red", "--max-tokens", 3),
                    "bench": ("bench", "deck.yaml", "--warmup", 0, "--steps", 1),
                    "data": ("bench", "deck.yaml", "--mode", "data", "--warmup", 0, "--steps", 1)}
        for name, command in commands.items():
            with self.subTest(name):
                (self.folder / f"{name}.json").write_text("earlier", encoding="utf-8")
                self.refuse(f"{name}.json", *command, "--json", f"{name}.json")
        self.refuse("plan.csv", *commands["bench"], "--memory", "plan.csv")

    def test_records_of_tasks(self):
        shutil.copytree(self.folder / "run", self.folder / "scored")
        self.addCleanup(shutil.rmtree, self.folder / "scored")
        self.outputs()
        records = self.folder / "scored/eval_tasks.jsonl"
        command = ("eval", "--checkpoint", "scored", "--tasks", "task.jsonl")
        for earlier in (None, '{"step": 1, "tasks": []}\n'):
            with self.subTest(earlier=earlier):
                if earlier:
                    records.write_text(earlier, encoding="utf-8")
                before = support.snapshot(self.folder)
                process = self.start(*command, preexec_fn=limit_files)
                out, err = process.communicate(timeout=30)

                self.assertEqual(process.returncode, 0, err)
                self.assertIn(b"animals", out)
                self.assertIn("the figures are not recorded in the run directory: cannot write "
                              f"'{records}': File too large", err.decode("utf-8"))
                self.assertNotIn(b"training goes on", err)
                self.assertEqual(support.snapshot(self.folder), before)

        self.assertEqual(self.run_program(*command).code, 0)
        lines = records.read_text(encoding="utf-8").splitlines(keepends=True)
        self.assertEqual((lines[0], len(lines)), (earlier, 2))
        self.assertEqual(json.loads(lines[1])["step"], 2)

    def outputs(self):
        """Name of an output -> the command up to its path; every output of eval of text and of generate."""
        checkpoint = ("--checkpoint", "run/checkpoints")
        lines = ({"task": "animals", "kind": "multiple_choice", "metric": "acc_norm"},
                 {"context": "The red", "endings": ["cat", "dog"], "label": 0})
        (self.folder / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        generate = ("generate", *checkpoint, "--prompt", "The red", "--max-tokens", 20)
        return {"eval.json": ("eval", "deck.yaml", *checkpoint, "--json"),
                "tasks.json": ("eval", "--checkpoint", "saved", "--tasks", "task.jsonl", "--json"),
                "generate.json": (*generate, "--json"),
                "generate.jsonl": (*generate, "--json"),
                "logits.npy": (*generate, "--logits")}

    def test_outputs_without_a_place_are_refused_before_the_work(self):
        (self.folder / "folder").mkdir()
        for name, command in self.outputs().items():
            for path, reason in ((f"nowhere/{name}", "No such file or directory"), (f"text.txt/{name}", "Not a directory"),
                                 ("folder", "Is a directory")):
                with self.subTest(name, path=path):
                    before = support.snapshot(self.folder)
                    result = self.run_program(*command, path)
                    self.assert_refused(result, 5, f"cannot write '{path}': {reason}")
                    self.assertEqual(result.out, "")
                    self.assertEqual(support.snapshot(self.folder), before)

    @unittest.skipUnless(support.can_mount(), "no file system can be mounted here")
    def test_outputs_on_a_disk_that_is_read_only(self):
        (self.folder / "mounted").mkdir()
        for name, command in self.outputs().items():
            with self.subTest(name):
                words = support.command(*command, f"mounted/{name}")
                found = subprocess.run(["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none mounted && exec "$@"', "sh",
                                        *words], cwd=self.folder, capture_output=True, check=False, timeout=60)
                result = support.Result(found.returncode, found.stdout, found.stderr.decode(), 0)
                self.assert_refused(result, 5, f"cannot write 'mounted/{name}': Read-only file system")
                self.assertEqual(result.out, "")

    def test_outputs_that_a_disk_has_no_room_for(self):
        for name, command in self.outputs().items():
            with self.subTest(name):
                (self.folder / name).write_text("earlier", encoding="utf-8")
                self.refuse(name, *command, name)
                # A link, so that a program that renames its output onto it does no harm.
                (self.folder / "full").unlink(missing_ok=True)
                (self.folder / "full").symlink_to("/dev/full")
                self.assert_refused(self.run_program(*command, "full"), 5, "cannot write 'full': No space left on device")
                self.assertTrue((self.folder / "full").is_symlink())

    def test_ranks_of_an_eval_end_together(self):
        command = ("eval", "deck.yaml", "--checkpoint", "run/checkpoints", "--set", "parallel.data=2", "--json")
        self.assert_refused(self.run_program(*command, "nowhere/found.json", ranks=2), 5,
                            "cannot write 'nowhere/found.json': No such file or directory")
        self.assert_refused(self.run_program(*command, "/dev/full", ranks=2), 5,
                            "cannot write '/dev/full': No space left on device")

    def test_deck_of_a_run(self):
        self.refuse("run/deck.yaml", "train", "deck.yaml", *support.overrides("train.steps=4"))

    def test_deck_of_an_import(self):
        result = self.run_program("checkpoint", "export", "run/checkpoints", "--output", "exported")
        self.assertEqual(result.code, 0, result.err)
        (self.folder / "imported" / "deck.yaml").mkdir(parents=True)

        result = self.run_program("checkpoint", "import", "exported", "--output", "imported")

        self.assert_refused(result, 5, "cannot write 'imported/deck.yaml': Is a directory")

    def test_what_is_no_file_is_written_in_place(self):
        found = subprocess.run(
            support.command("eval", "deck.yaml", "--checkpoint", "run/checkpoints", "--json", "/dev/stderr"),
            cwd=self.folder, env=os.environ, capture_output=True, timeout=30, check=False)

        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn(b'"perplexity"', found.stderr)


if __name__ == "__main__":
    support.main()
