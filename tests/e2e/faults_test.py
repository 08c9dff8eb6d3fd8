#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decks, layouts, command lines, data and folders that are refused before anything is written."""

import subprocess

import support


class Refused(support.Case):
    """Every refusal: its exit code, one message for all ranks, and no file touched."""

    def refuse(self, code, words, *arguments, ranks=2):
        """Starts a command that must fail without a trace."""
        before = support.snapshot(self.folder)
        result = self.run_program(*arguments, ranks=ranks)
        self.assert_refused(result, code, *words)
        self.assertEqual(support.snapshot(self.folder), before)
        return result

    def refuse_train(self, code, words, *settings, deck="deck.yaml", ranks=2):
        """A training that must fail without a trace."""
        settings = support.overrides(f"parallel.data={ranks}", *settings)
        return self.refuse(code, words, "train", deck, *settings,
                           ranks=0 if ranks == 1 else ranks)

    def write_deck(self, name, *changes):
        """deck.yaml with texts replaced."""
        text = support.DECK
        for old, new in changes:
            self.assertIn(old, text)
            text = text.replace(old, new)
        (self.folder / name).write_text(text, encoding="utf-8")


class Decks(Refused):
    """What is written in a deck or given with --set."""

    def test_missing_deck(self):
        self.refuse(2, ["nowhere.yaml", "No such file"], "train", "nowhere.yaml")

    def test_a_folder_is_no_deck(self):
        self.refuse(2, ["folder"], "train", ".")

    def test_no_deck(self):
        self.refuse(2, ["DECK is missing", "hyperslab train --help"], "train")

    def test_broken_decks(self):
        broken = {"empty": b"", "open": b"run: {name: a\n", "bytes": b"run: {name: \xff}\n", "list": b"- 1\n"}
        for name, content in broken.items():
            with self.subTest(deck=name):
                (self.folder / f"{name}.yaml").write_bytes(content)
                self.refuse(2, [f"{name}.yaml:"], "train", f"{name}.yaml", ranks=0)

    def test_unknown_key_has_its_line_and_a_suggestion(self):
        self.write_deck("unknown.yaml", ("heads: 2", "heds: 2"))

        self.refuse_train(2, ["unknown.yaml:2:46: ", "'heds'", "did you mean 'heads'?"], deck="unknown.yaml")

    def test_duplicate_key(self):
        self.write_deck("twice.yaml", ("seed: 7", "seed: 7, seed: 8"))

        self.refuse_train(2, ["twice.yaml:1:", "seed"], deck="twice.yaml")

    def test_all_problems_at_once(self):
        self.write_deck("many.yaml", ("heads: 2", "heds: 2"), ("width: 32", "width: 1e3"),
                        ("warmup_steps: 2", "warmup_steps: 010"), ("name: cosine", "name: cosinus"))

        result = self.refuse_train(2, ["many.yaml:2:42: model.width", "many.yaml:2:47: model.heds",
                                       "many.yaml:6:18: schedule.name", "warmup_steps: '010'",
                                       "--set optimizer.lr=-1"], "optimizer.lr=-1", deck="many.yaml")
        self.assertEqual(sum("many.yaml:" in line for line in result.err.splitlines()), 4, result.err)

    def test_bad_overrides(self):
        for setting, word in [("optimizer.lr=abc", "number"), ("train.stepps=5", "did you mean"),
                              ("nonsense", "section.key=value"), ("model.width=", "model.width"),
                              ("train.global_batch=0", "between 1 and"), ("data.train=[a", "data.train")]:
            with self.subTest(setting=setting):
                self.refuse_train(2, [f"--set {setting}", word], setting, ranks=1)

    def test_layout_that_does_not_fit_the_ranks(self):
        self.refuse(2, ["needs 4 ranks", "2 were started; start 4 (mpirun -np 4 hyperslab ...)"], "train", "deck.yaml", "--set", "parallel.data=4")

    def test_one_rank_if_four_are_needed(self):
        for ranks in (0, 1):
            self.refuse(2, ["needs 4 ranks", "1 was started; start 4 (mpirun -np 4 hyperslab ...)"], "train", "deck.yaml", "--set",
                        "parallel.data=4", ranks=ranks)

    def test_batch_that_the_ranks_do_not_divide(self):
        self.refuse_train(2, ["13", "nearest"], "train.global_batch=13")
        self.refuse_train(2, ["12", "nearest"], "train.microbatch=5")

    def test_heads_that_do_not_divide(self):
        self.refuse_train(2, ["3 heads", "width 32", "nearest"], "model.heads=3")

    def test_command_lines(self):
        for words, arguments in [(["no command 'teach'"], ["teach", "deck.yaml"]),
                                 (["which command"], []),
                                 (["--nonsense"], ["train", "deck.yaml", "--nonsense"]),
                                 (["--resume", "yes"], ["train", "deck.yaml", "--resume", "yes"]),
                                 (["--resume"], ["train", "deck.yaml", "--resume", "-5"]),
                                 (["--stop-after"], ["train", "deck.yaml", "--stop-after", "-5"]),
                                 (["--stop-after"], ["train", "deck.yaml", "--stop-after", "soon"])]:
            with self.subTest(arguments=arguments):
                self.refuse(2, words, *arguments, ranks=0)

    def test_ranks_refuse_a_command_line_once(self):
        self.refuse(2, ["no command 'teach'"], "teach", "deck.yaml")
        self.refuse(2, ["--set optimizer.lr=abc"], "train", "deck.yaml", "--set", "optimizer.lr=abc")


