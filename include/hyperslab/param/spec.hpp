// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/layout/layout.hpp"
#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::comm {
class Communicator;
}

namespace hyperslab::param {

/// The role of a parameter. By it the optimizer chooses weight decay, and the deck the trained
/// parameters. `matrix` is a weight of a product in a block: Muon orthogonalizes it, it may be
/// quantized, and muP scales it. `bias` is any other value of a layer that does not decay: biases,
/// sinks, small tables.
enum class Role : std::uint8_t { matrix, embedding, head, norm, bias, router, adapter };
inline constexpr int kRoles = 7;
[[nodiscard]] std::string_view name_of(Role role);

enum class Init : std::uint8_t { normal, zeros, ones };

/// The storage of the values of frozen matrices.
enum class StorageFormat : std::uint8_t {
  compute,  ///< the dtype that the run computes in
  bf16,     ///< as compute, and only in runs that compute in bf16
  int8,     ///< ops::WeightFormat::int8; int4 and nf4 likewise
  int4,
  nf4,
};
inline constexpr std::array kStorageFormats = {StorageFormat::compute, StorageFormat::bf16,
                                               StorageFormat::int8, StorageFormat::int4,
                                               StorageFormat::nf4};
[[nodiscard]] constexpr std::string_view name_of(StorageFormat format) {
  switch (format) {
    case StorageFormat::compute: return "compute";
    case StorageFormat::bf16: return "bf16";
    case StorageFormat::int8: return "int8";
    case StorageFormat::int4: return "int4";
    case StorageFormat::nf4: return "nf4";
  }
  return "";
}

/// The format of quantized matrices.
struct QuantizationSpec {
  ops::WeightFormat format = ops::WeightFormat::int8;
  Dim group =
      64;  ///< columns that share a scale, of int4; int8 has one scale a row, nf4 groups of 64
  ops::ActivationFormat activations = ops::ActivationFormat::none;
  /// Columns that share a scale in a matrix of so many.
  [[nodiscard]] Dim group_of(Dim columns) const {
    return format == ops::WeightFormat::int8  ? columns
           : format == ops::WeightFormat::nf4 ? ops::kNormalFloatGroup
                                              : group;
  }
  friend bool operator==(const QuantizationSpec&, const QuantizationSpec&) = default;
};

/// The formats in which matrices (Role::matrix) are stored and multiplied, if not their values'
/// format.
struct MatrixStorage {
  std::optional<QuantizationSpec> frozen = std::nullopt;   ///< format of frozen matrices
  std::optional<QuantizationSpec> trained = std::nullopt;  ///< fake quantization of trained ones
  bool embeddings = false;  ///< true if `frozen` is also of tables (Role::embedding)
  bool head = false;        ///< likewise of Role::head
  /// Ranks that hold the other columns of matrices whose placement is shard(1).
  comm::Communicator* row_ranks = nullptr;

  [[nodiscard]] bool freezes(Role role) const {
    return frozen && (role == Role::matrix || (role == Role::embedding && embeddings) ||
                      (role == Role::head && head));
  }
};

/// The placement of a tensor over the axes on which it differs. What is not a shard is whole on
/// every rank: with equal gradients if it is replicated, with gradients that are terms of a sum if
/// it is partial. Over the data axis every value is replicated and every gradient partial; a
/// sharding::Residence says which data rank keeps which part of both.
struct Placements {
  layout::Placement tensor = layout::shard(0);    ///< a group of one rank counts as a shard
  layout::Placement pipeline = layout::shard(0);  ///< partial: both ends hold a tied table
  /// shard(0): an expert's, which other ranks along the axis do not hold; a group of one rank
  /// counts as replicate. Ranks that hold it have terms of its gradient.
  layout::Placement expert = layout::replicate();
};

/// The declaration of a parameter by its layer.
struct ParamSpec {
  std::string name;  ///< name in the model: "blocks.0.attention.query.weight"
  Shape shape;       ///< shape of the global tensor, one or two dimensions
  Role role = Role::matrix;
  Init init = Init::normal;
  float init_std = 0;
  Hyperslab part = {};  ///< part that this rank holds; without dimensions: the whole tensor
  Dim stored_rows = 0;  ///< first dimension in memory, with padding; 0: as `part`
  Placements placement = {};
  int replicas = 1;  ///< ranks of the tensor group that hold the same shard (key-value heads)
  int replica = 0;   ///< which of them this rank is
  /// A value that no gradient changes and no format rounds: whole on every rank in the masters'
  /// dtype, and part of the model in checkpoints.
  bool is_buffer = false;
  bool keeps_values = false;  ///< never quantized, whatever MatrixStorage says of its role
};

}  // namespace hyperslab::param
