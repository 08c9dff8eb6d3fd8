// SPDX-License-Identifier: Apache-2.0
// Decks of images that break one rule each.
#pragma once

#include <string>
#include <vector>

namespace hyperslab::deck::test {

struct BrokenImageRule {
  std::string key;
  std::string override;
  bool of_images;  ///< the deck is kImages, else kValid
  std::string message;
};

/// A valid deck of images for one rank on the CPU.
inline const std::string kImages = R"(model:
  family: vit
  layers: 2
  width: 48
  heads: 4
  image: 32
  patch: 8
  classes: 10
data:
  train: [synthetic]
train:
  steps: 10
  global_batch: 8
)";

inline const std::vector<BrokenImageRule>& broken_image_rules() {
  static const std::vector<BrokenImageRule> all = {
      {"parallel.context", "parallel.context=2", true, "the patches of an image are few"},
      {"model.image", "model.image=0", true,
       "give the rows and columns of pixels of an image, as 224"},
      {"model.image", "model.image=32", false,
       "only a vision transformer reads images: set model.family to vit, or leave it out"},
      {"memory.loss_rows", "memory.loss_rows=8", true, "an image has one row of logits"},
      {"train.tasks", "train.tasks=[arc]", true,
       "tasks are questions in text, and the model is of images; remove them"},
      {"train.z_loss", "train.z_loss=1.0e-4", true, "the loss of classes has no z-loss"},
      {"train.loss", "train.loss=clipped", true, "the loss of classes has no tokens"},
      {"data.token_weights", "data.token_weights=true", true, "images count alike"},
      {"train.sample_every", "train.sample_every=5", true,
       "a vision transformer generates no text; set it to 0"},
      {"model.patch", "model.patch=7", true,
       "patches of 7 x 7 pixels do not cut an image of 32 x 32 evenly; nearest: 4 or 8"},
      {"model.patch", "model.patch=0", true, "give the rows and columns of a patch, as 16"},
      {"model.patch", "model.patch=8", false,
       "only a vision transformer has patches: leave it out"},
      {"model.classes", "model.classes=1", true, "a class head needs at least 2 classes"},
      {"model.classes", "model.classes=10", false,
       "only a vision transformer has classes: leave it out"},
      {"data.documents", "data.documents=masked", true, "images have no documents"},
      {"data.packing", "data.packing=document", true, "images and synthetic tokens have no doc"},
      {"model.window", "model.window=4", true, "patches of an image see each other all"},
      {"model.attention_sinks", "model.attention_sinks=true", true,
       "sinks are of models of text: leave it out"},
      {"model.logit_softcap", "model.logit_softcap=30", true, "a class head caps no logits"},
      {"model.channels", "model.channels=2", true, "images have 3 channels, or 1, their luma"},
      {"model.vocabulary", "model.vocabulary=11", true,
       "images have no vocabulary: leave it out and give model.classes"},
      {"model.context", "model.context=16", true,
       "an image is 17 tokens (patches, and the class token with pooling token): leave it out"},
      {"model.position", "model.position=rope", true,
       "patches have two coordinates: use learned, sincos2d or none"},
      {"model.position", "model.position=sincos2d", false,
       "sincos2d is of patches of images: use learned, sinusoidal, rope or none"},
      {"model.tie_embeddings", "model.tie_embeddings=true", true,
       "images have no token table that the head could use: set it to false"},
      {"model.drop_path", "model.drop_path=0.1", false,
       "stochastic depth is built for vision transformers alone: set it to 0 and use "
       "model.dropout"},
      {"model.drop_path_rule", "model.drop_path_rule=constant", true,
       "no sublayer is skipped: give model.drop_path, or leave it out"},
      {"model.init", "model.init=xavier", false,
       "xavier is built for vision transformers alone: set it to normal and give model.init_std"},
      {"model.scale_residual_init", "model.init=xavier", true,
       "xavier gives every matrix its own standard deviation: set it to false"},
      {"model.position_std", "model.position_std=1", false,
       "positions of text begin with model.init_std: leave it out"},
      {"model.position_std", "model.position_std=1", true,
       "the model has neither learned positions nor a class token"},
      {"augment.policy_fill", "augment.policy_fill=128", true,
       "no operation uncovers pixels: give augment.policy, or leave it out"},
      {"augment.erase_area", "augment.erase_area=[0.5, 0.25]", true,
       "the least value, 0.5, is above the largest, 0.25; swap them"},
      {"augment.erase_ratio", "augment.erase_ratio=[2, 1]", true, "the least value, 2, is above"},
      {"model.label_smoothing", "model.label_smoothing=0.1", false,
       "labels are smoothed for classes of images alone: set it to 0"},
      {"data.vocabulary", "data.vocabulary=bytes", true, "images have no vocabulary: leave it out"},
      {"data.validation_fraction", "data.validation_fraction=0.1", true,
       "images are not split by the program: pack two sets and give data.validation"},
      {"data.loss_mask", "data.loss_mask=true", true,
       "every image counts: set data.loss_mask to false"},
      {"data.ignore_token", "data.ignore_token=3", true, "every class counts: leave it out"},
      {"data.decode", "data.decode=gpu", true,
       "gpu needs a GPU, and this run is on the CPU: set data.decode to auto or cpu"},
      {"checkpoint.new_head", "checkpoint.new_head=true", false,
       "only a vision transformer has a head of classes: leave it out"},
      {"checkpoint.new_head", "checkpoint.new_head=true", true,
       "without checkpoint.initial all of the model starts from random weights"},
      {"augment.scale", "augment.scale=[0.5, 0.25]", true, "the least value, 0.5, is above"},
      {"augment.ratio", "augment.ratio=[2, 1]", true, "the least value, 2, is above"},
      {"augment.repeats", "augment.repeats=3", true,
       "samples next to each other are one image, which would be mixed with itself: set "
       "augment.mix_mode to batch, or repeats to 1"},
      {"train.microbatch", "augment.mixup=0.2", true,
       "and a microbatch of 1 cuts pairs; nearest: 2"},
      {"model.width", "model.width=50", true, "sincos2d has sine and cosine of two coordinates"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
