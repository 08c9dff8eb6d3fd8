#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate: a function of checkpoint, prompt, options and seed; always valid UTF-8."""

import array
import json
import math
import os
import pty
import re
import shutil
import subprocess

import support

PROMPT = "The red "


class Generate(support.Case):
    """A model that has seen a little English."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=30")

    def generate(self, *arguments, prompt=PROMPT, tokens=60, stop="-1"):
        """What follows the prompt; without a stop token exactly `tokens` are generated."""
        result = self.run_program("generate", "--checkpoint", "run/checkpoints", "--prompt", prompt,
                                  "--max-tokens", tokens, "--stop-token", stop, *arguments)
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.out.startswith(prompt))
        self.assertTrue(result.out.endswith("\n"))
        counted = re.search(r"generated: (\d+) tokens", result.err)
        self.assertIsNotNone(counted, result.err)
        if stop == "-1":
            self.assertEqual(int(counted[1]), tokens)
        return result.out[len(prompt):-1]

    def test_a_seed_decides(self):
        first = self.generate("--seed", 3)

        self.assertEqual(self.generate("--seed", 3), first)
        self.assertNotEqual(self.generate("--seed", 4), first)

    def test_temperature_zero_is_top_k_one_whatever_the_seed(self):
        greedy = self.generate("--temperature", 0)

        self.assertEqual(self.generate("--temperature", 0, "--seed", 9), greedy)
        self.assertEqual(self.generate("--top-k", 1, "--seed", 5), greedy)
        self.assertEqual(self.generate("--top-p", "1e-9", "--seed", 6), greedy)
        self.assertEqual(self.generate("--min-p", 1, "--temperature", 3, "--seed", 7), greedy)
        self.assertTrue(greedy.isascii(), greedy)

    def test_max_tokens_cuts_the_same_text(self):
        long = self.generate("--temperature", 0, tokens=20)

        self.assertEqual(self.generate("--temperature", 0, tokens=7), long[:7])

    def test_every_id_that_the_files_of_a_model_name_ends_a_text(self):
        greedy = self.generate("--temperature", 0)
        last = greedy[max(greedy.index(letter) for letter in set(greedy))]
        for number, name in enumerate(("config.json", "generation_config.json")):
            with self.subTest(name=name):
                exported, imported = f"ends{number}", f"imported{number}"
                self.assertEqual(self.run_program("checkpoint", "export", "run", "--output", exported).code, 0)
                path = self.folder / exported / name
                written = json.loads(path.read_text(encoding="utf-8"))
                written["eos_token_id"] = [256, ord(last)]
                path.write_text(json.dumps(written), encoding="utf-8")
                self.assertEqual(self.run_program("checkpoint", "import", exported, "--output", imported).code, 0)
                shutil.rmtree(self.folder / exported)

                result = self.run_program("generate", "--checkpoint", imported, "--prompt", PROMPT, "--temperature", 0)

                self.assertEqual(result.out, PROMPT + greedy[:greedy.index(last)] + "\n")
                again = self.run_program("checkpoint", "export", imported, "--output", exported)
                self.assertEqual(again.code, 0, again.err)
                self.assertEqual(json.loads(path.read_text(encoding="utf-8"))["eos_token_id"], [256, ord(last)])

    def test_stop_token_ends_the_text_before_it(self):
        greedy = self.generate("--temperature", 0)
        last = greedy[max(greedy.index(letter) for letter in set(greedy))]

        stopped = self.generate("--temperature", 0, stop=str(ord(last)))

        self.assertEqual(stopped, greedy[:greedy.index(last)])

    def test_special_tokens_of_the_vocabulary_come_before_the_prompt(self):
        support.write_vocabulary(self.folder / "bos", 257)
        (self.folder / "bos/tokenizer_config.json").write_text('{"add_bos_token": true, "add_eos_token": true}')
        ids = {}
        for options in ((), ("--no-special-tokens",)):
            self.generate("--vocab", "bos", "--json", "ids.json", *options, tokens=1)
            report = json.loads((self.folder / "ids.json").read_text(encoding="utf-8"))
            ids[len(options)] = report["completions"][0]["prompt_ids"]

        self.assertEqual(len(ids[1]), len(PROMPT))
        self.assertEqual(ids[0], [256, *ids[1]])

    def test_special_tokens_in_a_prompt_are_parsed_on_demand(self):
        ids = {}
        for options in ((), ("--parse-special",)):
            self.generate("--json", "ids.json", *options, tokens=1, prompt="a<|endoftext|>b")
            report = json.loads((self.folder / "ids.json").read_text(encoding="utf-8"))
            ids[len(options)] = report["completions"][0]["prompt_ids"]

        self.assertEqual(ids[0], list(b"a<|endoftext|>b"))
        self.assertEqual(ids[1], [ord("a"), 256, ord("b")])

    def test_a_damaged_structure_is_refused_as_verify_refuses_it(self):
        step = self.copy_of("run", "damaged") / "checkpoints/step_00000020"
        entry = support.manifest(step)["files"][0]
        offset = entry["structure"][0][0] + 40
        file = step / entry["name"]
        data = bytearray(file.read_bytes())
        data[offset] ^= 1
        file.write_bytes(data)
        problem = f"structure of {entry['name']} at byte"

        generated = self.run_program("generate", "--checkpoint", step, "--prompt", "The", "--max-tokens", 2)

        self.assert_refused(generated, 4, problem)
        self.assertEqual(self.run_program("checkpoint", "verify", step).code, 4)

    def test_text_longer_than_the_context(self):
        greedy = self.generate("--temperature", 0, tokens=150)

        self.assertEqual(self.generate("--temperature", 0, tokens=40), greedy[:40])

    def test_a_prompt_longer_than_the_context_counts_by_its_end(self):
        prompt = support.text()[:77]

        self.assertEqual(self.generate("--temperature", 0, prompt=prompt),
                         self.generate("--temperature", 0, prompt=prompt[-32:]))

    def test_output_is_utf8_even_of_bytes_that_are_not(self):
        text = self.generate("--temperature", 100, tokens=300, prompt="é€😀")

        self.assertIn("\N{REPLACEMENT CHARACTER}", text)

    def test_an_empty_prompt_begins_a_document(self):
        self.assertEqual(len(self.generate("--temperature", 0, prompt="", tokens=5).encode()), 5)

    def test_a_step_folder_and_one_rank_under_mpirun(self):
        result = self.run_program("generate", "--checkpoint", "run/checkpoints/step_00000020",
                                  "--prompt", PROMPT, "--max-tokens", 5, ranks=1)

        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(result.out.startswith(PROMPT))

    def test_a_checkpoint_stands_alone(self):
        for arguments in (("--train-vocab", 300, "--output-vocab", "v"), ("--vocab", "v", "--output", "v.bin")):
            self.assertEqual(self.run_program("tokenize", "--input", "text.txt", *arguments).code, 0)
        self.train("bpe", "data.train=[v.bin]", "data.validation=[]", "data.vocabulary=v", "model.vocabulary=300",
                   "train.validate_every=0", "train.steps=2", "checkpoint.keep=2", "checkpoint.every=1")
        greedy = ("--temperature", 0, "--max-tokens", 8, "--prompt", PROMPT)
        expected = self.run_program("generate", "--checkpoint", "bpe/checkpoints", "--vocab", "v", *greedy)
        self.assertEqual(expected.code, 0, expected.err)
        self.assertEqual(self.run_program("checkpoint", "verify", "bpe").code, 0)
        kept = self.folder / "bpe/checkpoints/step_00000002/vocabulary"
        self.assertEqual(support.snapshot(kept)["tokenizer.json"], (self.folder / "v/tokenizer.json").read_bytes())

        away = self.folder / "away"
        away.mkdir()
        shutil.copytree(kept.parent, away / "alone")
        shutil.move(self.folder / "v", away / "v")
        for path in ("bpe", "bpe/checkpoints", "away/alone"):
            with self.subTest(path=path):
                found = self.run_program("generate", "--checkpoint", path, *greedy)
                self.assertEqual((found.code, found.out), (0, expected.out), found.err)
        export = self.run_program("checkpoint", "export", "away/alone", "--output", "away/folder")
        self.assertEqual(export.code, 0, export.err)
        self.assertIn("tokenizer.json", support.snapshot(away / "folder"))

        (away / "alone/vocabulary/tokenizer.json").write_text("{}", encoding="utf-8")
        broken = self.run_program("generate", "--checkpoint", "away/alone", *greedy)
        self.assert_refused(broken, 4, "vocabulary/tokenizer.json", "bytes, expected")
        self.assertIn("vocabulary/tokenizer.json", self.run_program("checkpoint", "verify", "away/alone").err)

    def test_a_vocabulary_that_is_nowhere(self):
        self.train("old", "data.vocabulary=null", "train.steps=2")
        manifest = self.folder / "old/checkpoints/step_00000002/manifest.json"  # as of a run that kept none
        text = manifest.read_text(encoding="utf-8").replace("vocabulary: null", "vocabulary: gone")
        manifest.write_text(text, encoding="utf-8")
        found, kept = re.search(r"CRC32C is (\w+), expected (\w+)",
                                self.run_program("generate", "--checkpoint", "old", "--prompt", PROMPT).err).groups()
        manifest.write_text(text.replace(str(int(kept, 16)), str(int(found, 16))), encoding="utf-8")

        result = self.run_program("generate", "--checkpoint", "old", "--prompt", PROMPT)

        self.assert_refused(result, 3, "keeps no vocabulary", "'gone'")
        without = self.run_program("checkpoint", "export", "old", "--output", "bare")
        self.assertEqual(without.code, 0, without.err)
        self.assertIn("gone: there are no tokenizer files", without.err)
        support.write_vocabulary(self.folder / "gone", 257)
        (self.folder / "elsewhere").mkdir()
        start = support.command("checkpoint", "export", "../old", "--output", "found")
        found = subprocess.run(start, cwd=self.folder / "elsewhere", capture_output=True, check=False)
        self.assertEqual(found.returncode, 0, found.stderr.decode())
        self.assertIn("vocab.json", support.snapshot(self.folder / "elsewhere/found"))

    def several(self, *arguments, prompts=()):
        """The JSON report of several prompts, and what was printed."""
        prompt_options = [word for prompt in prompts for word in ("--prompt", prompt)]
        result = self.run_program("generate", "--checkpoint", "run/checkpoints", *prompt_options, "--stop-token", "-1",
                                  "--json", "report.json", *arguments)
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8")), result.out

    def test_prompts_do_not_see_their_batch(self):
        prompts = ["The red ", "The old ", "A", "The wet "]
        options = ("--max-tokens", 40, "--seed", 5)

        together, printed = self.several(*options, prompts=prompts)
        apart, _ = self.several(*options, "--batch", 1, prompts=prompts)

        self.assertEqual(together["completions"], apart["completions"])
        self.assertEqual([c["prompt"] for c in together["completions"]], prompts)
        self.assertEqual(printed, "\n".join(f"{c['prompt']}{c['text']}\n" for c in together["completions"]))
        self.assertEqual(together["tokens"], 160)
        self.assertEqual(together["prompt_tokens"], sum(map(len, prompts)))
        for rate in ("prompt_tokens_per_second", "tokens_per_second"):
            self.assertGreater(together[rate], 0)

    def test_prompts_of_any_lengths_share_a_batch_and_its_cache(self):
        prompts = [support.text()[i:i + 1 + i * 11 % 45] for i in range(12)]
        options = ("--max-tokens", 30, "--seed", 5, "--stop", "e")
        apart, _ = self.several(*options, "--batch", 1, prompts=prompts)

        for more in ((), ("--batch", 5), ("--batch", 5, "--cache-tokens", 64)):
            together, _ = self.several(*options, *more, prompts=prompts)
            self.assertEqual(together["completions"], apart["completions"], more)
            self.assertEqual(together["prompt_tokens"], sum(min(len(prompt), 32) for prompt in prompts), "the context")

    def test_prompt_i_draws_from_seed_plus_i(self):
        both, _ = self.several("--max-tokens", 30, "--seed", 5, "--temperature", 1, prompts=["The ", "The "])
        second, _ = self.several("--max-tokens", 30, "--seed", 6, "--temperature", 1, prompts=["The "])

        self.assertEqual(both["completions"][1], second["completions"][0])
        self.assertNotEqual(both["completions"][0]["ids"], both["completions"][1]["ids"])

    def test_prompt_files(self):
        for text, prompts in [("one\ntwo\n", ["one", "two"]), ("one\ntwo\n\n\nthree\r\n", ["one\ntwo", "three"]),
                              ("one\r\ntwo\n\n", ["one", "two"])]:
            (self.folder / "prompts.txt").write_text(text, encoding="utf-8", newline="")
            report, _ = self.several("--prompt-file", "prompts.txt", "--max-tokens", 2)
            self.assertEqual([c["prompt"] for c in report["completions"]], prompts)

    def test_prompt_files_may_be_pipes(self):
        for name, text, prompts in (("pipe.txt", "one\ntwo\n\nthree\n", ["one\ntwo", "three"]),
                                    ("pipe.jsonl", '{"prompt": "a\\nb"}\n{"prompt": "c"}\n', ["a\nb", "c"])):
            with self.subTest(name):
                pipe = self.folder / name
                os.mkfifo(pipe)
                self.addCleanup(pipe.unlink)  # nothing may take the folder's files for texts
                writer = subprocess.Popen(["sh", "-c", f'printf %s "$0" >{name}', text], cwd=self.folder)
                report, _ = self.several("--prompt-file", name, "--max-tokens", 2)
                self.assertEqual(writer.wait(timeout=20), 0)
                self.assertEqual([c["prompt"] for c in report["completions"]], prompts)

    def test_a_pipe_that_nobody_writes_is_named_while_it_waits(self):
        pipe = self.folder / "silent.txt"
        os.mkfifo(pipe)
        self.addCleanup(pipe.unlink)
        process = self.start("generate", "--checkpoint", "run", "--prompt-file", "silent.txt", "--max-tokens", 2)
        line = process.stderr.readline().decode()
        pipe.write_text("", encoding="utf-8")  # opened and closed
        _, err = process.communicate(timeout=20)

        self.assertIn("prompt file 'silent.txt' is a pipe: reading until all who write there close it", line)
        self.assertEqual(process.returncode, 3, err)
        self.assertIn(b"expected prompts, found none", err)

    def test_a_device_without_end_is_refused(self):
        result = self.run_program("generate", "--checkpoint", "run", "--prompt-file", "/dev/zero")

        self.assert_refused(result, 3, "prompt file '/dev/zero'", "more than 1 GiB", "--prompt-file")

    def test_prompts_steer_no_terminal(self):
        words = ("generate", "--checkpoint", "run", "--prompt", "a\x1b[31mb\tc", "--max-tokens", 2)
        master, slave = pty.openpty()
        process = self.start(*words, stdout=slave)
        os.close(slave)
        _, err = process.communicate(timeout=20)
        shown = os.read(master, 65536)
        os.close(master)

        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(shown.startswith(b"a?[31mb"), shown)
        self.assertNotIn(b"\x1b", shown)
        self.assertTrue(self.run_program(*words).out.startswith("a\x1b[31mb\tc"), "into a file as it is")

    def test_json_lines_in_and_out(self):
        lines = [{"id": "x", "prompt": "The red "}, {"prompt": "The\nold "}, {"id": 3, "prompt": "A"}]
        (self.folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        report, _ = self.several("--max-tokens", 9, prompts=[line["prompt"] for line in lines])
        result = self.run_program("generate", "--checkpoint", "run", "--prompt-file", "in.jsonl", "--max-tokens", 9,
                                  "--stop-token", "-1", "--json", "out.jsonl")

        self.assertEqual(result.code, 0, result.err)
        found = [json.loads(line) for line in (self.folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual([line.pop("id") for line in found], ["x", None, 3])
        self.assertEqual(found, report["completions"])
        for bad, word in (('{"prompt": 5}', "prompt"), ('{"prompt": "a", "text": 1}', "text"), ("[1]", "object"),
                          ("[" * 100, "deep"), ('{"prompt": "a", "prompt": "b"}', "'prompt' stands twice")):
            (self.folder / "bad.jsonl").write_text('{"prompt": "a"}\n' + bad + "\n", encoding="utf-8")
            self.assert_refused(self.run_program("generate", "--checkpoint", "run", "--prompt-file", "bad.jsonl"),
                                3, "line 2", word)

    def test_stop_texts_end_a_text_before_them(self):
        greedy = self.generate("--temperature", 0)
        report, printed = self.several("--temperature", 0, "--max-tokens", 60, "--stop", "never", "--stop", greedy[20:24],
                                       prompts=[PROMPT])

        completion = report["completions"][0]
        self.assertEqual(completion["text"], greedy[:greedy.index(greedy[20:24])])
        self.assertEqual(completion["finish"], "stop")
        self.assertEqual(printed, f"{PROMPT}{completion['text']}\n")

    def test_stop_texts_of_several_prompts_in_json_lines(self):
        prompts = ["The red ", "The old ", "A", "The wet "]
        options = ("--temperature", 0, "--max-tokens", 40)
        whole, _ = self.several(*options, prompts=prompts)
        texts = [completion["text"] for completion in whole["completions"]]
        stops = [texts[0][9:12], texts[1][5:7]]
        (self.folder / "stops.jsonl").write_text(
            "".join(json.dumps({"id": i, "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts)), encoding="utf-8")
        result = self.run_program("generate", "--checkpoint", "run", "--prompt-file", "stops.jsonl", "--json", "cut.jsonl",
                                  "--stop-token", "-1", *options, *(word for stop in stops for word in ("--stop", stop)))

        self.assertEqual(result.code, 0, result.err)
        found = [json.loads(line) for line in (self.folder / "cut.jsonl").read_text(encoding="utf-8").splitlines()]
        for i, (line, text) in enumerate(zip(found, texts)):
            at = min((text.find(stop) for stop in stops if stop in text), default=-1)
            expected = (text, "count") if at < 0 else (text[:at], "stop")
            self.assertEqual((line["id"], line["text"], line["finish"]), (i, *expected))
            self.assertLessEqual(len(line["text"]), len(line["ids"]))
        self.assertEqual([line["finish"] for line in found[:2]], ["stop", "stop"])
        self.assertEqual(result.out, "\n".join(f"{line['prompt']}{line['text']}\n" for line in found))

    def test_repetition_penalty(self):
        plain = self.generate("--temperature", 0, tokens=30)
        penalized = self.generate("--temperature", 0, "--repetition-penalty", 3, tokens=30)

        self.assertEqual(self.generate("--temperature", 0, "--repetition-penalty", 1, tokens=30), plain)
        self.assertGreater(len(set(penalized)), len(set(plain)))

    def test_logits_of_the_prompt(self):
        report, _ = self.several("--logits", "logits.npy", "--temperature", 0, "--max-tokens", 1, prompts=[PROMPT])

        data = (self.folder / "logits.npy").read_bytes()
        self.assertIn(f"'shape': ({len(PROMPT)}, 257)".encode(), data[:128])
        rows = array.array("f", data[128:])
        self.assertEqual(len(rows), 257 * len(PROMPT))
        last = rows[-257:]
        self.assertEqual(max(range(257), key=last.__getitem__), report["completions"][0]["ids"][0])

    def test_log_probabilities_are_those_of_the_logits(self):
        options = ("--logprobs", 2, "--temperature", 0, "--max-tokens", 4)
        completion = self.several(*options, "--logits", "next.npy", prompts=[PROMPT])[0]["completions"][0]
        logits = array.array("f", (self.folder / "next.npy").read_bytes()[128:])[-257:]
        log_sum = math.log(sum(map(math.exp, logits)))
        likeliest = sorted(range(257), key=lambda id_: -logits[id_])[:2]

        self.assertEqual([len(completion[key]) for key in ("logprobs", "top_logprobs")], [4, 4])
        self.assertEqual([entry["id"] for entry in completion["top_logprobs"][0]], likeliest)
        for entry in completion["top_logprobs"][0]:
            self.assertAlmostEqual(entry["logprob"], logits[entry["id"]] - log_sum, places=4)
        for own, top in zip(completion["logprobs"], completion["top_logprobs"]):
            self.assertEqual(own, top[0]["logprob"])

        report, _ = self.several("--max-tokens", 4, prompts=[PROMPT])
        self.assertNotIn("logprobs", report["completions"][0])

    def test_a_prompt_that_is_not_utf8_is_printed_as_utf8(self):
        report, printed = self.several("--temperature", 0, "--max-tokens", 3, prompts=["The \udcff\udcc3 "])

        completion = report["completions"][0]
        self.assertEqual(completion["prompt"], "The \ufffd\ufffd ")
        self.assertEqual(completion["prompt_ids"], [*b"The \xff\xc3 "])
        self.assertEqual(printed, f"{completion['prompt']}{completion['text']}\n")

    def test_refusals(self):
        support.write_vocabulary(self.folder / "large", 300)
        ours = ("--checkpoint", "run/checkpoints")
        cases = [
            (2, ["--checkpoint"], ()),
            (2, ["--temperature"], (*ours, "--temperature", "-1")),
            (2, ["--temperature"], (*ours, "--temperature", "nan")),
            (2, ["--temperature"], (*ours, "--temperature", "inf")),
            (2, ["--temperature"], (*ours, "--temperature", "warm")),
            (2, ["--top-p"], (*ours, "--top-p", "0")),
            (2, ["--top-p"], (*ours, "--top-p", "1.5")),
            (2, ["--top-p"], (*ours, "--top-p", "nan")),
            (2, ["--logprobs"], (*ours, "--json", "x.json", "--logprobs", "-1")),
            (2, ["--logprobs"], (*ours, "--json", "x.json", "--logprobs", "101")),
            (2, ["--logprobs", "--json"], (*ours, "--logprobs", "1")),
            (2, ["--min-p"], (*ours, "--min-p", "-0.1")),
            (2, ["--min-p"], (*ours, "--min-p", "1.5")),
            (2, ["--min-p"], (*ours, "--min-p", "nan")),
            (2, ["--top-k"], (*ours, "--top-k", "-1")),
            (2, ["--max-tokens"], (*ours, "--max-tokens", "0")),
            (2, ["--stop-token", "257"], (*ours, "--stop-token", "257")),
            (2, ["--repetition-penalty"], (*ours, "--repetition-penalty", "0")),
            (2, ["--repetition-penalty"], (*ours, "--repetition-penalty", "nan")),
            (2, ["--batch"], (*ours, "--batch", "0")),
            (2, ["--cache-tokens"], (*ours, "--cache-tokens", "0")),
            (2, ["cache of 31 tokens", "at least 32"], (*ours, "--cache-tokens", "31")),
            (2, ["--stop"], (*ours, "--stop", "")),
            (2, ["--prompt-file"], (*ours, "--prompt", "a", "--prompt-file", "text.txt")),
            (3, ["none.txt"], (*ours, "--prompt-file", "none.txt")),
            (3, ["run"], (*ours, "--prompt-file", "run")),
            (2, ["--logits"], (*ours, "--logits", "x.npy", "--prompt", "a", "--prompt", "b")),
            (2, ["--logits"], (*ours, "--logits", "x.npy", "--prompt", "a" * 33)),
            (5, ["none/x.npy"], (*ours, "--logits", "none/x.npy", "--prompt", "a")),
            (5, ["none/x.json", "No such file"], (*ours, "--json", "none/x.json", "--max-tokens", "1")),
            (2, ["--nonsense"], (*ours, "--nonsense", "1")),
            (3, ["nowhere"], (*ours, "--vocab", "nowhere")),
            (3, ["vocabulary 'large'", "at most 257", "found 300"], (*ours, "--vocab", "large")),
            (4, ["nowhere"], ("--checkpoint", "nowhere")),
        ]
        for code, words, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program("generate", *arguments), code, *words)

    def test_two_ranks_share_a_model_and_say_what_one_says(self):
        self.train("gpt2", "model.family=gpt2", "train.steps=20")
        self.train("grouped", "model.heads=4", "model.kv_heads=1", "parallel.tensor=2", "parallel.data=1",
                   "train.steps=20", ranks=2)
        prompts = [support.text()[i:i + 1 + i * 11 % 45] for i in range(12)]
        words = [word for prompt in prompts for word in ("--prompt", prompt)]
        for run in ("run", "gpt2", "grouped"):
            with self.subTest(run=run):
                found = []
                for ranks in (0, 2):
                    result = self.run_program(
                        "generate", "--checkpoint", run, *words, "--temperature", 0, "--max-tokens", 30, "--batch", 5,
                        "--stop-token", "-1", "--logprobs", 2, "--json", "shared.json", ranks=ranks)
                    self.assertEqual(result.code, 0, result.err)
                    report = json.loads((self.folder / "shared.json").read_text(encoding="utf-8"))
                    found.append((result.out, report["completions"]))
                (text, expected), (shared_text, shared) = found
                self.assertEqual(shared_text, text)
                for one, two in zip(expected, shared):
                    self.assertEqual(two["ids"], one["ids"])
                    for a, b in zip(one["logprobs"], two["logprobs"]):
                        self.assertAlmostEqual(a, b, delta=1e-4)

    def test_what_ranks_cannot_share_is_refused(self):
        for ranks, code, words, options in (
                (3, 2, ("3 ranks cannot share 2 heads", "nearest"), ()),
                (2, 2, ("--temperature",), ("--temperature", "-1")),
                (2, 3, ("none.txt",), ("--prompt-file", "none.txt")),
                (2, 2, ("cache of 31 tokens",), ("--cache-tokens", "31")),
                (2, 4, ("keeps no average",), ("--ema",))):
            with self.subTest(options=options):
                result = self.run_program("generate", "--checkpoint", "run", *options, ranks=ranks)
                self.assert_refused(result, code, *words)


if __name__ == "__main__":
    support.main()
