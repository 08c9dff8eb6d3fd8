#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small files beside a run or a result: where storage ends, they stay as they were, and the reason is told."""

import os
import resource
import subprocess

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
