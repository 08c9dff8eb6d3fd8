#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: training, merging, resuming on another layout, and folders of PEFT."""

import json
import shutil
import struct

import support

ADAPTER = ("adapter.rank=2", "adapter.alpha=6", "checkpoint.initial=base/checkpoints", "train.validate_every=0")
STEP = "step_00000020"


def logits_of(path):
    """The values of a .npy file of float32."""
    data = path.read_bytes()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    return struct.unpack(f"<{(len(data) - begin) // 4}f", data[begin:])


def read_safetensors(path):
    """Shapes and bytes of the tensors of a file in fp32, in the order of its modules."""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = {name: entry for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    names = sorted(header, key=lambda name: (name.split(".")[4], parts.index(name.split(".")[-3]), name))
    return ({name: header[name]["shape"] for name in names},
            {name: data[begin + header[name]["data_offsets"][0]:begin + header[name]["data_offsets"][1]] for name in names})


def write_safetensors(path, tensors):
    """tensors: name -> (shape, bytes of fp32)."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class Adapter(support.Case):
    """A base of each family and a run with adapters for each."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for family in ("llama", "gpt2"):
            base = f"base_{family}"
            cls.train(base, f"model.family={family}", "train.validate_every=0")
            cls.train(family, *cls.settings(family))

    @staticmethod
    def settings(family, *others):
        """Overrides of a run with adapters."""
        return (*ADAPTER, f"model.family={family}", f"checkpoint.initial=base_{family}/checkpoints", *others)

    def run_well(self, *arguments, **options):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.code, 0, result.err)
        return result

    def loss(self, checkpoint, *settings):
        """The loss that the checkpoint's own deck gives on the whole text."""
        self.run_well("eval", "--checkpoint", checkpoint, "--json", "eval.json", *support.overrides(
            "data.validation=[text.bin]", "train.validate_batches=0", *settings))
        return json.loads((self.folder / "eval.json").read_text())["loss"]

    def logits(self, checkpoint):
        """Of a prompt."""
        self.run_well("generate", "--checkpoint", checkpoint, "--prompt", "The red cow", "--vocab", "bytes",
                      "--logits", "logits.npy", "--max-tokens", 1)
        return logits_of(self.folder / "logits.npy")

    def model_of(self, folder):
        """Name -> bytes of the model's tensors."""
        return {name: values for name, values in support.tensors(self.folder / folder).items()
                if name.startswith("model/")}

    def refuse(self, code, words, *arguments, absent="nothing"):
        """A command that must fail and leave the folder as it is."""
        before = support.snapshot(self.folder)
        self.assert_refused(self.run_program(*arguments), code, *words)
        self.assertEqual(support.snapshot(self.folder), before)
        self.assertFalse((self.folder / absent).exists())

    def test_merged_is_unmerged(self):
        for family in ("llama", "gpt2"):
            with self.subTest(family):
                result = self.run_well("checkpoint", "merge", f"{family}/checkpoints", "--output", f"{family}_whole")
                self.assertIn("a whole model", result.out)
                self.run_well("checkpoint", "verify", f"{family}_whole")

                self.assertNotAlmostEqual(self.loss(f"{family}/checkpoints"), self.loss(f"base_{family}/checkpoints"),
                                          delta=1e-3)
                self.assertAlmostEqual(self.loss(f"{family}_whole"), self.loss(f"{family}/checkpoints"), delta=1e-6)
                for a, b in zip(self.logits(f"{family}_whole"), self.logits(f"{family}/checkpoints"), strict=True):
                    self.assertAlmostEqual(a, b, delta=2e-5)
                self.run_well("checkpoint", "export", f"{family}_whole", "--output", f"{family}_whole_hf")
                self.train(f"{family}_on", f"model.family={family}", f"checkpoint.initial={family}_whole",
                           "train.steps=1", "schedule.warmup_steps=0", "train.validate_every=0")

    def test_a_merged_quantized_base_is_a_whole_model(self):
        self.train("few", *self.settings("llama", "model.frozen_format=int8", "run.name=few"))
        self.run_well("checkpoint", "merge", "few/checkpoints", "--output", "few_whole")

        self.assertEqual(self.loss("few_whole"), self.loss("few_whole", "model.frozen_format=compute"))

    def test_checkpoints_of_other_adapters_are_each_evaluated_with_their_own_deck(self):
        self.train("strong", *self.settings("llama", "adapter.alpha=64"))
        both = ("llama/checkpoints", "strong/checkpoints")

        out = self.run_well("eval", "--checkpoint", *both, "--json", "both.json", *support.overrides(
            "data.validation=[text.bin]", "train.validate_batches=0")).out

        found = json.loads((self.folder / "both.json").read_text(encoding="utf-8"))
        self.assertEqual([line["loss"] for line in found], [self.loss(name) for name in both])
        self.assertEqual(out.count("adapters of rank"), 2, out)

    def test_a_base_that_trained_on_is_found_by_its_step(self):
        self.train("growing", "model.family=llama", "train.validate_every=0")
        self.train("early", *self.settings("llama", "checkpoint.initial=growing/checkpoints"))
        expected = self.loss("early/checkpoints")
        self.train("growing", "model.family=llama", "train.validate_every=0", "train.steps=25")

        self.assertEqual(self.loss("early/checkpoints"), expected)

    def test_adapters_of_random_weights_know_their_seed(self):
        self.train("random", *self.settings("llama", "checkpoint.initial=null"))

        self.refuse(4, ["another base"], "eval", "--checkpoint", "random/checkpoints", "--set", "run.seed=99")
        self.refuse(2, ["random weights"], "checkpoint", "merge", "random/checkpoints", "--output", "nothing")

    def test_merging_changes_adapted_weights_alone(self):
        self.run_well("train", "deck.yaml", *support.overrides(
            "run.directory=some", *self.settings("llama", "adapter.targets=[attention.query, mlp.down]")))
        self.run_well("checkpoint", "merge", "some/checkpoints", "--output", "some_whole")

        base, merged = (self.model_of(folder) for folder in (f"base_llama/checkpoints/{STEP}", f"some_whole/{STEP}"))
        self.assertEqual(base.keys(), merged.keys())
        changed = {name for name, values in merged.items() if values != base[name]}
        self.assertEqual(changed, {f"model/blocks.{layer}.{name}.weight" for layer in (0, 1)
                                   for name in ("attention.query", "mlp.down")})
        deck = (self.folder / f"some_whole/{STEP}")
        self.assertEqual(support.manifest(deck)["step"], 20)
        self.assertEqual({name.split("/")[0] for name in support.tensors(deck)}, {"model"})

    def test_the_base_stays_as_it_is(self):
        before = support.snapshot(self.folder / "base_llama")

        self.train("again", *self.settings("llama"))

        self.assertEqual(support.snapshot(self.folder / "base_llama"), before)
        self.assertTrue(all(".lora_" in name for name in support.tensors(self.folder / f"again/checkpoints/{STEP}")))

    def test_info_names_the_base(self):
        out = self.run_well("checkpoint", "info", "llama/checkpoints").out

        self.assertIn("adapters alone; their base: base_llama/checkpoints (fingerprint ", out)
        self.assertIn("blocks.0.attention.query.lora_A.weight", out)
        self.assertNotIn("adapters", self.run_well("checkpoint", "info", "base_llama/checkpoints").out)

    def test_resume_on_another_layout(self):
        self.train("one", *self.settings("llama", "train.steps=20"))
        self.train("two", *self.settings("llama"), options=("--stop-after", "10"))
        for name, layout in (("data", "parallel.data=2"), ("tensor", "parallel.tensor=2")):
            with self.subTest(name):
                self.copy_of("two", name)
                result = self.run_program("train", "deck.yaml", *support.overrides(
                    f"run.directory={name}", layout, *self.settings("llama")), ranks=2)

                self.assertEqual(result.code, 0, result.err)
                self.assertIn("resumed from", result.err)
                self.assert_close(support.column(self.folder / name, "loss"),
                                  support.column(self.folder / "one", "loss"), 1e-5)

    def test_export_and_import_give_the_same_adapters(self):
        for family, settings in (("llama", ()), ("gpt2", ()), ("gpt2", (
                "adapter.targets=[attention.query, attention.value, mlp.up]", "adapter.rank_scaled=true"))):
            with self.subTest(family, settings=settings):
                name = f"{family}_{len(settings)}"
                self.train(name, *self.settings(family, *settings))
                self.run_well("checkpoint", "export", f"{name}/checkpoints", "--output", f"{name}_peft")
                self.run_well("checkpoint", "import", f"{name}_peft", "--output", f"{name}_back",
                              "--base", f"base_{family}/checkpoints")

                self.assertEqual(self.model_of(f"{name}_back/step_00000000"),
                                 self.model_of(f"{name}/checkpoints/{STEP}"))
                self.assertAlmostEqual(self.loss(f"{name}_back"), self.loss(f"{name}/checkpoints"), delta=1e-6)
                config = json.loads((self.folder / f"{name}_peft/adapter_config.json").read_text())
                self.assertEqual((config["r"], config["lora_alpha"], config["fan_in_fan_out"]),
                                 (2, 6, family == "gpt2"))
                self.assertEqual(config["rank_pattern"], {"c_attn": 6} if family == "gpt2" else {})

    def test_adapters_of_phi3_go_onto_the_llama_that_it_became(self):
        self.run_well("checkpoint", "export", "llama/checkpoints", "--output", "phi_peft")
        config = json.loads((self.folder / "phi_peft/adapter_config.json").read_text(encoding="utf-8"))
        shapes, values = read_safetensors(self.folder / "phi_peft/adapter_model.safetensors")
        fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
        apart, phi3 = {}, {}
        for name in shapes:
            module, matrix = name.split(".")[-3], name.split(".")[-2]
            into = next((key for key, parts in fused.items() if module in parts), module)
            first = name.replace(module, fused.get(into, (module,))[0])
            renamed = name.replace(module, into)
            # One A for all parts of a fused module, whose B has their rows one below the other.
            apart[name] = (shapes[name], values[first if matrix == "lora_A" else name])
            rows, before = (phi3[renamed][0][0], phi3[renamed][1]) if matrix == "lora_B" and renamed in phi3 else (0, b"")
            phi3[renamed] = ([rows + shapes[name][0], shapes[name][1]], before + apart[name][1])
        order = [part for parts in fused.values() for part in parts]
        self.assertEqual([name.split(".")[-3] for name in shapes if name.split(".")[-3] in order
                          and ".0." in name and "lora_B" in name], order)
        for folder, tensors, targets in (("apart", apart, config["target_modules"]),
                                         ("phi3", phi3, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])):
            (self.folder / folder).mkdir()
            write_safetensors(self.folder / folder / "adapter_model.safetensors", tensors)
            (self.folder / folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": targets}))
            self.run_well("checkpoint", "import", folder, "--output", f"of_{folder}", "--base", "base_llama/checkpoints")

        self.assertEqual(self.model_of("of_phi3/step_00000000"), self.model_of("of_apart/step_00000000"))
        self.assertEqual(self.loss("of_phi3"), self.loss("of_apart"))

    def test_training_goes_on_from_an_import(self):
        self.run_well("checkpoint", "export", "llama/checkpoints", "--output", "more_peft")
        self.run_well("checkpoint", "import", "more_peft", "--output", "more", "--base", "base_llama/checkpoints")
        # 12 blocks are an epoch: the first step sees what eval sees.
        support.write_tokens(self.folder / "twelve.bin", [*support.text().encode()][:12 * 32 + 1])
        expected = self.loss("llama/checkpoints", "data.validation=[twelve.bin]")

        result = self.run_well("train", "more/deck.yaml", *support.overrides(
            "data.train=[twelve.bin]", "train.steps=2", "train.global_batch=12", "train.microbatch=12"))

        self.assertIn("resumed from", result.err)
        self.assertAlmostEqual(support.column(self.folder / "more/run", "loss")[0], expected, delta=1e-6)
        self.assertTrue((self.folder / "more/step_00000002").exists())

    def test_a_deck_goes_on_with_an_import(self):
        self.run_well("checkpoint", "export", "llama/checkpoints", "--output", "deck_peft")
        deck = support.DECK.replace("directory: run", "directory: own").replace(
            "{every: 10}", "{every: 10, initial: base_llama/checkpoints}")
        for name, rank in (("own", 2), ("other", 3)):
            (self.folder / f"{name}.yaml").write_text(deck + f"adapter: {{rank: {rank}, alpha: 6}}\n", encoding="utf-8")
        importing = ("checkpoint", "import", "deck_peft", "--base", "base_llama/checkpoints", "--output")

        self.refuse(2, ["other.yaml", "section adapter", "rank: 2"], *importing, "nothing", "--deck", "other.yaml")
        self.run_well(*importing, "own/checkpoints", "--deck", "own.yaml")
        result = self.run_well("train", "own.yaml", *support.overrides("train.steps=2", "train.validate_every=0"))

        self.assertIn("resumed from", result.err)
        self.assertLess(support.column(self.folder / "own", "loss")[0],
                        support.column(self.folder / "llama", "loss")[0])

    def test_merge_refuses(self):
        for code, words, arguments in (
                (4, ["another base", "fingerprint"], ["llama/checkpoints", "--base", "base_llama/checkpoints/step_00000010"]),
                (4, ["another model"], ["llama/checkpoints", "--base", "base_gpt2/checkpoints"]),
                (4, ["adapters alone"], ["llama/checkpoints", "--base", "llama/checkpoints"]),
                (4, ["whole model"], ["base_llama/checkpoints"]),
                (4, ["no such folder"], ["llama/checkpoints", "--base", "nowhere"]),
                (2, ["one folder"], ["llama/checkpoints", "gpt2/checkpoints"])):
            with self.subTest(arguments):
                self.refuse(code, words, "checkpoint", "merge", *arguments, "--output", "nothing")
        self.refuse(2, ["--output"], "checkpoint", "merge", "llama/checkpoints")
        self.refuse(5, ["exists"], "checkpoint", "merge", "llama/checkpoints", "--output", "base_llama")

    def test_other_commands_refuse_another_base(self):
        for words in (["generate", "--base", "base_llama/checkpoints/step_00000010", "--prompt", "x"],
                      ["eval", "--set", "checkpoint.initial=base_llama/checkpoints/step_00000010"]):
            with self.subTest(words[0]):
                self.refuse(4, ["another base"], words[0], "--checkpoint", "llama/checkpoints", *words[1:])

    def test_decks_that_do_not_fit(self):
        for settings, words in ((("adapter.targets=[attention.queries]",), ["adapter.targets", "attention.query"]),
                                (("adapter.rank=-1",), ["adapter.rank"]),
                                (("adapter.rank=0", "adapter.dropout=0.1"), ["adapter.rank"]),
                                (("adapter.targets=[mlp.gate]", "model.family=gpt2"), ["mlp.gate"])):
            with self.subTest(settings):
                self.refuse(2, words, "train", "deck.yaml", *support.overrides(
                    "run.directory=nothing", *self.settings("llama", *settings)))

    def test_folders_that_are_not_taken(self):
        self.run_well("checkpoint", "export", "llama/checkpoints", "--output", "good_peft")
        for number, (change, words) in enumerate((
                ({"lora_alpha": 0}, ["lora_alpha is 0, expected more than 0: with 0 the adapters add nothing"]),
                ({"use_dora": True}, ["use_dora"]), ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
                ({"bias": "all"}, ["bias"]), ({"layers_to_transform": [0]}, ["layers_to_transform"]),
                ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]),
                ({"new_setting": 3}, ["new_setting"]), ({"peft_type": "IA3"}, ["peft_type is IA3"]),
                ({"target_modules": ["lm_head"]}, ["target_modules names lm_head"]),
                ({"rank_pattern": {"q_proj": 4}}, ["rank_pattern", "q_proj"]),
                ({"alpha_pattern": {"q_proj": 4}}, ["alpha_pattern", "q_proj"]),
                ({"r": 3}, ["lora_A (3, 32)"]), ({"r": "two"}, ["damaged JSON"]))):
            with self.subTest(change):
                folder = self.folder / f"bad_peft_{number}"
                shutil.copytree(self.folder / "good_peft", folder)
                path = folder / "adapter_config.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
                self.refuse(4, words, "checkpoint", "import", folder.name, "--output", "nothing",
                            "--base", "base_llama/checkpoints")
        self.refuse(4, ["no adapters of the base's blocks"], "checkpoint", "import", "good_peft", "--output", "nothing",
                    "--base", "base_gpt2/checkpoints")
        self.refuse(2, ["--base"], "checkpoint", "import", "good_peft", "--output", "nothing")


if __name__ == "__main__":
    support.main()
