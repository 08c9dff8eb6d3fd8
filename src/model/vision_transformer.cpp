// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/vision_transformer.hpp"

#include <string>

#include "hyperslab/model/transformer.hpp"
#include "vision_units.hpp"

namespace hyperslab::model {

VisionTransformer::VisionTransformer(const ModelSpec& spec, const StageOptions& options)
    : parts_(std::make_unique<TransformerParts>()) {
  parts_->spec = spec;
  parts_->options = options;
  parts_->block = block_config(spec, options, {ops::AttentionMask::Kind::none});
}

VisionTransformer::~VisionTransformer() = default;

int VisionTransformer::units() const { return static_cast<int>(parts_->spec.layers) + 2; }

param::Parametrization VisionTransformer::parametrization() const {
  return parts_->spec.parametrization();
}

Shape VisionTransformer::stream() const { return parts_->stream(); }

Architecture::UnitInfo VisionTransformer::info(int unit) const {
  const ModelSpec& spec = parts_->spec;
  if (unit == 0) return {"embedding", embedding_cost(spec)};
  if (unit <= spec.layers)
    return {"blocks." + std::to_string(unit - 1), block_cost(spec, unit - 1)};
  return {"head", head_cost(spec)};
}

Batch VisionTransformer::plan_batch(Arena& activations, ChunkEnds chunk) const {
  const Dim B = parts_->options.B;
  const ImageSpec& image = parts_->spec.image;
  Batch batch;
  if (chunk.begins) {
    batch.patches = activations.take(parts_->options.compute,
                                     {B, image.patches(), image.patch_values()}, "patches");
  }
  if (chunk.ends) {
    batch.labels = activations.take(DType::i32, {B, 2}, "labels");
    batch.label_weights = activations.take(DType::f32, {B}, "label weights");
  }
  batch.sample_position = activations.take(DType::i64, {B}, "sample positions");
  return batch;
}

std::unique_ptr<Unit> VisionTransformer::make(int unit, param::ParamStore& params) {
  if (unit == 0) return std::make_unique<PatchUnit>(params, *parts_);
  if (unit <= parts_->spec.layers) {
    return std::make_unique<TransformerBlock>(params, *parts_, unit - 1);
  }
  return std::make_unique<ClassUnit>(params, *parts_);
}

void VisionTransformer::plan_shared(Arenas& arenas) {
  parts_->scratch = nn::plan_scratch(arenas.scratch, nn::all_branches(parts_->block), parts_->block,
                                     parts_->activations(), parts_->options.training);
}

std::unique_ptr<Architecture> make_architecture(const ModelSpec& spec,
                                                const StageOptions& options) {
  if (spec.is_of_images()) return std::make_unique<VisionTransformer>(spec, options);
  return std::make_unique<Transformer>(spec, options);
}

}  // namespace hyperslab::model
