#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is shown: help, versions, plans of a run, and a live line on a terminal."""

import os
import pty
import re

import support

COMMANDS = ("train", "eval", "generate", "bench", "tokenize", "checkpoint", "plan")


class Help(support.Case):
    """Every command explains itself."""

    def test_overview_names_every_command(self):
        result = self.run_program("--help")

        self.assertEqual((result.code, result.err), (0, ""))
        for name in COMMANDS:
            self.assertRegex(result.out, rf"(?m)^  {name} ")

    def test_every_command(self):
        for name in COMMANDS:
            with self.subTest(command=name):
                result = self.run_program(name, "--help")
                self.assertEqual((result.code, result.err), (0, ""))
                self.assertIn(f"hyperslab {name}", result.out)
                self.assertIn("--help", result.out)

    def test_ranks_say_it_once(self):
        result = self.run_program("train", "--help", ranks=2)

        self.assertEqual(result.code, 0)
        self.assertEqual(result.out.count("usage:"), 1)

    def test_version(self):
        result = self.run_program("--version")

        self.assertEqual(result.code, 0)
        self.assertRegex(result.out, r"^hyperslab \d+\.\d+\.\d+ \(.+\)\n$")


class DryRun(support.Case):
    """train --dry-run."""

    def parameters(self, *settings):
        """The number that a dry run prints."""
        result = self.run_program("train", "deck.yaml", "--dry-run", *support.overrides(*settings))
        self.assertEqual(result.code, 0, result.err)
        return int(re.search(r"(?m)^parameters +(\d+)$", result.out)[1])

    def test_parameter_counts(self):
        width, layers, vocabulary, context = 32, 2, 257, 32
        llama = 2 * vocabulary * width + layers * (4 * width ** 2 + 3 * width * 128 + 2 * width) + width
        block = 4 * (width ** 2 + width) + (8 * width ** 2 + 5 * width) + 4 * width
        gpt2 = (vocabulary + context) * width + layers * block + 2 * width

        self.assertEqual(self.parameters(), llama)
        self.assertEqual(self.parameters("model.tie_embeddings=true"), llama - vocabulary * width)
        self.assertEqual(self.parameters("model.family=gpt2"), gpt2)

    def test_the_count_is_that_of_the_checkpoint(self):
        self.train("counted", "train.steps=1", "schedule.warmup_steps=0")

        found = support.tensors(self.folder / "counted/checkpoints/step_00000001")
        stored = sum(len(data) // 4 for name, data in found.items() if name.startswith("model/"))
        self.assertEqual(self.parameters(), stored)

    def test_shapes_of_every_arena(self):
        before = support.snapshot(self.folder)

        result = self.run_program("train", "deck.yaml", "--dry-run", "--shapes", "--set", "parallel.data=4")

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(support.snapshot(self.folder), before)
        rows = re.findall(r"(?m)^(\w+) +(\S.*?) +\(([\d, ]+)\) +(\w+) +(\d+)$", result.out)
        self.assertEqual({row[0] for row in rows},
                         {"parameters", "gradients", "optimizer", "activations", "scratch"})
        names = [row[1] for row in rows]
        for name in ("masters", "gradients", "exp_avg", "exp_avg_sq", "embedding.output",
                     "blocks.0.norm1.output", "blocks.1.attention.qkv", "logits"):
            self.assertIn(name, names)
        for arena, name, shape, dtype, size in rows:
            count = 1
            for dim in shape.split(","):
                count *= int(dim)
            width = {"f32": 4, "i32": 4, "i64": 8, "u8": 1}[dtype]
            self.assertEqual(int(size), count * width, f"{arena} {name}")


class Terminal(support.Case):
    """One rank whose stderr is a terminal."""

    def test_one_live_line(self):
        master, slave = pty.openpty()
        process = self.start("train", "deck.yaml", "--set", "train.steps=12", stderr=slave)
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:  # the other end was closed
            pass
        os.close(master)
        process.communicate(timeout=20)

        self.assertEqual(process.returncode, 0, shown)
        lines = shown.decode("utf-8").split("\r\n")
        live = [line for line in lines if "\r\x1b[K" in line or line.startswith("\r")]
        redrawn = sum(len(re.findall(r"\r\x1b\[Kstep \d+/12 ", line)) for line in lines)
        self.assertEqual(redrawn, 12, shown)
        self.assertLess(len(live), 6, shown)
        self.assertTrue(any(line.startswith("checkpoint of step 12") for line in lines), shown)


if __name__ == "__main__":
    support.main()
