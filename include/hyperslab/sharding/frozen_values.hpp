// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/present_buckets.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// The parameters that are not trained: values, and matrices that rest quantized.
///
/// With rooms, a rank keeps its shards alone, of quantized matrices a range of their bytes, and
/// each pass gathers them (PresentBuckets).
class FrozenValues {
 public:
  /// Setup: takes memory, binds the store's frozen group and sets the views of quantized matrices.
  /// It follows the residence's `value` and `present`. The store outlives this.
  void allocate(param::ParamStore& store, const Residence& residence, Arena& arena, DType compute);
  /// Setup. The mesh outlives this.
  void connect(const mesh::Mesh& mesh);

  /// Before layers of `unit` are enqueued on ctx (PresentBuckets::before).
  void before(Context& ctx, int unit, Order order);
  void before(Context& ctx, int unit);
  /// Values were filled from outside. Collective over kShards.
  void changed(Context& ctx);
  /// Those of a step of so many microbatches.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;

 private:
  void allocate_values(param::ParamGroup& group, const Residence& residence, Arena& arena,
                       DType compute);
  void allocate_quantized(param::ParamStore& store, const Residence& residence, Arena& arena);
  void add_quantized(std::span<const std::vector<param::QuantizedWeight*>> by_unit,
                     const mesh::Position& at, const param::Bucket& kind,
                     const Residence& residence, Arena& arena);

  PresentBuckets values_;
  PresentBuckets quantized_;
};

}  // namespace hyperslab::sharding
