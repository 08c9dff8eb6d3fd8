#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is shown: help, versions, plans of a run, and a live line on a terminal."""

import os
import pty
import re
import subprocess

import support

COMMANDS = ("train", "eval", "generate", "bench", "tokenize", "pack-images", "checkpoint", "parity", "plan")
COMPLETE = """source completion.sh
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hyperslab; printf '%s\\n' "${COMPREPLY[@]}"
"""


class Help(support.Case):
    """Every command explains itself."""

    def test_overview_names_every_command(self):
        result = self.run_program("--help")

        self.assertEqual((result.code, result.err), (0, ""))
        for name in COMMANDS:
            self.assertRegex(result.out, rf"(?m)^  {name} ")

    def test_every_command(self):
        for name, option in [(name, option) for name in COMMANDS for option in ("--help", "-h")]:
            with self.subTest(command=name, option=option):
                result = self.run_program(name, option)
                self.assertEqual((result.code, result.err), (0, ""))
                self.assertIn(f"hyperslab {name}", result.out)
                self.assertIn("--help", result.out)

    def test_short_form(self):
        self.assertEqual(self.run_program("-h").out, self.run_program("--help").out)

    def test_ranks_say_it_once(self):
        result = self.run_program("train", "--help", ranks=2)

        self.assertEqual(result.code, 0)
        self.assertEqual(result.out.count("usage:"), 1)
        for question in ("--help", "--version", "--keys"):
            self.assertEqual(self.run_program(question, ranks=3).out, self.run_program(question).out)
        wrong = self.run_program("--rules", "modle", ranks=2)
        self.assertEqual((wrong.code, len(wrong.messages)), (2, 1), wrong.err)

    def test_version(self):
        result = self.run_program("--version")

        self.assertEqual(result.code, 0)
        first, *others = result.out.splitlines()
        self.assertRegex(first, r"^hyperslab \d+\.\d+\.\d+ \(.+\)$")
        names = [line.split()[0] for line in others]
        self.assertEqual([name for name in names if name != "NCCL"], ["compiler", "MPI", "HDF5", "BLAS", "CUDA", "vectors"])

    def test_a_name_in_a_message_moves_no_cursor(self):
        result = self.run_program("tr\x1b[31m")

        self.assertEqual(result.code, 2)
        self.assertNotIn("\x1b", result.err)
        self.assertIn("there is no command 'tr", result.err)


class Reference(support.Case):
    """--keys and --rules."""

    def ask(self, *words):
        """What was printed."""
        result = self.run_program(*words)
        self.assertEqual((result.code, result.err), (0, ""))
        return result.out

    def test_keys(self):
        everything, model = self.ask("--keys"), self.ask("--keys", "model")

        self.assertIn(model, everything)
        self.assertNotIn("optimizer.lr", model)
        self.assertIn("default layernorm, with family llama rmsnorm", model)
        self.assertEqual(self.ask("--keys=model"), model)
        keys = re.findall(r"(?m)^\w+\.\w+$", everything)
        deck = self.train("all", "train.steps=1", "schedule.warmup_steps=0") and self.folder / "all" / "deck.yaml"
        self.assertEqual(len(keys), len(re.findall(r"(?m)^  \w+:", deck.read_text(encoding="utf-8"))))

    def test_pages(self):
        page = self.ask("--keys", "--markdown")

        self.assertIn(self.ask("--keys", "timing", "--markdown"), page)
        self.assertRegex(page, r"\| `optimizer.lr` \| number, more than 0 \| `0.0003` \| [A-Z].*\. \|")
        rules = self.ask("--rules", "--markdown")
        self.assertIn("| `model.heads` | divides model.width, unless model.head_width is given |\n", rules)
        self.assertIn("model.heads\n    divides model.width, unless model.head_width is given\n", self.ask("--rules"))
        self.assertNotIn("parallel.tensor\n", self.ask("--rules", "model"))
        of_model = self.ask("--rules", "model", "--markdown")
        self.assertEqual(of_model, "".join(row for row in rules.splitlines(keepends=True)
                                           if not re.match(r"\| `(?!model\.)", row)))

    def test_slips(self):
        for words, found in [(("--keys", "modle"), "no section 'modle' (did you mean 'model'?)"),
                             (("--keys", "model", "train"), "found 'train'"),
                             (("--rules", "modle", "--markdown"), "no section 'modle'"),
                             (("--rules", "--format", "markdown"), "found '--format'"),
                             (("--completion", "fish"), "bash or zsh, found 'fish'"),
                             (("--kyes",), "no option '--kyes'; did you mean '--keys'?"),
                             (("trian", "deck.yaml"), "no command 'trian'; did you mean 'train'?"),
                             (("check",), "no command 'check'; did you mean 'checkpoint'?")]:
            with self.subTest(words=words):
                self.assert_refused(self.run_program(*words), 2, found)


