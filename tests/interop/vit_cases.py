# SPDX-License-Identifier: Apache-2.0
"""Vision transformers beside timm and transformers: weights in and out, logits, and 20 steps of training."""

import csv

import support

import numpy
import torch
from timm.models import create_model
from timm.models._hub import save_for_hf
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

LOGITS_WITHIN = 2e-5
LOSSES_WITHIN = 2e-5
STEPS = 20
BATCH = 4
CLASSES = 10
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.05
# Our data: images of the model's size, as they are.
AS_IS = ("augment.crop=center", "augment.validation_crop=1", "augment.flip=0", "data.train=[packed]",
         "data.validation=[packed]")
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}


def spread(model):
    """Class token, norms and biases away from where they start, so that a wrong one shows."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or "cls_token" in name:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    return model.eval()


def normalized(pixels):
    """What both libraries' models read, (images, channels, rows, columns): their mean and deviation are 0.5."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5


class Vit(support.Case):
    """Both libraries."""

    figures = {}  # name -> largest difference

    def well(self, *arguments, timeout=300):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments, timeout=timeout)
        self.assertEqual(result.code, 0, result.err)
        return result

    def pack(self, size, count):
        """Packs random images; returns them as (count, size, size, 3) u8 in the set's order, and their labels."""
        rng = numpy.random.default_rng(size)
        for path in ("images", "packed"):
            if (self.folder / path).exists():
                (self.folder / path).rename(self.folder / f"{path}.{size}.old")
        pixels, labels = [], []
        for label in range(CLASSES):
            folder = self.folder / "images" / f"class{label}"
            folder.mkdir(parents=True)
            for index in range(count // CLASSES):
                image = rng.integers(0, 256, (size, size, 3), dtype=numpy.uint8)
                (folder / f"{index}.ppm").write_bytes(f"P6\n{size} {size}\n255\n".encode() + image.tobytes())
                pixels.append(image)
                labels.append(label)
        self.well("pack-images", "--input", "images", "--output", "packed")
        return numpy.stack(pixels), numpy.array(labels)

    @torch.no_grad()
    def assert_same_logits(self, case, name, model, pixels, *changes):
        """All images."""
        settings = support.overrides(*AS_IS, *changes, "train.global_batch=10", "train.microbatch=5")
        self.well("eval", f"{name}/deck.yaml", "--checkpoint", name, "--logits", "logits.npy",
                  "--predictions", "found.csv", *settings)
        found = numpy.load(self.folder / "logits.npy")
        given = model(normalized(pixels))
        expected = (given if isinstance(given, torch.Tensor) else given.logits).numpy()
        self.assertEqual(found.shape, expected.shape)
        difference = float(numpy.abs(found - expected).max())
        self.figures[case] = difference
        self.assertLessEqual(difference, LOGITS_WITHIN, f"{case}: logits up to {numpy.abs(expected).max()}")
        with open(self.folder / "found.csv", encoding="utf-8", newline="") as file:
            self.assertEqual([int(row["prediction"]) for row in csv.DictReader(file)], expected.argmax(1).tolist())

    def assert_same_weights(self, model, back):
        """Bit for bit."""
        expected, found = model.state_dict(), back.state_dict()
        self.assertEqual(expected.keys(), found.keys())
        for name, values in expected.items():
            self.assertTrue(torch.equal(found[name], values), name)

    def test_timm_in_and_out(self):
        pixels, _ = self.pack(32, 20)
        for name, options in (("token", {}), ("mean", {"class_token": False, "global_pool": "avg", "mlp_ratio": 3}),
                              ("unbiased", {"qkv_bias": False})):
            with self.subTest(name):
                torch.manual_seed(5)
                arguments = {**SMALL, **options}
                model = spread(create_model("vit_small_patch16_224", **arguments))
                folder = self.folder / f"timm_{name}"
                save_for_hf(model, folder, model_args=arguments, safe_serialization=True)

                self.well("checkpoint", "import", f"timm_{name}", "--output", f"import_{name}")
                self.well("checkpoint", "export", f"import_{name}", "--format", "timm", "--output", f"back_{name}")

                self.assert_same_logits(f"timm {name}", f"import_{name}", model, pixels)
                back = create_model(f"local-dir:{self.folder / f'back_{name}'}", pretrained=True)
                self.assert_same_weights(model, back)
                self.assertEqual(tuple(back.pretrained_cfg["mean"]), (0.5, 0.5, 0.5))

    def test_vit_small_patch16_224(self):
        pixels, labels = self.pack(224, 20)
        torch.manual_seed(6)
        model = spread(create_model("vit_small_patch16_224", num_classes=CLASSES))
        save_for_hf(model, self.folder / "small", safe_serialization=True)
        self.well("checkpoint", "import", "small", "--output", "import_small")

        self.assert_same_logits("timm vit_small_patch16_224", "import_small", model, pixels)
        self.assert_same_training(model, "import_small", pixels, labels)

    def test_another_resolution(self):
        """timm's set_input_size resamples the positions, up and down."""
        self.pack(32, 20)
        torch.manual_seed(8)
        model = spread(create_model("vit_small_patch16_224", **SMALL))
        save_for_hf(model, self.folder / "at_32", model_args=SMALL, safe_serialization=True)
        self.well("checkpoint", "import", "at_32", "--output", "import_32")
        for size in (56, 16):
            with self.subTest(size=size):
                pixels, _ = self.pack(size, 20)
                other = create_model("vit_small_patch16_224", **SMALL)
                other.load_state_dict(model.state_dict())
                other.set_input_size(img_size=size)
                self.assert_same_logits(f"timm 32 to {size}", "import_32", other.eval(), pixels, f"model.image={size}")

    def assert_same_training(self, model, name, pixels, labels):
        """Losses of 20 steps on one batch."""
        settings = support.overrides(
            *AS_IS, "run.device=cpu", "run.directory=trained", f"checkpoint.initial={name}", f"train.steps={STEPS}",
            f"train.global_batch={BATCH}", f"train.microbatch={BATCH // 2}", "train.overfit_one_batch=true",
            "train.validate_every=0", f"optimizer.lr={LEARNING_RATE}", f"optimizer.weight_decay={WEIGHT_DECAY}", "optimizer.betas=[0.9, 0.999]",
            "optimizer.clip_norm=0", "schedule.name=constant", "schedule.warmup_steps=0", "model.drop_path=0",
            "model.label_smoothing=0.1", "checkpoint.every=0")
        self.well("train", f"{name}/deck.yaml", *settings, timeout=600)
        found = support.column(self.folder / "trained", "loss")
        self.well("bench", f"{name}/deck.yaml", "--mode", "data", "--steps", 1, "--samples", "seen.npy", *settings)
        seen = numpy.load(self.folder / "seen.npy")
        order = [next(i for i, image in enumerate(pixels) if (image == each).all()) for each in seen]
        images, targets = normalized(seen), torch.from_numpy(labels[order])
        decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and n not in ("cls_token", "pos_embed")]
        others = [p for n, p in model.named_parameters() if p.dim() < 2 or n in ("cls_token", "pos_embed")]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                       {"params": others, "weight_decay": 0}], lr=LEARNING_RATE, betas=(0.9, 0.999))
        expected = []
        for _ in range(STEPS):
            loss = torch.nn.functional.cross_entropy(model(images), targets, label_smoothing=0.1)
            expected.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        difference = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        self.figures["training timm vit_small_patch16_224"] = difference
        self.assertLess(expected[-1], expected[0] - 0.5)
        self.assertLessEqual(difference, LOSSES_WITHIN, f"{found}\n{expected}")

    def test_transformers_in_and_out(self):
        pixels, _ = self.pack(24, 20)
        torch.manual_seed(7)
        config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=72, image_size=24,
                           patch_size=8, num_labels=CLASSES, hidden_act="gelu", initializer_range=0.2)
        model = spread(ViTForImageClassification(config))
        model.save_pretrained(self.folder / "theirs")
        ViTImageProcessor(size={"height": 24, "width": 24}).save_pretrained(self.folder / "theirs")
        self.well("checkpoint", "import", "theirs", "--output", "import_theirs")
        self.well("checkpoint", "export", "import_theirs", "--output", "back_theirs")

        self.assert_same_logits("transformers ViTForImageClassification", "import_theirs", model, pixels)
        back, report = ViTForImageClassification.from_pretrained(self.folder / "back_theirs", output_loading_info=True)
        self.assertFalse(any(report.values()), report)
        self.assert_same_weights(model, back)
        processor = ViTImageProcessor.from_pretrained(self.folder / "back_theirs")
        self.assertTrue(torch.allclose(processor(images=list(pixels[:3]), return_tensors="pt")["pixel_values"],
                                       normalized(pixels[:3]), atol=1e-6))
