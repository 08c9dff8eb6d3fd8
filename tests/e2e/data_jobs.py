# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs/data/*.sh share: files that the test serves under file://, and a copy of the scripts."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

import support

JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "data"


def sha256(data):
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


class DataJobs(support.Case):
    """Each script in a folder of its own."""

    def setUp(self):
        for name in ("www", "data", "tree"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "www").mkdir()
        self.jobs = self.folder / "tree" / "jobs"
        shutil.copytree(JOBS.parent, self.jobs)

    def replace(self, script, changes):
        """Other words in a script, such as checksums of what the test serves."""
        path = self.jobs / "data" / script
        text = path.read_text(encoding="utf-8")
        for old, new in changes.items():
            self.assertIn(old, text)
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")

    def checked(self, result):
        """The result of what must end well."""
        self.assertEqual(result.code, 0, result.err)
        return result

    def serve(self, path, data):
        """Puts a file under the base URL."""
        file = self.folder / "www" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def job(self, name, *options, code=0, url=None, **environment):
        """Runs a script; its words."""
        url = url or f"file://{self.folder}/www"
        binary = support.command()[-1]
        result = subprocess.run(
            ["bash", str(self.jobs / "data" / f"{name}.sh"), *options], capture_output=True, check=False, timeout=60,
            cwd=self.folder, stdin=subprocess.DEVNULL,
            env={**os.environ, "HYPERSLAB_DATA_URL": url, "HYPERSLAB_DATA": str(self.folder / "data"),
                 "HYPERSLAB_BINARY": binary, "HYPERSLAB_PYTHON": sys.executable, "PYTHONPATH": str(self.folder / "fake"),
                 "no_proxy": "*", **environment})
        words = (result.stdout + result.stderr).decode("utf-8", "replace")
        self.assertEqual(result.returncode, code, words)
        return words
