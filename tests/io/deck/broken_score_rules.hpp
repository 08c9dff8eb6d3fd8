// SPDX-License-Identifier: Apache-2.0
// Overrides of a deck with rope that break one rule of windows, scores of attention, the maximal
// update parametrization and documents each.
#pragma once

#include "broken_overrides.hpp"

namespace hyperslab::deck::test {

inline const std::vector<BrokenOverrides>& broken_score_rules() {
  static const std::vector<BrokenOverrides> all = {
      {"model.window_full_every", {"model.window_full_every=2"}, "it says which layers have"},
      {"model.window_first_layer", {"model.window_first_layer=1"}, "it says which layers have"},
      {"model.rope_local_theta", {"model.rope_local_theta=100"}, "set model.window and"},
      {"model.rope_local_theta",
       {"model.window=4", "model.position=none", "model.rope_local_theta=100"},
       "model.position to rope, or leave it out"},
      {"model.parallel_block",
       {"model.parallel_block=true", "model.norm_place=sandwich"},
       "parallel sublayers have norms before them alone"},
      {"optimizer.name",
       {"model.mup_base_width=16", "optimizer.name=sgd"},
       "sgd has other laws: set optimizer.name to adamw or muon"},
      {"model.init",
       {"model.mup_base_width=16", "model.init=xavier"},
       "xavier has a law of the width of its own"},
      {"model.mup_base_head_width",
       {"model.mup_base_head_width=8"},
       "set model.mup_base_width to the width of that"},
      {"model.attention_scale",
       {"model.mup_base_width=16", "model.mup_base_head_width=8", "model.attention_scale=0.5"},
       "model.mup_base_head_width decides it"},
      {"data.documents", {"data.documents=masked"}, "set data.end_token to the id that ends"},
      {"data.predict_starts", {"data.predict_starts=false"}, "set data.end_token to the id"},
      {"train.loss", {"train.loss=clipped"}, "synthetic tokens have no values"},
      {"train.loss", {"train.loss=preference"}, "both answers of a pair lie in one sample"},
      {"train.loss",
       {"train.loss=preference", "parallel.context=2"},
       "a pair would lie on several ranks"},
      {"train.loss",
       {"train.loss=preference", "train.z_loss=1.0e-4"},
       "the loss is of pairs, not of tokens"},
      {"train.loss",
       {"train.loss=preference", "data.validation_fraction=0.1", "data.validation=[]"},
       "pairs would be torn"},
      {"train.kl_weight", {"train.kl_weight=0.1"}, "it belongs to a clipped loss"},
      {"train.teacher_tokens",
       {"train.teacher_tokens=4"},
       "distillation reads 1 to 32 of a teacher"},
      {"train.teacher_tokens",
       {"train.loss=distillation"},
       "distillation reads 1 to 32 of a teacher"},
      {"data.packing", {"data.packing=best_fit"}, "set data.predict_starts to false"},
      {"data.packing", {"data.packing=best_fit"}, "images and synthetic tokens have no documents"},
      {"data.packing",
       {"data.packing=document", "data.predict_starts=false", "data.end_token=0",
        "data.sampling=windows"},
       "set data.sampling to blocks"},
      {"data.packing",
       {"data.packing=document", "data.predict_starts=false", "data.end_token=0",
        "model.context=1048577"},
       "use a smaller context"},
  };
  return all;
}

}  // namespace hyperslab::deck::test
