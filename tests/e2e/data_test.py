#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/data/*.sh without a network: files of the data sets' names under file://. Token files that change."""

import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

import support
from data_jobs import JOBS, DataJobs, sha256

GPT2 = "openai-community/gpt2/resolve/main"

# A stand-in for the package: its parquet files are lists of texts in JSON.
FAKE_PARQUET = """
import json
class Column(list):
    def to_pylist(self):
        return list(self)
class Batch(list):
    def column(self, _):
        return Column(self)
class Schema:
    names = ["text"]
class ParquetFile:
    schema_arrow = Schema()
    def __init__(self, path):
        self.rows = json.load(open(path, encoding="utf-8"))
    def iter_batches(self, columns):
        assert columns == ["text"]
        for begin in range(0, len(self.rows), 2):
            yield Batch(self.rows[begin:begin + 2])
"""


@support.unittest.skipIf(shutil.which("curl") is None, "no curl")
class Data(DataJobs):
    """Token files from what the test serves."""

    def setUp(self):
        super().setUp()
        package = self.folder / "fake" / "pyarrow"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "parquet.py").write_text(FAKE_PARQUET, encoding="utf-8")
        # GPT-2's vocabulary is checked by its published sum, which a made-up one does not have.
        vocabulary = self.folder / "data" / "gpt2"
        self.checked(self.run_program("tokenize", "--train-vocab", 300, "--input", "text.txt", "--output-vocab",
                                      self.folder / "vocabulary"))
        shutil.copytree(self.folder / "vocabulary", vocabulary)
        self.replace("lib.sh", {
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783": sha256((vocabulary / "vocab.json").read_bytes()),
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5": sha256((vocabulary / "merges.txt").read_bytes())})

    def serve_tables(self, repository, below, tables, published=True):
        """Tables of texts, and their listing."""
        listing = [{"type": "directory", "path": f"{below}/more", "size": 0}]
        for name, rows in tables.items():
            data = json.dumps(rows).encode()
            path = f"{below}/{name}" if below else name
            self.serve(f"datasets/{repository}/resolve/main/{path}", data)
            lfs = {"lfs": {"oid": sha256(data)}} if published else {}
            listing.append({"type": "file", "path": path, "size": len(data), **lfs})
        self.serve(f"api/datasets/{repository}/tree/main" + (f"/{below}" if below else ""), json.dumps(listing).encode())

    def documents(self, file, vocabulary="data/gpt2"):
        """The documents of a token file."""
        result = self.checked(self.run_program("tokenize", "--decode", "--vocab", vocabulary, "--input", file,
                                               "--document-separator", r"\x00"))
        return result.out.split("\0")

    def test_fineweb_becomes_a_token_file_for_each_table(self):
        first = [f"document {i}" for i in range(15003)]
        self.serve_tables("HuggingFaceFW/fineweb", "sample/10BT",
                          {"000.parquet": first, "001.parquet": ["other", "with\0nul", None, "<|endoftext|>\nlast"]})

        words = self.job("fineweb")

        self.assertEqual(self.documents("data/fineweb/validation_0000.bin"), first[:15000])
        self.assertEqual(self.documents("data/fineweb/train_0000.bin"), first[15000:])
        self.assertEqual(self.documents("data/fineweb/train_0001.bin"), ["other", "with nul", "<|endoftext|>\nlast"])
        self.assertIn("inputs/fineweb-124m.yaml", words)
        self.assertFalse(list((self.folder / "data/fineweb/source").iterdir()))

    def test_what_is_tokenized_is_not_fetched_again(self):
        self.serve_tables("Skylion007/openwebtext", "plain_text",
                          {"train-00000-of-2.parquet": ["a"] * 4001, "train-00001-of-2.parquet": ["b"]})
        self.job("openwebtext", "--small")
        self.assertFalse((self.folder / "data/openwebtext-small/train_0001.bin").exists())
        shutil.rmtree(self.folder / "www/datasets")

        words = self.job("openwebtext", "--small")

        self.assertNotIn("fetching", words)
        self.assertIn("data.train=", words)

    def test_openwebtext_is_found_under_its_other_name(self):
        self.serve_tables("Skylion007/openwebtext", "data", {"train-00000-of-1.parquet": ["a"] * 4001})

        self.job("openwebtext")

        self.assertEqual(self.documents("data/openwebtext/train_0000.bin"), ["a"])

    def test_fineweb_that_others_tokenized(self):
        ids = struct.pack("<256i", 20240520, 1, 2, *([0] * 253)) + struct.pack("<2H", 5, 6)
        listing = []
        for name in ("fineweb_train_000001.bin", "fineweb_train_000002.bin", "fineweb_val_000000.bin"):
            self.serve(f"datasets/kjj0/fineweb10B-gpt2/resolve/main/{name}", ids)
            listing.append({"type": "file", "path": name, "size": len(ids), "lfs": {"oid": sha256(ids)}})
        self.serve("api/datasets/kjj0/fineweb10B-gpt2/tree/main", json.dumps(listing).encode())

        self.job("fineweb", "--tokenized")

        found = sorted(path.name for path in (self.folder / "data/fineweb").glob("*.bin"))
        self.assertEqual(found, ["train_000001.bin", "train_000002.bin", "validation_000000.bin"])

    def test_wikitext_keeps_lines_and_both_tables_in_order(self):
        for name in ("wikitext-103-raw-v1", "wikitext-2-v1"):
            self.serve_tables("Salesforce/wikitext", name, {
                "train-00000-of-2.parquet": ["", " = Title = \n", ""], "train-00001-of-2.parquet": [" text \n"],
                "validation-00000-of-1.parquet": [" valid \n"], "test-00000-of-1.parquet": [" test \n"]})

        self.job("wikitext103")
        self.job("wikitext103", "--small", "--unk")

        self.assertEqual(self.documents("data/wikitext103/train.bin"), [" \n = Title = \n \n text \n"])
        self.assertEqual(self.documents("data/wikitext103/test.bin"), [" test \n"])
        self.assertEqual(self.documents("data/wikitext103-small/validation.bin"), [" valid \n"])

    def test_tinystories_trains_its_vocabulary(self):
        stories = "".join(f"Once upon a time {i} cats sat.\n<|endoftext|>\n" for i in range(20)).encode()
        script = self.jobs / "data" / "tinystories.sh"
        text = script.read_text(encoding="utf-8")
        for name, sha in [("train", "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443"),
                          ("valid", "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d")]:
            self.assertIn(sha, text)
            text = text.replace(sha, sha256(stories)).replace("5 << 30", "1 << 20")
            self.serve(f"datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-{name}.txt", stories)
        script.write_text(text, encoding="utf-8")

        self.job("tinystories")
        self.job("tinystories", "--small")

        vocabulary = "data/tinystories/vocabulary"
        self.assertEqual(len(self.documents("data/tinystories/train.bin", vocabulary)), 20)
        small = "data/tinystories-small/"
        self.assertEqual(len(self.documents(small + "train.bin", small + "vocabulary")), 18)
        self.assertEqual(len(self.documents(small + "validation.bin", small + "vocabulary")), 2)

    def test_downloads_go_on_where_they_stopped(self):
        rows = ["a"] * 4001
        self.serve_tables("Skylion007/openwebtext", "plain_text", {"train-0.parquet": rows})
        source = self.folder / "data/openwebtext/source"
        for size in (7, None):  # a part, and all of it
            shutil.rmtree(source.parent, ignore_errors=True)
            source.mkdir(parents=True)
            (source / "train-0.parquet.part").write_bytes(json.dumps(rows).encode()[:size])
            self.job("openwebtext", "--keep")
            self.assertEqual((source / "train-0.parquet").read_bytes(), json.dumps(rows).encode())
            self.assertFalse((source / "train-0.parquet.part").exists())

    def test_another_checksum_is_refused(self):
        self.serve_tables("Skylion007/openwebtext", "plain_text", {"train-0.parquet": ["a"] * 4001})
        self.serve("datasets/Skylion007/openwebtext/resolve/main/plain_text/train-0.parquet", b"damaged")

        words = self.job("openwebtext", code=3)

        self.assertIn("SHA-256", words)
        self.assertIn("published", words)
        self.assertFalse(list((self.folder / "data/openwebtext").rglob("*.p*")))

    def test_the_first_checksum_is_kept_if_none_is_published(self):
        tables = {"train-0.parquet": ["a"] * 4001}
        self.serve_tables("Skylion007/openwebtext", "plain_text", tables, published=False)
        self.assertIn("is recorded in", self.job("openwebtext", "--keep"))
        folder = self.folder / "data/openwebtext"
        (folder / "train_0000.bin").unlink()
        self.job("openwebtext", "--keep")
        (folder / "train_0000.bin").unlink()
        (folder / "source/train-0.parquet").write_bytes(b"[]")

        self.assertIn("of the first download", self.job("openwebtext", "--keep", code=3))

    def test_failures_say_why(self):
        self.assertIn("on the internet", self.job("fineweb", code=3, url="http://127.0.0.1:9"))
        self.assertIn("cannot fetch", self.job("wikitext103", code=3))
        self.assertIn("unknown option --tiny", self.job("fineweb", "--tiny", code=2))
        self.assertIn("run jobs/build.sh", self.job("fineweb", code=2, HYPERSLAB_BINARY="/nowhere"))
        self.serve_tables("HuggingFaceFW/fineweb", "sample/10BT", {"0.txt": []})
        self.assertIn("has no sample/10BT", self.job("fineweb", code=3))
        self.assertIn("--tokenized", self.job("fineweb", "--help"))

    def test_a_full_disk_is_seen_before_anything_is_fetched(self):
        self.serve_tables("HuggingFaceFW/fineweb", "sample/10BT", {"0.parquet": ["a"]})
        listing = self.folder / "www/api/datasets/HuggingFaceFW/fineweb/tree/main/sample/10BT"
        files = json.loads(listing.read_bytes())
        files[-1]["size"] = 1 << 60
        listing.write_text(json.dumps(files), encoding="utf-8")

        words = self.job("fineweb", code=5)

        self.assertIn("MiB are free", words)
        self.assertNotIn("0.parquet", words)


class ChangedFiles(support.Case):
    """Token files that change while a run without end reads them."""

    def start_endless(self, run, ranks):
        """Its process, after some steps, and its file of tokens."""
        tokens = self.folder / f"{run}.bin"
        if not tokens.exists():
            shutil.copy(self.folder / "text.bin", tokens)
        self.settings = (*support.ENDLESS, f"data.train=[{run}.bin]", "data.sampling=windows")
        process = self.start("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", f"parallel.data={max(ranks, 1)}", *self.settings), ranks=ranks)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        path = self.folder / run / "metrics.jsonl"
        before = path.read_bytes().count(b"\n") if path.exists() else 0
        self.assertTrue(support.wait_until(
            lambda: path.exists() and path.read_bytes().count(b"\n") >= before + 10, 30))
        return process, tokens

    def ended(self, process, code):
        """What it wrote to stderr."""
        err = process.communicate(timeout=20)[1].decode()
        self.assertEqual(process.returncode, code, err)
        return err

    def test_a_shortened_file_ends_the_run_with_a_line_that_names_it(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                process, tokens = self.start_endless(f"shortened{ranks}", ranks)
                size = tokens.stat().st_size

                os.truncate(tokens, 1024)

                err = self.ended(process, 3)
                lines = [line for line in err.splitlines() if line.startswith("hyperslab: ")]
                self.assertIn(len(lines), range(1, max(ranks, 1) + 1), err)
                for line in lines:
                    self.assertRegex(line, f"token file '{tokens.name}': expected the {size} bytes .* shortened while it "
                                           "was read.* do not change token files under a run")
                self.assertNotIn("Bus error", err)

    def test_a_file_that_changed_since_it_was_opened_is_no_checkpoint(self):
        process, _ = self.start_endless("touched", 2)
        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)
        earlier = self.folder / "touched/checkpoints"
        before = support.snapshot(earlier)
        process, tokens = self.start_endless("touched", 2)

        os.utime(tokens)
        process.send_signal(signal.SIGUSR1)

        err = self.ended(process, 3)
        self.assertIn(f"token file '{tokens.name}': expected the file as it was at the start", err)
        self.assertEqual(err.count("hyperslab: "), 1, err)
        self.assertEqual(support.snapshot(earlier), before)

    def test_a_resume_sees_what_changed_before_the_first_checkpoint(self):
        process, tokens = self.start_endless("edited", 0)
        status = tokens.stat()
        with tokens.open("r+b") as file:
            file.seek(2000)
            file.write(b"\x01")
        os.utime(tokens, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copy with its times

        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)

        result = self.train("edited", *self.settings, options=("--stop-after", "1"), code=4)
        self.assert_refused(result, 4, "the training data changed")


class Mixture(support.Case):
    """Training files by weights."""

    WEIGHTS = ("data.train=[text.bin, other.bin]", "data.weights=[3, 1, 0, 1]", "data.weight_steps=[13]",
               "train.validate_every=0", "data.validation=[]")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "other.txt").write_text("What is told twice is not told better.\n" * 200, encoding="utf-8")
        done = cls.run_program("tokenize", "--vocab", "bytes", "--input", "other.txt", "--output", "other.bin")
        if done.code != 0:
            raise AssertionError(done.err)

    def test_weights_hold_at_every_layout_and_after_a_resume(self):
        whole = self.train("mixed", *self.WEIGHTS)
        self.train("mixed_in_parts", *self.WEIGHTS, options=("--stop-after", "7"))
        self.train("mixed_in_parts", *self.WEIGHTS, ranks=2)
        self.train("unmixed", *self.WEIGHTS[3:], "data.train=[text.bin, other.bin]")

        # 12 steps of 12 samples at 3 to 1, then 8 of the second file alone.
        self.assertRegex(whole.err, r"mixture: 'text\.bin' 108 of 240 samples, 45 %")
        self.assertRegex(whole.err, r"mixture: 'other\.bin' 132 of 240 samples, 55 %")
        losses = support.column(self.folder / "mixed", "loss")
        parts = support.column(self.folder / "mixed_in_parts", "loss")
        self.assertEqual(len(losses), 20)
        for one, other in zip(losses, parts, strict=True):
            self.assertAlmostEqual(one, other, places=5)
        self.assertNotEqual(losses, support.column(self.folder / "unmixed", "loss"))

    def test_a_run_goes_on_with_files_apart_or_joined_as_it_began(self):
        files = ("data.train=[text.bin, other.bin]", "train.validate_every=0", "data.validation=[]")
        for name, began in (("joined", "true"), ("apart", "false")):
            self.train(name, *files, f"data.join_files={began}", options=("--stop-after", "5"))
            other = "false" if began == "true" else "true"
            refused = self.train(name, *files, f"data.join_files={other}", code=4)
            self.assertIn(f"; resume with data.join_files: {began}, as before", refused.err)
            self.train(name, *files, f"data.join_files={began}")
        self.assertNotEqual(support.column(self.folder / "joined", "loss"), support.column(self.folder / "apart", "loss"))
        # Joined files have the order of one, and so had runs that know no key.
        order = support.manifest(self.folder / "joined/checkpoints/step_00000020")["order"]
        self.assertNotIn("join_files", order)
        # One file goes on either way, and other files are other data.
        self.train("one", *files, "data.train=[text.bin]", "data.join_files=true", options=("--stop-after", "5"))
        added = self.train("one", *files, code=4)
        self.assertIn("the training data changed", added.err)
        self.train("one", *files, "data.train=[text.bin]")

    def test_files_shorter_than_a_sample_are_named(self):
        support.write_tokens(self.folder / "short.bin", list(range(20)))

        warned = self.train("with_short", "data.train=[text.bin, short.bin]", "train.steps=2", "schedule.warmup_steps=0")
        joined = self.train("short_joined", "data.train=[text.bin, short.bin]", "train.steps=2", "schedule.warmup_steps=0",
                            "data.join_files=true")

        self.assertIn("data.train: 1 of 2 files hold fewer than 33 tokens, a sample and its last target: their 20 tokens "
                      "are left out; data.join_files: true joins files", warned.err)
        self.assertNotIn("tokens are left out", joined.err)

    def test_later_weights_may_change_and_earlier_ones_not(self):
        self.train("changed", *self.WEIGHTS, options=("--stop-after", "10"))
        first, weights, *rest = self.WEIGHTS

        refused = self.train("changed", first, "data.weights=[1, 1, 0, 1]", *rest, code=4)
        self.train("changed", first, "data.weights=[3, 1, 1, 9]", *rest)

        self.assertIn("the order of samples changed", refused.err)
        self.assertIn("weights=[3, 1]", refused.err)
        self.assertIn("; resume with data.weights as before", refused.err)
        self.assertEqual(len(support.column(self.folder / "changed", "loss")), 20)


