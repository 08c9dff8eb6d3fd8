#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""install_test.py CMAKE BUILD: installs into an empty prefix, moves it, and uses what is there."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD = sys.argv[1:3]


class Install(unittest.TestCase):
    """A prefix that was moved after the installation."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        first = pathlib.Path(cls.scratch.name, "first")
        # A build of the target hyperslab alone has no completion: the installation makes it.
        for completion in pathlib.Path(BUILD).glob("completion.*"):
            completion.unlink()
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", first], check=True, capture_output=True)
        cls.prefix = first.rename(first.with_name("second"))

    def run_program(self, *command):
        """What an installed program prints, from a folder where nothing else is."""
        return subprocess.run(command, cwd=self.scratch.name, capture_output=True, text=True, check=False)

    def test_the_program_runs(self):
        done = self.run_program(self.prefix / "bin/hyperslab", "--version")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^hyperslab \d+\.\d+\.\d+ ")

    def test_the_reports_find_their_package(self):
        program = self.prefix / "bin/hyperslab-analysis"
        link = pathlib.Path(self.scratch.name, "link")
        link.symlink_to(program)

        for name in (program, link):
            done = self.run_program(name, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("report", done.stdout)
            self.assertTrue(done.stdout.startswith("usage: hyperslab-analysis "), done.stdout)

    def test_installed_decks_can_be_planned(self):
        deck = self.prefix / "share/hyperslab/inputs/quickstart.yaml"

        done = self.run_program(self.prefix / "bin/hyperslab", "plan", deck, "--ranks", "4")

        self.assertEqual(done.returncode, 0, done.stderr)

    def test_scripts_that_the_pages_name_are_there(self):
        jobs = self.prefix / "share/hyperslab/jobs"

        done = self.run_program(jobs / "keep-running.sh", "--help")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("keep-running.sh", done.stdout)
        for name in ("train.sbatch", "train-mpirun.sbatch", "decks.sbatch"):
            self.assertEqual(self.run_program("bash", "-n", jobs / "slurm" / name).returncode, 0, name)

    def test_pages_and_completion_are_there(self):
        for path in ("share/doc/hyperslab/README.md", "share/doc/hyperslab/docs/decks.md",
                     "share/zsh/site-functions/_hyperslab"):
            self.assertTrue((self.prefix / path).is_file(), path)
        script = self.prefix / "share/bash-completion/completions/hyperslab"
        self.assertEqual(self.run_program("bash", "-n", script).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
