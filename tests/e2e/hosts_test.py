#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks with copies of their own of the token files, as on hosts without a shared file system."""

import os
import re
import shutil
import socket
import subprocess

import support

HOST = re.escape(socket.gethostname().split(".")[0])


class Copies(support.Case):
    """Rank 0 starts in the test's folder, rank 1 in another."""

    def setUp(self):
        self.other = self.folder / "other"
        shutil.rmtree(self.other, ignore_errors=True)
        self.other.mkdir()
        for name in ("deck.yaml", "text.bin"):
            shutil.copy(self.folder / name, self.other)

    def on_both(self, command, *arguments, settings=()):
        """Exit code and messages."""
        common = ("parallel.data=2", f"run.directory={self.folder}/run", *settings)
        one = support.command(command, "deck.yaml", *arguments, *support.overrides(*common), ranks=1)
        line = [*one, ":", *one[1:3], "--wdir", str(self.other), *one[3:]]
        result = subprocess.run(line, cwd=self.folder, capture_output=True, timeout=60, check=False,
                                env={**os.environ, **support.QUICK_END})
        words = result.stderr.decode("utf-8", "replace")
        return result.returncode, words, [text for text in words.splitlines() if text.startswith("hyperslab: ")]

    def assert_named(self, outcome, pattern):
        """Data are to blame, in one message."""
        code, words, messages = outcome
        self.assertEqual(code, 3, words)
        self.assertEqual(len(messages), 1, words)
        self.assertRegex(messages[0], pattern)

    def test_equal_copies_train(self):
        code, words, _ = self.on_both("train")

        self.assertEqual(code, 0, words)

    def test_another_byte_is_named_with_rank_and_host(self):
        data = bytearray((self.other / "text.bin").read_bytes())
        data[2000] ^= 1
        (self.other / "text.bin").write_bytes(data)

        size = rf"{len(data)} bytes, {(len(data) - 1024) // 2} tokens, llm.c uint16, fingerprint [0-9a-f]{{16}}"
        self.assert_named(self.on_both("train"),
                          rf"data.train: the ranks find different data: rank 0 on host {HOST}\S* has 'text.bin' \({size}\), "
                          rf"rank 1 on host {HOST}\S* has 'text.bin' \({size}\); ranks that differ from rank 0: 1 \(host "
                          rf"{HOST}\S*\); give every host the same files")

    def test_other_validation_tokens_are_named(self):
        shutil.copy(self.folder / "text.bin", self.folder / "validation.bin")
        support.write_tokens(self.other / "validation.bin", [*support.text().encode()] * 2)

        self.assert_named(self.on_both("train", settings=("data.validation=[validation.bin]",)),
                          r"data.validation: the ranks find different data: .* has 'validation.bin' \(\d+ bytes")

    def test_other_numbers_of_files_are_named(self):
        (self.folder / "shards").mkdir()
        shutil.copy(self.folder / "text.bin", self.folder / "shards/a.bin")
        shutil.copytree(self.folder / "shards", self.other / "shards")
        shutil.copy(self.folder / "text.bin", self.other / "shards/b.bin")

        self.assert_named(self.on_both("train", settings=("data.train=[shards/*.bin]",)),
                          r"rank 0 on host \S+ has 1 files, rank 1 on host \S+ has 2 files")

    def test_a_file_that_one_host_lacks_is_named_with_the_host(self):
        (self.other / "text.bin").unlink()

        self.assert_named(self.on_both("train"), rf"rank 1 on host {HOST}\S*: token file 'text.bin': .*No such file")

    def test_eval_of_other_tokens_is_refused(self):
        self.train("evaluated", "train.steps=2", "checkpoint.every=2")
        support.write_tokens(self.other / "text.bin", [*support.text().encode(), 255])

        self.assert_named(self.on_both("eval", "--checkpoint", self.folder / "evaluated/checkpoints"),
                          "the evaluated data: the ranks find different data: .*'text.bin'")


if __name__ == "__main__":
    support.main()
