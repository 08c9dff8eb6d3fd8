#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint export and import against transformers: the same logits, losses and greedy text;
adapters against PEFT and vision transformers against timm, if these can be imported.

huggingface_test.py --binary FILE [--record FILE --commit COMMIT --sources HASH]
--record writes the largest differences of the logits, with versions, to a file.
"""

import argparse
import copy
import datetime
import json
import os
import pathlib
import platform
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent.parent)]
os.environ.update(TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import support

try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers import (AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM,
                              Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM,
                              LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig,
                              MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, OlmoeConfig, OlmoeForCausalLM, Phi3Config, Phi3ForCausalLM,
                              Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

try:
    import peft
    from peft_cases import Peft
except ImportError as missing:
    print(f"PEFT is skipped: {missing}")
    peft = None

try:
    import timm
    from vit_cases import Vit
except ImportError as missing:
    print(f"timm is skipped: {missing}")
    timm = None

CONTEXT = 32
VOCABULARY = 257
LOGITS_WITHIN = 1e-4
BATCH = 4
TRAINING_RATE = 1e-3
SEED = random.SystemRandom().randrange(2 ** 32)  # of the inputs: new ones every time

# name -> overrides of the tiny deck
OURS = {
    "llama": ("model.heads=4", "model.kv_heads=2", "model.rope_theta=5000", "model.norm_eps=1e-6"),
    "llama_tied_bias": ("model.tie_embeddings=true", "model.bias=true"),
    "gpt2": ("model.family=gpt2", "model.ffn_width=72"),
    "gpt2_untied": ("model.family=gpt2", "model.tie_embeddings=false"),
    "llama_mup": ("model.mup_base_width=12",),  # logits divided by 8/3
    "mixtral": ("experts.count=4", "experts.width=24"),
    "qwen3_moe": ("experts.count=6", "experts.active=3", "experts.width=24", "experts.normalize=false",
                  "experts.first_dense=1", "model.qk_norm=head"),
    "olmoe": ("experts.count=4", "experts.active=1", "experts.width=24", "model.qk_norm=width"),
    "gpt2_mup": ("model.family=gpt2", "model.mup_base_width=8", "model.mup_base_head_width=16"),
}

GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": CONTEXT,
        "initializer_range": 0.3, "bos_token_id": 256, "eos_token_id": 256}
LLAMA = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 88, "num_attention_heads": 4,
         "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "initializer_range": 0.3}

# Both sides train without a loss of balance.
EXPERTS = {**LLAMA, "num_key_value_heads": 2, "router_aux_loss_coef": 0.0, "pad_token_id": None, "eos_token_id": 256}

# name -> (model, configuration, dtype, size of a file)
THEIRS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**GPT2), torch.float32, "5GB"),
    "gpt2_untied": (GPT2LMHeadModel, GPT2Config(**GPT2, n_inner=48, tie_word_embeddings=False),
                    torch.bfloat16, "20KB"),
    "llama": (LlamaForCausalLM, LlamaConfig(**LLAMA, num_key_value_heads=2, rope_theta=700.0),
              torch.float32, "30KB"),
    "llama_tied_bias": (LlamaForCausalLM, LlamaConfig(**LLAMA, tie_word_embeddings=True, rms_norm_eps=1e-5,
                                                      attention_bias=True, mlp_bias=True),
                        torch.float16, "5GB"),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**LLAMA, rope_parameters={
        "rope_type": "linear", "factor": 2.5, "rope_theta": 300.0}), torch.float32, "5GB"),
    "llama3": (LlamaForCausalLM, LlamaConfig(**LLAMA, num_key_value_heads=1, head_dim=12, rope_parameters={
        "rope_type": "llama3", "factor": 4.0, "rope_theta": 500.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
        "original_max_position_embeddings": 16}), torch.float32, "5GB"),
    "llama_yarn": (LlamaForCausalLM, LlamaConfig(**LLAMA, head_dim=16, rope_parameters={
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 200.0, "original_max_position_embeddings": 8}),
                   torch.float32, "5GB"),
    # Both contexts beside the object: transformers moves the first into it when angles are computed.
    "llama_yarn_beside": (LlamaForCausalLM, LlamaConfig(**LLAMA, original_max_position_embeddings=8, rope_scaling={
        "rope_type": "yarn", "factor": 4.0}, rope_theta=200.0), torch.float32, "5GB"),
    "mistral": (MistralForCausalLM, MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=None, head_dim=6),
                torch.float32, "5GB"),
    "phi3": (Phi3ForCausalLM, Phi3Config(**LLAMA, num_key_value_heads=2, pad_token_id=None, rope_parameters={
        "rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}), torch.float32, "5GB"),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**LLAMA, num_key_value_heads=2, head_dim=12), torch.float32, "5GB"),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**LLAMA, num_key_value_heads=2, pad_token_id=None, eos_token_id=256),
              torch.float32, "5GB"),
    "mistral_window": (MistralForCausalLM, MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=7),
                       torch.float32, "5GB"),
    "qwen2_window": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, num_key_value_heads=2, use_sliding_window=True,
                                                   sliding_window=5, max_window_layers=1), torch.float32, "5GB"),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**LLAMA, num_key_value_heads=2, head_dim=12, sliding_window=6,
                                               pad_token_id=None, query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
                                               final_logit_softcapping=9.0), torch.float32, "5GB"),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{**LLAMA, "num_hidden_layers": 3}, num_key_value_heads=1,
                                                   head_dim=16, sliding_window=6, query_pre_attn_scalar=16, pad_token_id=None,
                                                   sliding_window_pattern=3, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}), torch.float32, "30KB"),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig(**{**LLAMA, "intermediate_size": 72}, rotary_pct=0.5,
                                                   rotary_emb_base=300), torch.float32, "5GB"),
    "gpt_neox_serial": (GPTNeoXForCausalLM, GPTNeoXConfig(**LLAMA, use_parallel_residual=False), torch.float32,
                        "5GB"),
    "mixtral": (MixtralForCausalLM, MixtralConfig(**EXPERTS, num_local_experts=5, num_experts_per_tok=2, head_dim=12),
                torch.float32, "30KB"),
    "mixtral_window": (MixtralForCausalLM, MixtralConfig(**EXPERTS, num_local_experts=4, num_experts_per_tok=3, sliding_window=7),
                       torch.float32, "5GB"),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**EXPERTS, "num_hidden_layers": 4}, num_experts=6, num_experts_per_tok=2,
                                                      moe_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[0, 1],
                                                      norm_topk_prob=True, head_dim=12), torch.float32, "5GB"),
    "qwen3_moe_window": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**EXPERTS, num_experts=6, num_experts_per_tok=3,
                                                             moe_intermediate_size=24, use_sliding_window=True,
                                                             sliding_window=6), torch.float32, "5GB"),
    "olmoe": (OlmoeForCausalLM, OlmoeConfig(**EXPERTS, num_experts=8, num_experts_per_tok=3), torch.float32, "5GB"),
    "olmoe_normalized": (OlmoeForCausalLM, OlmoeConfig(**EXPERTS, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
                         torch.float32, "5GB"),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**LLAMA, num_key_value_heads=2, tie_word_embeddings=True),
              torch.float32, "5GB"),
}


def blocks(ids):
    """Inputs and targets of every whole sample."""
    count = (len(ids) - 1) // CONTEXT
    inputs = torch.tensor(ids[:count * CONTEXT]).view(count, CONTEXT)
    targets = torch.tensor(ids[1:count * CONTEXT + 1]).view(count, CONTEXT)
    return inputs, targets


@torch.no_grad()
def loss_of(model, ids):
    """Mean loss over a file."""
    inputs, targets = blocks(ids)
    logits = model(inputs).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


@torch.no_grad()
def greedy(model, prompt, count):
    """What the likeliest tokens make of a prompt."""
    ids = torch.tensor([prompt])
    for _ in range(count):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(prompt):].tolist()


def randomize(model):
    """Norms and biases away from one and zero, so that a wrong position shows."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.3)


