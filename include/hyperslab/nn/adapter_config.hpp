// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab::nn {

/// A linear layer of a block that an adapter may be added to.
enum class AdapterTarget : std::uint8_t { query, key, value, output, gate, up, down };
inline constexpr std::array kAdapterTargets = {
    AdapterTarget::query, AdapterTarget::key, AdapterTarget::value, AdapterTarget::output,
    AdapterTarget::gate,  AdapterTarget::up,  AdapterTarget::down};
/// "attention.query", the end of the layer's name.
[[nodiscard]] constexpr std::string_view name_of(AdapterTarget target) {
  switch (target) {
    case AdapterTarget::query: return "attention.query";
    case AdapterTarget::key: return "attention.key";
    case AdapterTarget::value: return "attention.value";
    case AdapterTarget::output: return "attention.output";
    case AdapterTarget::gate: return "mlp.gate";
    case AdapterTarget::up: return "mlp.up";
    case AdapterTarget::down: return "mlp.down";
  }
  return "";
}

/// True if the layer of this name is the target, or an expert's: "blocks.0.experts.3.gate" and
/// "blocks.0.experts.shared.gate" are mlp.gate as well.
[[nodiscard]] bool is_target(std::string_view layer, AdapterTarget target);

/// Deck section `adapter`: low-rank updates of frozen linear layers (Hu et al. 2021, LoRA).
/// y = x W^T + b + scale * (x A^T) B^T with A: (rank, C_in) and B: (C_out, rank).
struct AdapterConfig {
  Dim rank = 0;  ///< 0: no adapters, the model is trained itself
  double alpha = 16;
  bool rank_scaled = false;                 ///< rsLoRA (Kalajdzievski 2023)
  std::vector<AdapterTarget> targets = {};  ///< empty: all
  double dropout = 0;                       ///< rate for the adapter's input alone

  [[nodiscard]] explicit operator bool() const { return rank > 0; }
  /// alpha / rank, or alpha / sqrt(rank) if rank_scaled.
  [[nodiscard]] float scale() const;
  /// True if the layer of this name, "blocks.0.attention.query", has an adapter.
  [[nodiscard]] bool applies_to(std::string_view layer) const;
  /// True if layers of feed-forward networks have adapters, and so have those of all experts.
  [[nodiscard]] bool is_of_mlp() const;
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

}  // namespace hyperslab::nn
