#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint export and import from the command line: there and back, and what is refused."""

import json
import pathlib
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))

import support


class Exchange(support.Case):
    """A run of each family, exported."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for family in ("llama", "gpt2"):
            cls.train(family, "train.steps=20", f"model.family={family}")
            result = cls.run_program("checkpoint", "export", f"{family}/checkpoints", "--output", f"{family}_hf")
            assert result.code == 0, result.err

    def evaluate(self, deck, checkpoint, tokens="text.bin"):
        """The loss of a token file."""
        result = self.run_program("eval", deck, "--checkpoint", checkpoint, "--json", "eval.json",
                                  *support.overrides(f"data.validation=[{tokens}]", "train.validate_batches=0"))
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "eval.json").read_text())["loss"]

    def change_config(self, folder, **values):
        """Sets keys of a config.json."""
        path = self.folder / folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")

    def imported(self, *arguments):
        """Runs an import that must succeed."""
        result = self.run_program("checkpoint", "import", *arguments)
        self.assertEqual(result.code, 0, result.err)

    def test_there_and_back_is_the_same_model(self):
        for family in ("llama", "gpt2"):
            with self.subTest(family):
                self.imported(f"{family}_hf", "--output", f"{family}_back")

                self.assertAlmostEqual(self.evaluate(f"{family}_back/deck.yaml", f"{family}_back"),
                                       self.evaluate(f"{family}/deck.yaml", f"{family}/checkpoints"), delta=1e-6)
                texts = [self.run_program("generate", "--checkpoint", checkpoint, "--prompt", "The red", "--vocab",
                                          "bytes", "--temperature", 0, "--max-tokens", 40).out
                         for checkpoint in (f"{family}/checkpoints", f"{family}_back")]
                self.assertEqual(texts[0], texts[1])
                before = support.tensors(self.folder / family / "checkpoints" / "step_00000020")
                after = support.tensors(self.folder / f"{family}_back" / "step_00000000")
                self.assertEqual(before.keys(), after.keys())
                for name, values in before.items():
                    self.assertEqual(after[name], values if name.startswith("model/") else bytearray(len(values)))

    def test_bytes_go_along_as_a_vocabulary(self):
        files = {path.name: json.loads(path.read_text(encoding="utf-8"))
                 for path in (self.folder / "llama_hf").glob("*.json")}

        tokens = files["tokenizer.json"]["model"]["vocab"]
        self.assertEqual([tokens[name] for name in ("\u0100", "\u010a", "\u0120", "A", "\u00ff", "<|endoftext|>")],
                         [0, 10, 32, 65, 255, 256])
        self.assertEqual(sorted(tokens.values()), list(range(257)))
        self.assertEqual(files["tokenizer_config.json"]["eos_token"], "<|endoftext|>")
        self.assertEqual(files["config.json"]["eos_token_id"], 256)

    def test_a_deck_goes_on_with_the_import(self):
        deck = support.DECK.replace("directory: run", "directory: more").replace("steps: 20", "steps: 3")
        (self.folder / "more.yaml").write_text(deck, encoding="utf-8")

        self.imported("llama_hf", "--output", "more/checkpoints", "--deck", "more.yaml")
        result = self.run_program("train", "more.yaml", "--set", "train.validate_every=0")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("resumed from", result.err)
        learned = self.evaluate("llama/deck.yaml", "llama/checkpoints")
        self.assertEqual(support.column(self.folder / "more", "step"), [1, 2, 3])
        self.assertLess(abs(support.column(self.folder / "more", "loss")[0] - learned), 0.3)

    def test_training_starts_from_the_import(self):
        self.imported("llama_hf", "--output", "tuned")
        self.imported("llama_hf", "--output", "other/tuned")
        # 12 blocks are an epoch: the first step sees what eval sees.
        ids = [*support.text().encode()][:12 * 32 + 1]
        support.write_tokens(self.folder / "twelve.bin", ids)
        expected = self.evaluate("tuned/deck.yaml", "tuned", "twelve.bin")
        for deck in ("tuned", "other/tuned"):
            result = self.run_program("train", f"{deck}/deck.yaml", *support.overrides(
                "data.train=[twelve.bin]", "train.steps=2", "train.global_batch=12", "train.microbatch=12"))

            self.assertEqual(result.code, 0, result.err)
            self.assertIn("starts from the weights of", result.err)
            run = self.folder / deck / "run"
            self.assertEqual(support.column(run, "step"), [1, 2])
            self.assertAlmostEqual(support.column(run, "loss")[0], expected, delta=1e-6)
        self.assertFalse((self.folder / "runs").exists())

    def test_a_head_of_its_own_is_kept(self):
        self.train("untied", "train.steps=20", "model.tie_embeddings=false", "model.family=gpt2")
        self.run_program("checkpoint", "export", "untied/checkpoints", "--output", "untied_hf")
        self.change_config("untied_hf", tie_word_embeddings=True)

        result = self.run_program("checkpoint", "import", "untied_hf", "--output", "untied_back")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("tie_word_embeddings is true, but lm_head.weight differs", result.err)
        self.assertAlmostEqual(self.evaluate("untied_back/deck.yaml", "untied_back"),
                               self.evaluate("untied/deck.yaml", "untied/checkpoints"), delta=1e-6)

    def test_begin_and_end_of_text_come_back(self):
        shutil.copytree(self.folder / "llama_hf", self.folder / "ids_hf")
        self.change_config("ids_hf", bos_token_id=0, eos_token_id=1)
        # Each file comes back as it was, so both have the ids.
        (self.folder / "ids_hf/generation_config.json").write_text('{"bos_token_id": 0, "eos_token_id": 1}', encoding="utf-8")
        self.imported("ids_hf", "--output", "ids")
        result = self.run_program("train", "ids/deck.yaml", *support.overrides(
            "data.train=[text.bin]", "train.steps=1", "train.global_batch=12", "train.microbatch=12"))
        self.assertEqual(result.code, 0, result.err)

        for checkpoint, output in (("ids", "ids_back"), ("ids/run/checkpoints", "ids_trained")):
            result = self.run_program("checkpoint", "export", checkpoint, "--output", output)

            self.assertEqual(result.code, 0, result.err)
            for name in ("config.json", "generation_config.json"):
                config = json.loads((self.folder / output / name).read_text(encoding="utf-8"))
                self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (0, 1))

    def test_dropouts_that_are_not_done_here_need_an_answer(self):
        shutil.copytree(self.folder / "gpt2_hf", self.folder / "drops_hf")
        self.change_config("drops_hf", attn_pdrop=0.5)

        result = self.run_program("checkpoint", "import", "drops_hf", "--output", "drops")
        self.assert_refused(result, 4, "attn_pdrop 0.5", "--dropout")
        self.assertFalse((self.folder / "drops").exists())
        self.imported("drops_hf", "--output", "drops", "--dropout", 0.25)
        result = self.run_program("checkpoint", "import", "drops_hf", "--output", "x", "--dropout", 1)

        self.assertIn("  dropout: 0.25\n", (self.folder / "drops/deck.yaml").read_text(encoding="utf-8"))
        self.assert_refused(result, 2, "--dropout", "below 1")

    def test_a_tokenizer_on_characters_goes_along(self):
        shutil.copytree(self.folder / "llama_hf", self.folder / "characters_hf")
        tokenizer = json.dumps(support.character_tokenizer())
        settings = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"})
        (self.folder / "characters_hf" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        (self.folder / "characters_hf" / "tokenizer_config.json").write_text(settings, encoding="utf-8")

        self.imported("characters_hf", "--output", "characters")
        generated = self.run_program("generate", "--checkpoint", "characters", "--prompt", "The dog", "--prompt", "", "--temperature",
                                     0, "--max-tokens", 5, "--stop-token", "-1", "--json", "characters.json")
        exported = self.run_program("checkpoint", "export", "characters", "--output", "characters_back")

        self.assertEqual((generated.code, exported.code), (0, 0), generated.err + exported.err)
        vocab = json.loads(tokenizer)["model"]["vocab"]
        completions = json.loads((self.folder / "characters.json").read_text(encoding="utf-8"))["completions"]
        self.assertEqual(completions[0]["prompt_ids"], [1, vocab["\u2581The"], vocab["\u2581dog"]])
        self.assertEqual(completions[1]["prompt_ids"], [1])
        for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
            self.assertEqual((self.folder / "characters_back" / name).read_text(encoding="utf-8"), content)

    def test_a_tokenizer_that_is_not_used_is_named(self):
        for name, words in (("none", ["no tokenizer.json"]), ("sentencepiece", ["tokenizer.model (SentencePiece", "save_pretrained"]),
                            ("large", ["at most 257", "found 300"])):
            folder = self.folder / f"{name}_hf"
            shutil.copytree(self.folder / "llama_hf", folder)
            (folder / "tokenizer.json").unlink()
            (folder / "tokenizer_config.json").unlink(missing_ok=True)
            if name == "sentencepiece":
                (folder / "tokenizer.model").write_bytes(b"model")
            if name == "large":
                support.write_vocabulary(self.folder / "vocabulary300", 300)
                for file in (self.folder / "vocabulary300").iterdir():
                    shutil.copy(file, folder)

            result = self.run_program("checkpoint", "import", folder.name, "--output", f"from_{name}")

            self.assertEqual(result.code, 0, result.err)
            for word in (*words, "generate will need --vocab"):
                self.assertIn(word, result.err)

    def test_a_deck_of_another_model_is_refused(self):
        for setting, words in ((("width: 32", "width: 64"), ["width: 64", "width: 32"]),
                               (("context: 32", "context: 64"), ["context: 64"]),
                               (("heads: 2", "heads: 2, rope_theta: 77"), ["rope_theta: 77"])):
            (self.folder / "other.yaml").write_text(support.DECK.replace(*setting), encoding="utf-8")

            result = self.run_program("checkpoint", "import", "llama_hf", "--output", "other", "--deck", "other.yaml")

            self.assert_refused(result, 2, "other.yaml", *words)
            self.assertFalse((self.folder / "other").exists())

    def test_a_shorter_context_is_the_same_model(self):
        deck = support.DECK.replace("context: 32", "context: 16").replace("heads: 2", "heads: 2, init_std: 0.1")
        (self.folder / "short.yaml").write_text(deck, encoding="utf-8")

        self.imported("llama_hf", "--output", "short", "--deck", "short.yaml")

        self.assertLess(self.evaluate("short/deck.yaml", "short"), 5)

    def test_refusals(self):
        (self.folder / "full").mkdir(exist_ok=True)
        (self.folder / "full" / "file").write_text("here", encoding="utf-8")
        support.write_vocabulary(self.folder / "large", 300)
        before = support.snapshot(self.folder)
        cases = [
            (2, ["--output"], ("export", "llama/checkpoints")),
            (2, ["--output"], ("import", "llama_hf")),
            (2, ["--format"], ("export", "llama/checkpoints", "--output", "x", "--format", "gguf")),
            (2, ["--dtype"], ("export", "llama/checkpoints", "--output", "x", "--dtype", "fp8")),
            (2, ["one folder"], ("export", "llama/checkpoints", "gpt2/checkpoints", "--output", "x")),
            (3, ["nowhere"], ("export", "llama/checkpoints", "--output", "x", "--vocab", "nowhere")),
            (3, ["vocabulary 'large'", "at most 257", "found 300"],
             ("export", "llama/checkpoints", "--output", "x", "--vocab", "large")),
            (4, ["nowhere"], ("export", "nowhere", "--output", "x")),
            (4, ["nowhere/config.json"], ("import", "nowhere", "--output", "x")),
            (5, ["full", "exists already"], ("export", "llama/checkpoints", "--output", "full")),
            (5, ["checkpoints already"], ("import", "llama_hf", "--output", "llama/checkpoints")),
        ]
        for code, words, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program("checkpoint", *arguments), code, *words)
        self.assertEqual(support.snapshot(self.folder), before)

    def test_values_that_are_not_finite_are_refused(self):
        shutil.copytree(self.folder / "llama_hf", self.folder / "damaged_hf")
        path = self.folder / "damaged_hf" / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[:8], "little")
        name = "model.layers.1.mlp.up_proj.weight"
        first = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0]
        data[first + 12:first + 16] = struct.pack("<f", float("nan"))
        data[first + 40:first + 44] = struct.pack("<f", float("inf"))
        path.write_bytes(data)

        result = self.run_program("checkpoint", "import", "damaged_hf", "--output", "damaged")

        self.assert_refused(result, 4, name, "holds 2 of", "not finite", "(nan) at element 3")
        self.assertFalse((self.folder / "damaged").exists())

    def test_experts_come_back_and_go_on_with_their_deck(self):
        self.train("sparse", "train.steps=10", "experts.count=3", "experts.width=24", "experts.balance=none",
                   "experts.z_weight=0.001")
        result = self.run_program("checkpoint", "export", "sparse/checkpoints", "--output", "sparse_hf")
        self.assertEqual(result.code, 0, result.err)
        deck = (self.folder / "sparse/deck.yaml").read_text(encoding="utf-8")
        self.assertEqual(deck.count("  active: 2\n"), 1)
        (self.folder / "other_sparse.yaml").write_text(deck.replace("  active: 2\n", "  active: 1\n"), encoding="utf-8")

        self.imported("sparse_hf", "--output", "sparse_back")
        self.imported("sparse_hf", "--output", "sparse_on", "--deck", "sparse/deck.yaml")
        result = self.run_program("checkpoint", "import", "sparse_hf", "--output", "x", "--deck", "other_sparse.yaml")

        self.assert_refused(result, 2, "'active: 1' must be 'active: 2'")
        expected = self.evaluate("sparse/deck.yaml", "sparse/checkpoints")
        self.assertAlmostEqual(self.evaluate("sparse_back/deck.yaml", "sparse_back"), expected, delta=1e-6)
        self.assertAlmostEqual(self.evaluate("sparse/deck.yaml", "sparse_on"), expected, delta=1e-6)

    def test_models_without_a_counterpart_are_refused(self):
        self.train("odd", "train.steps=2", "train.validate_every=0", "model.activation=relu", "model.norm=none")

        result = self.run_program("checkpoint", "export", "odd/checkpoints", "--output", "odd_hf")

        self.assert_refused(result, 2, "LlamaForCausalLM", "model.activation", "model.norm must be rmsnorm")
        self.assertFalse((self.folder / "odd_hf").exists())

    def test_several_ranks_are_refused(self):
        result = self.run_program("checkpoint", "export", "llama/checkpoints", "--output", "x", ranks=2)

        self.assert_refused(result, 2, "one rank")


if __name__ == "__main__":
    support.main()