class Data(Refused):
    """Token files."""

    def test_missing(self):
        for setting, path in (("data.train=[none.bin]", "none.bin"), ("data.train=[text.bin, 'none.bin']", "none.bin"),
                              ("data.validation=[none.bin]", "none.bin"), ("data.train=[none_*.bin]", "none_*.bin"),
                              ("data.vocabulary=none", "none")):
            self.refuse_train(3, [f"'{path}'", f"; the path is that of --set {setting}\n"], setting)
        self.refuse_train(3, ["none.bin", "No such file"], "data.train=[none.bin]")

    def test_missing_in_the_deck(self):
        self.write_deck("gone.yaml", ("train: [text.bin]", "train: [gone.bin]"))

        result = self.refuse_train(3, ["'gone.bin'"], "run.name=gone.bin", "data.validation=[text.bin]", deck="gone.yaml")

        self.assertNotIn("--set", result.err)

    def test_truncated(self):
        (self.folder / "cut.bin").write_bytes((self.folder / "text.bin").read_bytes()[:-10])
        size = (self.folder / "text.bin").stat().st_size

        self.refuse_train(3, ["cut.bin", f"expected {size} bytes", f"found {size - 10} bytes"],
                          "data.train=[cut.bin]")

    def test_truncated_in_the_header(self):
        (self.folder / "head.bin").write_bytes((self.folder / "text.bin").read_bytes()[:500])

        self.refuse_train(3, ["head.bin"], "data.train=[head.bin]")

    def test_foreign(self):
        (self.folder / "foreign.npy").write_bytes(b"\x93NUMPY nonsense")
        (self.folder / "foreign.h5").write_bytes(b"\x89HDF\r\n\x1a\n nonsense")
        (self.folder / "void.bin").write_bytes(b"")
        for name, word in [("text.txt", "tokenize"), ("foreign.npy", "foreign.npy"),
                           ("foreign.h5", "foreign.h5"), ("void.bin", "void.bin"), ("./", "'./'")]:
            with self.subTest(file=name):
                self.refuse_train(3, [word], f"data.train=[{name}]", ranks=1)

    def test_text_named_bin(self):
        (self.folder / "prose.bin").write_bytes(support.text().encode()[:4000])

        self.refuse_train(3, ["prose.bin", "below the vocabulary of 257", "token 0"],
                          "data.train=[prose.bin]")

    def test_id_beyond_the_vocabulary(self):
        ids = [1] * 600
        ids[412] = 257
        support.write_tokens(self.folder / "beyond.bin", ids)

        self.refuse_train(3, ["beyond.bin", "vocabulary of 257", "id 257 at token 412", f"byte {1024 + 824}"],
                          "data.train=[text.bin, beyond.bin]")

    def test_too_short_for_a_sample(self):
        support.write_tokens(self.folder / "short.bin", [1] * 32)

        self.refuse_train(3, ["33", "32"], "data.train=[short.bin]")

    def test_too_short_for_a_batch_of_an_epoch(self):
        support.write_tokens(self.folder / "few.bin", [1] * 100)

        self.refuse_train(3, ["global_batch"], "data.train=[few.bin]", "train.steps=0", "train.epochs=1",
                          "schedule.warmup_steps=0")


class Folders(Refused):
    """Run directories that cannot be written."""

    def test_below_a_file(self):
        self.refuse_train(5, ["text.txt/run", "run.directory"], "run.directory=text.txt/run")

    def test_checkpoints_below_a_file(self):
        result = self.run_program("train", "deck.yaml", *support.overrides(
            "parallel.data=2", "checkpoint.directory=text.txt/steps"), ranks=2)

        self.assert_refused(result, 5, "text.txt/steps")
        self.assertFalse((self.folder / "run/metrics.jsonl").exists())

    def test_read_only(self):
        (self.folder / "mounted").mkdir()
        prefix = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none mounted && exec "$@"', "sh"]
        if subprocess.run([*prefix, "true"], cwd=self.folder, capture_output=True, check=False).returncode:
            self.skipTest("no right to mount")

        command = support.command("train", "deck.yaml", *support.overrides("parallel.data=2",
                                  "run.directory=mounted/run"), ranks=2)
        found = subprocess.run([*prefix, *command], cwd=self.folder, capture_output=True, timeout=10,
                               check=False)

        self.assert_refused(support.Result(found.returncode, b"", found.stderr.decode(), 0), 5,
                            "mounted/run", "Read-only file system", "run.directory")


if __name__ == "__main__":
    support.main()
