// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "hyperslab/model/spec.hpp"
#include "hyperslab/model/stage_options.hpp"
#include "hyperslab/model/unit.hpp"

namespace hyperslab::model {

struct TransformerParts;

/// Patch embedding, blocks in which all tokens see each other, class head with its loss
/// (Dosovitskiy et al. 2021): unit 0, units 1 to `layers`, unit `layers` + 1.
class VisionTransformer final : public Architecture {
 public:
  VisionTransformer(const ModelSpec& spec, const StageOptions& options);
  ~VisionTransformer() override;
  VisionTransformer(const VisionTransformer&) = delete;
  VisionTransformer& operator=(const VisionTransformer&) = delete;
  VisionTransformer(VisionTransformer&&) = delete;
  VisionTransformer& operator=(VisionTransformer&&) = delete;

  [[nodiscard]] int units() const override;
  [[nodiscard]] param::Parametrization parametrization() const override;
  [[nodiscard]] UnitInfo info(int unit) const override;
  [[nodiscard]] Shape stream() const override;
  [[nodiscard]] Batch plan_batch(Arena& activations, ChunkEnds chunk) const override;
  [[nodiscard]] std::unique_ptr<Unit> make(int unit, param::ParamStore& params) override;
  void plan_shared(Arenas& arenas) override;
  void initialize(Context& /*ctx*/) override {}

 private:
  std::unique_ptr<TransformerParts> parts_;
};

/// The architecture of a family.
[[nodiscard]] std::unique_ptr<Architecture> make_architecture(const ModelSpec& spec,
                                                              const StageOptions& options);

}  // namespace hyperslab::model