TEXTS = ["plain", "", None, "two\nlines\n\n", "<|endoftext|>\n", "nul \0 and \x1f", 'quotes " and \\n', "é 😀 \u2028", "last"]


class ParquetText(support.Case):
    """jobs/data/parquet_text.py --jsonl, and JSON lines in the program."""

    def lines(self, *options, fake="", code=0):
        """What the script writes; `fake`: a stand-in for pyarrow.parquet."""
        if fake:
            package = self.folder / "fake" / "pyarrow"
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text("", encoding="utf-8")
            (package / "parquet.py").write_text(fake, encoding="utf-8")
        environment = {**os.environ, **({"PYTHONPATH": str(self.folder / "fake")} if fake else {})}
        result = subprocess.run([sys.executable, str(JOBS / "parquet_text.py"), *options], capture_output=True, check=False,
                                timeout=60, cwd=self.folder, env=environment)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout if code == 0 else result.stderr.decode()

    def check_documents(self, lines):
        """Every text is a document of the token file, as it was."""
        command = support.command("tokenize", "--vocab", "bytes", "--jsonl", "--input", "-", "--output", "out.bin")
        subprocess.run(command, input=lines, cwd=self.folder, check=True, timeout=60, capture_output=True)
        ids = (self.folder / "out.bin").read_bytes()[1024:]
        ids = struct.unpack(f"<{len(ids) // 2}H", ids)
        expected = []
        for text in TEXTS:
            expected += [*text.encode(), 256] if text else []
        self.assertEqual(list(ids), expected)

    def test_rows_of_a_stand_in_become_documents(self):
        (self.folder / "fake.parquet").write_text(json.dumps(TEXTS), encoding="utf-8")

        self.check_documents(self.lines("--jsonl", "fake.parquet", fake=FAKE_PARQUET))

        self.assertEqual(self.lines("--jsonl", "--skip", "3", "--documents", "1", "fake.parquet", fake=FAKE_PARQUET),
                         b'{"text": "two\\nlines\\n\\n"}\n')

    def test_what_the_script_cannot_read_is_named(self):
        (self.folder / "fake.parquet").write_text(json.dumps(TEXTS), encoding="utf-8")
        (self.folder / "broken.parquet").write_text("PAR1", encoding="utf-8")
        for words, options, fake in (
                ("expected a column 'body', found text", ("--column", "body", "fake.parquet"), FAKE_PARQUET),
                ("broken.parquet: expected a parquet file", ("broken.parquet",), FAKE_PARQUET),
                ("none.parquet: expected a parquet file", ("none.parquet",), FAKE_PARQUET),
                ("pyarrow is needed, and cannot be imported: no NumPy", ("fake.parquet",), "raise ImportError('no NumPy')")):
            with self.subTest(words):
                said = self.lines(*options, fake=fake, code=1)
                self.assertIn(words, said)
                self.assertNotIn("Traceback", said)

    @support.unittest.skipUnless(importlib.util.find_spec("pyarrow"), "no pyarrow")
    def test_rows_of_parquet_become_documents(self):
        arrow = importlib.import_module("pyarrow")
        table = arrow.table({"id": list(range(len(TEXTS))), "body": TEXTS})
        importlib.import_module("pyarrow.parquet").write_table(table, str(self.folder / "real.parquet"))

        self.check_documents(self.lines("--jsonl", "--column", "body", "real.parquet"))

        self.assertIn("found id, body", self.lines("--jsonl", "real.parquet", code=1))
        self.assertIn("expected texts in the column 'id', found int", self.lines("--column", "id", "real.parquet", code=1))

    @support.unittest.skipUnless(importlib.util.find_spec("pyarrow"), "no pyarrow")
    def test_conversations_of_parquet_become_rows(self):
        arrow = importlib.import_module("pyarrow")
        said = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
        write = importlib.import_module("pyarrow.parquet").write_table
        write(arrow.table({"id": [1, 2], "messages": [said, said]}), str(self.folder / "chats.parquet"))
        write(arrow.table({"prompt": [said[:1]], "chosen": [said[1:]], "rejected": [said[1:]]}), str(self.folder / "pairs.parquet"))
        write(arrow.table({"id": [1], "chosen": [said]}), str(self.folder / "half.parquet"))

        rows = [json.loads(line) for line in self.lines("--chats", "chats.parquet").splitlines()]
        pairs = [json.loads(line) for line in self.lines("--chats", "pairs.parquet").splitlines()]

        self.assertEqual(rows, [{"messages": said}] * 2)
        self.assertEqual(pairs, [{"prompt": said[:1], "chosen": said[1:], "rejected": said[1:]}])
        self.assertIn("'chosen' and 'rejected', found id, chosen", self.lines("--chats", "half.parquet", code=1))

    def test_what_has_no_text_is_refused_or_left_out(self):
        (self.folder / "bad.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n{"text": "c"}\n', encoding="utf-8")
        arguments = ("tokenize", "--vocab", "bytes", "--input", "bad.jsonl", "--output", "bad.bin")

        self.assert_refused(self.run_program(*arguments), 3, "bad.jsonl:2: the key 'text' is missing")
        self.assertFalse((self.folder / "bad.bin").exists())
        result = self.run_program(*arguments, "--skip-broken-lines")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("1 of 3 lines are left out", result.err)
        self.assertIn("4 tokens", result.out)
        self.assert_refused(self.run_program(*arguments, "--document-separator", "blank-lines"), 2, "JSON lines")
        self.assert_refused(self.run_program("tokenize", "--vocab", "bytes", "--input", "text.txt", "--output", "t.bin",
                                             "--text-key", "body"), 2, "--text-key", "--jsonl")


class HeldOut(support.Case):
    """hold_out of jobs/quickstart/text.sh, which cuts a text into one for training and one for validation."""

    def hold_out(self, lines):
        """Exit code and the lines of both parts."""
        text = "".join(f"{line}\n" for line in lines)
        (self.folder / "whole.txt").write_text(text, encoding="utf-8")
        for part in ("train", "held"):
            (self.folder / f"{part}.txt").unlink(missing_ok=True)
        script = (f"source {JOBS.parent / 'lib.sh'}; source {JOBS.parent / 'quickstart/text.sh'}; cd {self.folder}; "
                  "hold_out whole.txt train.txt held.txt")
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=False, timeout=60)
        parts = [self.folder / f"{part}.txt" for part in ("train", "held")]
        return done.returncode, [path.read_text(encoding="utf-8").split() if path.exists() else [] for path in parts]

    def test_a_tenth_is_held_out_from_all_over_the_text(self):
        for lines in (10, 99, 100, 101, 31102):
            with self.subTest(lines=lines):
                whole = [str(line) for line in range(lines)]

                code, (train, held) = self.hold_out(whole)

                self.assertEqual(code, 0)
                self.assertEqual(sorted(train + held, key=int), whole)
                self.assertEqual((train, held), (sorted(train, key=int), sorted(held, key=int)))
                self.assertTrue(0.08 * lines <= len(held) <= 0.12 * lines, len(held))
                thirds = {3 * int(line) // lines for line in held}
                self.assertEqual(thirds, {0, 1, 2} if lines >= 30 else {2})

    def test_nine_lines_are_too_few(self):
        self.assertEqual(self.hold_out(range(9)), (3, [[], []]))


if __name__ == "__main__":
    support.main()
