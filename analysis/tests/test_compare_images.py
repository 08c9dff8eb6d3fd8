# SPDX-License-Identifier: Apache-2.0
"""What stands beside PyTorch for images and needs only NumPy: the order of images, exported weights."""
from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from analysis.compare.image_loader import folder_of
from analysis.compare.image_training import ONLY, ImageOrder, one_folder, read_images
from analysis.compare.rates import line_of, make_parser
from analysis.compare.recipe import Recipe, Weights
from analysis.compare.samples import Order
from analysis.compare.vit_rate import deck_of
from analysis.compare.vit_weights import read_export, timm_names
from analysis.errors import UserError
from analysis.tests.commands import CommandTest


def write_safetensors(path: Path, weights: Weights, dtype: str = "F32") -> None:
    header, data = {}, b""
    for name, value in weights.items():
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class CompareImages(CommandTest):
    def test_images_come_in_the_order_of_blocks_of_one_token(self) -> None:
        order = Order("blocks", 1001, 1, 7)

        np.testing.assert_array_equal(ImageOrder(1000, 7).indices(950, 120), order.starts(950, 120))

    def test_weights_of_a_folder(self) -> None:
        weights = {"head.weight": np.arange(6, dtype="<f4").reshape(2, 3), "head.bias": np.ones(2, "<f4")}
        write_safetensors(self.folder / "model.safetensors", weights)

        found = read_export(self.folder)

        np.testing.assert_array_equal(found["head.weight"], weights["head.weight"])
        write_safetensors(self.folder / "model.safetensors", weights, "BF16")
        with self.assertRaisesRegex(UserError, "head.weight is BF16, expected F32"):
            read_export(self.folder)
        (self.folder / "model.safetensors").write_bytes(b"short")
        with self.assertRaisesRegex(UserError, "no safetensors file"):
            read_export(self.folder)
        with self.assertRaisesRegex(UserError, "does not exist"):
            read_export(self.folder / "gone")

    def test_names_of_transformers_become_those_of_timm(self) -> None:
        block = "vit.encoder.layer.3."
        parts = {f"{block}attention.attention.{name}.bias": np.full(2, index, np.float32)
                 for index, name in enumerate(("query", "key", "value"))}
        one = np.zeros(1, np.float32)
        found = timm_names(parts | {
            f"{block}attention.output.dense.bias": one, f"{block}output.dense.weight": one,
            f"{block}intermediate.dense.bias": one, f"{block}layernorm_before.weight": one,
            "vit.embeddings.cls_token": one, "vit.embeddings.patch_embeddings.projection.weight": one,
            "vit.layernorm.bias": one, "classifier.weight": one})

        np.testing.assert_array_equal(found["blocks.3.attn.qkv.bias"], [0, 0, 1, 1, 2, 2])
        self.assertEqual(found.keys() - {"blocks.3.attn.qkv.bias"}, {
            "blocks.3.attn.proj.bias", "blocks.3.mlp.fc2.weight", "blocks.3.mlp.fc1.bias", "blocks.3.norm1.weight",
            "cls_token", "patch_embed.proj.weight", "norm.bias", "head.weight"})

    def test_images_of_another_size_are_refused(self) -> None:
        (self.folder / "shard.tar").write_bytes(b"P6 2 1 255\n" + bytes(6))
        np.save(self.folder / "index.npy", np.array([[0, 0, 17, 1]], np.int64))
        (self.folder / "set.json").write_text(json.dumps(
            {"format": "hyperslab images", "version": 1, "classes": ["a", "b"], "shards": [{"file": "shard.tar"}]}))

        with self.assertRaisesRegex(UserError, "image 0 has 2 x 1 pixels, expected 2 x 2"):
            read_images(str(self.folder), 2)

    def test_decks_with_augmentation_are_refused(self) -> None:
        deck = {key: values[0] for key, values in ONLY.items()} | {"augment.flip": "0.5", "data.train": "[a, b]"}

        with self.assertRaisesRegex(UserError, "augment.flip is 0.5"):
            Recipe(deck, "deck.yaml").check(ONLY)
        with self.assertRaisesRegex(UserError, "names 2 sets"):
            one_folder(Recipe(deck, "deck.yaml"), "train")


class Rates(CommandTest):
    def arguments(self, *words: str) -> argparse.Namespace:
        deck = self.folder / "deck.yaml"
        deck.write_text("model: {image: 64, patch: 8, classes: 5, width: 96, layers: 2, heads: 3}\n"
                        "data: {train: [packed/train]}\ntrain: {global_batch: 32}\n")
        return make_parser("rates", None).parse_args([str(deck), *words])

    def test_sizes_are_those_of_the_deck_and_of_overrides(self) -> None:
        found = deck_of(self.arguments("--set", "model.classes=7", "--set", "model.ffn_width=192"))

        self.assertEqual(found, {"image": 64, "patch": 8, "classes": 7, "width": 96, "layers": 2, "heads": 3,
                                 "ffn_width": 192, "pooling": "token", "batch": 32})
        self.assertEqual(folder_of(self.arguments()), Path("packed/train"))
        self.assertEqual(folder_of(self.arguments("--set", "data.train=[other]")), Path("other"))
        with self.assertRaisesRegex(UserError, "names 2 sets"):
            folder_of(self.arguments("--set", "data.train=[a,b]"))

    def test_a_line_has_the_ratio(self) -> None:
        self.assertEqual(json.loads(line_of(300.0, 200.0, "timm", {"batch": 8})), {
            "peer": "timm", "hyperslab_images_per_second": 300.0, "peer_images_per_second": 200.0, "ratio": 1.5, "batch": 8})