class Slips(support.Case):
    """Arguments that are nearly right."""

    def test_the_right_form_is_shown(self):
        steps = "did you mean --set train.steps=10?"
        for words, found in [(("train", "deck.yaml", "--steps", "10"), f"no option --steps; {steps}"),
                             (("train", "deck.yaml", "--steps=10"), steps),
                             (("train", "deck.yaml", "--train.steps=10"), steps),
                             (("train", "deck.yaml", "train.steps=10"), steps),
                             (("train", "train.steps=10", "deck.yaml"), steps),
                             (("train", "deck.yaml", "--set", "train.steps", "10"), steps),
                             (("train", "deck.yaml", "-set", "train.steps=10"), steps),
                             (("plan", "deck.yaml", "--lr", "1e-3"), "--set optimizer.lr=1e-3?"),
                             (("train", "deck.yaml", "--sahpes"), "did you mean --shapes?"),
                             (("plan", "deck.yaml", "--rank", "x"), "--ranks is 'x', expected a whole number"),
                             (("generate", "--promt", "a"), "did you mean --prompt?")]:
            with self.subTest(words=words):
                self.assert_refused(self.run_program(*words), 2, found)

    def test_what_is_wrong_is_said_in_our_words(self):
        bench = ("bench", "deck.yaml")
        for words, found in [((*bench, "deck.yaml"), "'deck.yaml' is one argument too many"),
                             ((*bench, "--json"), "--json needs a value"),
                             ((*bench, "--json="), "--json needs a value"),
                             ((*bench, "--count=3"), "--count takes no value"),
                             ((*bench, "--steps", "ten"), "--steps is 'ten', expected a whole number"),
                             ((*bench, "--steps=1.5"), "--steps is '1.5', expected a whole number"),
                             ((*bench, "--mode", "step", "--mode", "all"), "--mode is given more than once"),
                             ((*bench, "--c"), "--c can mean --cold, --communication, --components, --count"),
                             ((*bench, "-x"), "no option -x"),
                             (("bench",), "DECK is missing"),
                             (("generate",), "--checkpoint is missing"),
                             (("generate", "--checkpoint", "a", "--top-p", "x"), "--top-p is 'x', expected a number"),
                             (("tokenize", "--vocab", "bytes", "--input"), "--input needs a value")]:
            with self.subTest(words=words):
                result = self.run_program(*words)
                self.assert_refused(result, 2, found, f"hyperslab {words[0]} --help explains")


class Completion(support.Case):
    """The script that completes command lines."""

    def complete(self, *words):
        """The words that bash would offer for the last one."""
        found = subprocess.run(["bash", "-u", "complete.sh", *words], cwd=self.folder, capture_output=True, check=True)
        return found.stdout.decode().split()

    def test_bash(self):
        script = self.run_program("--completion", "bash").out
        (self.folder / "completion.sh").write_text(script, encoding="utf-8")
        (self.folder / "complete.sh").write_text(COMPLETE, encoding="utf-8")

        subprocess.run(["bash", "-n", "completion.sh"], cwd=self.folder, check=True)
        self.assertLessEqual(set(COMMANDS), set(self.complete("hyperslab", "")))
        for name in COMMANDS:
            text = self.run_program(name, "--help").out
            options = set(re.findall(r"(?m)^  (?:-\w \[ )?(--[\w-]+)", text))
            self.assertGreaterEqual(len(options), 2)
            self.assertEqual(set(self.complete("hyperslab", name, "--")), options, name)
        self.assertEqual(self.complete("hyperslab", "train", "deck.yaml", "--set", "optimizer.l"), ["optimizer.lr="])
        self.assertEqual(self.complete("hyperslab", "plan", "--set", "model.norm", "=", "r"), ["rmsnorm"])
        self.assertEqual(self.complete("hyperslab", "plan", "--set", "model.bias", "="), ["true", "false"])
        self.assertEqual(self.complete("hyperslab", "plan", "--set", "model.norm=r"), ["model.norm=rmsnorm"])
        self.assertEqual(self.complete("hyperslab", "train", "de"), ["deck.yaml"])
        self.assertEqual(self.complete("hyperslab", "train", "te"), [])
        self.assertIn("text.txt", self.complete("hyperslab", "tokenize", "--input", "te"))
        self.assertEqual(self.complete("hyperslab", "--keys", "mo"), ["model"])

    def test_zsh(self):
        script = self.run_program("--completion", "zsh").out

        self.assertTrue(script.startswith("#compdef hyperslab\n"))
        self.assertIn("bashcompinit\n", script)
        self.assertIn("complete -F _hyperslab hyperslab\n", script)


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

    def test_a_deck_for_gpus(self):
        fp16 = support.overrides("run.device=auto", "precision.compute=fp16")
        dry = self.run_program("train", "deck.yaml", "--dry-run", *fp16)
        run = self.run_program("train", "deck.yaml", *fp16)

        self.assertEqual((dry.code, dry.err), (0, ""))
        if "planned for cuda" not in dry.out:
            self.skipTest("there is a GPU")
        self.assertTrue(dry.out.startswith("planned for cuda, since fp16 needs a GPU; there is no GPU here\n"))
        self.assertRegex(dry.out, r"(?m)^memory of a rank +[\d.]+ MiB")
        self.assert_refused(run, 2, "fp16 needs a GPU", "plan --device cuda", "train --dry-run")

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