class HuggingFace(support.Case):
    """Both directions, each family, tied and untied."""

    differences = []  # a row for each model whose logits were compared

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rng = random.Random(5)
        cls.text_ids = [*support.text().encode(), 256]
        cls.noise_ids = [rng.randrange(VOCABULARY) for _ in range(20 * CONTEXT + 1)]
        support.write_tokens(cls.folder / "noise.bin", cls.noise_ids)
        cls.batch_ids = cls.noise_ids[:BATCH * CONTEXT + 1]
        support.write_tokens(cls.folder / "batch.bin", cls.batch_ids)

    def run_well(self, *arguments):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments)
        self.assertEqual(result.code, 0, result.err)
        return result

    def our_loss(self, deck, checkpoint, tokens):
        """What eval says about a whole token file."""
        self.run_well("eval", deck, "--checkpoint", checkpoint, "--json", "eval.json",
                      *support.overrides(f"data.validation=[{tokens}]", "train.validate_batches=0"))
        return json.loads((self.folder / "eval.json").read_text())["loss"]

    @torch.no_grad()
    def assert_same_logits(self, case, checkpoint, model):
        """Random bytes, from one to a whole context, give the same logits within 1e-4 in fp32."""
        rng = random.Random(f"{SEED} {case}")
        largest = difference = 0.0
        lengths = [1, rng.randrange(2, CONTEXT), CONTEXT]
        for length in lengths:
            ids = [rng.randrange(1, 256) for _ in range(length)]  # an argument has no byte 0
            prompt = bytes(ids).decode("utf-8", "surrogateescape")
            self.run_well("generate", "--checkpoint", checkpoint, f"--prompt={prompt}", "--logits", "logits.npy",
                          "--max-tokens", 1, "--vocab", "bytes", "--stop-token", "-1")
            found = numpy.load(self.folder / "logits.npy")
            expected = model(torch.tensor([ids])).logits[0].numpy()
            self.assertEqual((found.dtype, found.shape), (expected.dtype, (length, VOCABULARY)))
            difference = max(difference, float(numpy.abs(found - expected).max()))
            largest = max(largest, float(numpy.abs(expected).max()))
        self.differences.append({"case": case, "tokens": lengths, "largest_logit": largest,
                                 "max_difference": difference})
        self.assertLessEqual(difference, LOGITS_WITHIN, f"{case}, inputs of seed {SEED}")

    def assert_same_model(self, deck, checkpoint, model):
        """Losses on text and noise within 1e-5 (relative above 1), and the same greedy continuation."""
        for tokens, ids in (("text.bin", self.text_ids), ("noise.bin", self.noise_ids)):
            expected = loss_of(model, ids)
            self.assertAlmostEqual(self.our_loss(deck, checkpoint, tokens), expected, delta=1e-5 * max(1, expected))
        for prompt in ("The ", "The old cow", "x"):
            count = CONTEXT - len(prompt)
            result = self.run_well("generate", "--checkpoint", checkpoint, "--prompt", prompt, "--max-tokens",
                                   count, "--temperature", 0, "--vocab", "bytes", "--stop-token", "-1")
            expected = bytes(id for id in greedy(model, list(prompt.encode()), count) if id < 256)
            self.assertEqual(result.out[len(prompt):-1], expected.decode("utf-8", "replace"))

    def test_export(self):
        for name, settings in OURS.items():
            with self.subTest(name):
                self.train(name, "train.steps=30", "train.validate_every=0", *settings)
                self.run_well("checkpoint", "export", "--format", "huggingface", f"{name}/checkpoints",
                              "--output", f"{name}_folder")

                model, report = AutoModelForCausalLM.from_pretrained(
                    self.folder / f"{name}_folder", output_loading_info=True)

                self.assertFalse(any(report.values()), report)
                self.assertEqual(model.config.eos_token_id, 256)
                self.assert_same_model(f"{name}/deck.yaml", f"{name}/checkpoints", model.float().eval())
                self.assert_same_logits(f"export {name}", f"{name}/checkpoints", model)

    def their_training(self, model, ids, steps):
        """Losses of steps of AdamW on all samples of a file."""
        model = copy.deepcopy(model).eval()  # without dropout
        inputs, targets = blocks(ids)
        optimizer = torch.optim.AdamW(model.parameters(), lr=TRAINING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
        losses = []
        for _ in range(steps):
            loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses

    def assert_same_training(self, name, model):
        """Steps on the same batch give the same losses: 5, of models with experts 20."""
        steps = 20 if hasattr(model.config, "num_experts_per_tok") else 5
        expected = self.their_training(model, self.batch_ids, steps)
        run = f"train_{name}"
        self.run_well("train", f"import_{name}/deck.yaml", *support.overrides(
            "data.train=[batch.bin]", "data.validation=[]", "train.validate_every=0", f"train.steps={steps}",
            f"train.global_batch={BATCH}", f"train.microbatch={BATCH}", f"optimizer.lr={TRAINING_RATE}",
            "optimizer.weight_decay=0", "optimizer.clip_norm=0", "schedule.name=constant",
            "schedule.warmup_steps=0", "model.dropout=0", f"run.directory={run}", "checkpoint.final=false"))
        for found, loss in zip(support.column(self.folder / run, "loss"), expected, strict=True):
            self.assertAlmostEqual(found, loss, delta=2e-4 * loss, msg=name)
        self.assertLess(expected[-1], expected[0] - 0.1)

    def test_export_narrowed(self):
        self.train("narrow", "train.steps=2", "train.validate_every=0", "model.family=gpt2")
        self.run_well("checkpoint", "export", "narrow/checkpoints", "--output", "fp32")
        wide = load_file(self.folder / "fp32" / "model.safetensors")
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            self.run_well("checkpoint", "export", "narrow/checkpoints", "--output", name, "--dtype", name)

            found = load_file(self.folder / name / "model.safetensors")
            model = AutoModelForCausalLM.from_pretrained(self.folder / name)

            self.assertEqual(model.dtype, dtype)
            self.assertEqual(found.keys(), wide.keys())
            for tensor, values in wide.items():
                self.assertTrue(torch.equal(found[tensor], values.to(dtype)), tensor)

    def test_import_and_back(self):
        for name, (kind, config, dtype, shard) in THEIRS.items():
            with self.subTest(name):
                torch.manual_seed(3)
                model = kind(config).eval()
                randomize(model)
                model = model.to(dtype)
                model.save_pretrained(self.folder / f"theirs_{name}", max_shard_size=shard)

                self.run_well("checkpoint", "import", f"theirs_{name}", "--output", f"import_{name}")
                self.run_well("checkpoint", "verify", f"import_{name}")
                self.run_well("checkpoint", "export", f"import_{name}", "--output", f"back_{name}")

                back = AutoModelForCausalLM.from_pretrained(self.folder / f"back_{name}")
                if dtype == torch.float32:  # narrowing has rounded the model's rotary frequencies
                    with torch.no_grad():
                        ids = torch.arange(CONTEXT)[None]
                        # Norms of Gemma are stored less 1, so that sums are rounded on the way.
                        within = 1e-5 if name.startswith("gemma") else 0
                        torch.testing.assert_close(back.float()(ids).logits, model(ids).logits, atol=within, rtol=0)
                for tensor, values in model.float().state_dict().items():
                    within = 1.2e-7 if name.startswith("gemma") and values.dim() == 1 else 0
                    torch.testing.assert_close(back.state_dict()[tensor], values, atol=within, rtol=0, msg=tensor)
                self.assert_same_model(f"import_{name}/deck.yaml", f"import_{name}", model.float())
                # Read again: narrowing `model` has rounded its rotary frequencies, too.
                theirs = AutoModelForCausalLM.from_pretrained(self.folder / f"theirs_{name}", dtype=torch.float32)
                self.assert_same_logits(f"import {name}", f"import_{name}", theirs.eval())
                if dtype == torch.float32:
                    self.assert_same_training(name, theirs)

    def save_changed(self, name, model, change, tensors=None):
        """Saves a model, then changes its config.json and adds tensors to its file."""
        folder = self.folder / name
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        change(config)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if tensors:
            file = folder / "model.safetensors"
            save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def test_configurations_written_in_other_ways(self):
        def other_names(config):
            for key, name in GPT2Config.attribute_map.items():
                config[key] = config.pop(name)

        def old_rope(config):
            config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
            config["rope_scaling"] = None

        torch.manual_seed(4)
        head = torch.randn(VOCABULARY, 32) / 3
        gpt2 = GPT2LMHeadModel(GPT2Config(**GPT2, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2))
        llama = LlamaForCausalLM(LlamaConfig(**LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 300.0}))
        phi3 = Phi3ForCausalLM(Phi3Config(**LLAMA, pad_token_id=None))
        cases = {
            "other_names": self.save_changed("other_names", gpt2, other_names),
            "whole_phi3": self.save_changed("whole_phi3", phi3, lambda config: None),  # goes back as Llama
            "old_rope": self.save_changed("old_rope", llama, old_rope),
            "own_head": self.save_changed("own_head", gpt2, lambda config: None, {"lm_head.weight": head}),
            "own_head_llama": self.save_changed(
                "own_head_llama", llama, lambda config: config.update(tie_word_embeddings=True)),
        }
        self.assertTrue(torch.equal(cases["own_head"].lm_head.weight, head))
        for name, model in cases.items():
            with self.subTest(name):
                self.run_well("checkpoint", "import", name, "--output", f"import_{name}")

                self.assert_same_logits(f"import {name}", f"import_{name}", model)

    def test_experts_of_a_layer_in_one_tensor(self):
        for name in ("mixtral", "qwen3_moe", "olmoe"):
            torch.manual_seed(6)
            model = THEIRS[name][0](THEIRS[name][1]).eval()
            model.config.save_pretrained(self.folder / f"fused_{name}")
            tensors = {tensor: values.contiguous() for tensor, values in model.state_dict().items()}
            self.assertTrue(any(tensor.endswith("experts.gate_up_proj") for tensor in tensors))
            save_file(tensors, self.folder / f"fused_{name}" / "model.safetensors")

            self.run_well("checkpoint", "import", f"fused_{name}", "--output", f"import_fused_{name}")

            self.assert_same_logits(f"import fused {name}", f"import_fused_{name}", model)

    def test_every_key_is_known(self):
        for name, model, odd in (("gpt2", GPT2LMHeadModel(GPT2Config(**GPT2)), False),
                                    ("llama", LlamaForCausalLM(LlamaConfig(**LLAMA)), False),
                                    ("phi3", Phi3ForCausalLM(Phi3Config(**LLAMA, pad_token_id=None)), False),
                                    *((name, THEIRS[name][0](THEIRS[name][1]), False) for name in ("mixtral", "qwen3_moe", "olmoe")),
                                    ("odd", LlamaForCausalLM(LlamaConfig(**LLAMA, my_key=1)), True)):
            model.save_pretrained(self.folder / f"keys_{name}")
            path = self.folder / f"keys_{name}" / "config.json"
            path.write_text(json.dumps({**model.config.to_dict(), **json.loads(path.read_text())}, default=str))

            command = ("checkpoint", "import", f"keys_{name}", "--output", f"known_{name}")
            if odd:
                result = self.run_program(*command)
                self.assertEqual(result.code, 4)
                self.assertIn("my_key is not known here and may decide", result.err)
                command += ("--ignore-config-key", "my_key")

            self.assertNotIn("not known", self.run_well(*command).err)

    def test_begin_and_end_of_text_come_back(self):
        for name, bos, eos in (("apart", 0, 1), ("several", 5, [6, 7]), ("none", None, 9)):
            model = LlamaForCausalLM(LlamaConfig(**LLAMA, bos_token_id=bos, eos_token_id=eos))
            model.save_pretrained(self.folder / f"ids_{name}")
            self.run_well("checkpoint", "import", f"ids_{name}", "--output", f"import_ids_{name}")
            self.run_well("checkpoint", "export", f"import_ids_{name}", "--output", f"back_ids_{name}")

            back = AutoModelForCausalLM.from_pretrained(self.folder / f"back_ids_{name}")

            for config in (back.config, back.generation_config):
                self.assertEqual((config.bos_token_id, config.eos_token_id), (bos, eos))

    def test_a_vocabulary_goes_along(self):
        self.run_well("tokenize", "--train-vocab", 300, "--input", "text.txt", "--output-vocab", "vocab")
        self.run_well("tokenize", "--vocab", "vocab", "--input", "text.txt", "--output", "words.npy")
        expected = numpy.load(self.folder / "words.npy").tolist()
        for family in ("llama", "gpt2"):
            self.train(f"words_{family}", "train.steps=2", "train.validate_every=0", f"model.family={family}",
                       "model.vocabulary=320", "data.train=[words.npy]", "data.validation=[words.npy]",
                       "data.vocabulary=vocab")
            self.run_well("checkpoint", "export", f"words_{family}/checkpoints", "--output", f"with_{family}")
            self.run_well("checkpoint", "import", f"with_{family}", "--output", f"again_{family}")

            tokenizer = AutoTokenizer.from_pretrained(self.folder / f"with_{family}")
            model = AutoModelForCausalLM.from_pretrained(self.folder / f"with_{family}")
            result = self.run_well("generate", "--checkpoint", f"again_{family}", "--prompt", "The cow",
                                   "--temperature", 0, "--max-tokens", 5, "--stop-token", "-1")

            self.assertEqual(tokenizer.encode(support.text()) + [tokenizer.eos_token_id], expected)
            self.assertEqual(model.config.eos_token_id, tokenizer.eos_token_id)
            self.assertEqual(result.out[:-1], "The cow" + tokenizer.decode(
                greedy(model, tokenizer.encode("The cow"), 5)))

    def test_bytes_go_along(self):
        self.train("of_bytes", "train.steps=2", "train.validate_every=0", "model.vocabulary=320")
        self.run_well("checkpoint", "export", "of_bytes/checkpoints", "--output", "with_bytes")

        tokenizer = AutoTokenizer.from_pretrained(self.folder / "with_bytes")
        for text in (support.text(), "é€😀 \t\r\n\x00", "".join(map(chr, range(256)))):
            self.assertEqual(tokenizer.encode(text), list(text.encode()))
            self.assertEqual(tokenizer.decode(list(text.encode())), text)
        self.assertEqual((len(tokenizer), tokenizer.eos_token_id), (257, 256))

    def test_models_that_have_no_counterpart_here_are_refused(self):
        config = LlamaConfig(**LLAMA, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
        LlamaForCausalLM(config).save_pretrained(self.folder / "stretched")

        result = self.run_program("checkpoint", "import", "stretched", "--output", "nothing")

        self.assert_refused(result, 4, "rope_parameters", "dynamic")
        self.assertFalse((self.folder / "nothing").exists())


def write_record(path, commit, sources):
    """What was compared, with which versions."""
    record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "commit": commit, "sources_sha256": sources, "python": platform.python_version(),
              "torch": torch.__version__, "transformers": transformers.__version__, "dtype": "float32",
              "seed_of_inputs": SEED, "tolerance": LOGITS_WITHIN,
              "max_difference": max(row["max_difference"] for row in HuggingFace.differences)}
    record["peft"] = "skipped"
    if peft:
        record["peft"] = {"version": peft.__version__, "max_differences": dict(sorted(Peft.figures.items()))}
    record["timm"] = "skipped"
    if timm:
        record["timm"] = {"version": timm.__version__, "max_differences": dict(sorted(Vit.figures.items()))}
    rows = ",\n".join("    " + json.dumps(row) for row in HuggingFace.differences)
    text = json.dumps(record, indent=2)[:-2] + ',\n  "logits": [\n' + rows + "\n  ]\n}\n"
    pathlib.Path(path).write_text(text, encoding="utf-8")


def main():
    """Runs the tests; only when all pass is a record written."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sources", default="unknown")
    known, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    try:
        support.main()
    except SystemExit as end:
        if known.record and not end.code:
            write_record(known.record, known.commit, known.sources)
        raise


if __name__ == "__main__":
    main()
