// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "hyperslab/model/spec.hpp"
#include "hyperslab/model/stage_options.hpp"
#include "hyperslab/model/unit.hpp"

namespace hyperslab::model {

struct TransformerParts;

/// Token embedding, blocks, head with its loss: unit 0, units 1 to `layers`, unit `layers` + 1.
class Transformer final : public Architecture {
 public:
  /// `mask`: which tokens attend to which; causal for a language model.
  Transformer(const ModelSpec& spec, const StageOptions& options, ops::AttentionMask mask = {});
  ~Transformer() override;
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;
  Transformer(Transformer&&) = delete;
  Transformer& operator=(Transformer&&) = delete;

  [[nodiscard]] int units() const override;
  [[nodiscard]] param::Parametrization parametrization() const override;
  [[nodiscard]] UnitInfo info(int unit) const override;
  [[nodiscard]] Shape stream() const override;
  [[nodiscard]] Batch plan_batch(Arena& activations, ChunkEnds chunk) const override;
  [[nodiscard]] std::unique_ptr<Unit> make(int unit, param::ParamStore& params) override;
  void plan_shared(Arenas& arenas) override;
  void initialize(Context& ctx) override;

 private:
  std::unique_ptr<TransformerParts> parts_;
  struct RopeMemory {
    View cosines;
    View sines;
  };
  RopeMemory rope_;
  RopeMemory local_rope_;  ///< for layers with a window, if their base is another
};

}  // namespace hyperslab::model
