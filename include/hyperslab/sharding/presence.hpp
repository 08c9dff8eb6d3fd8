// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/gradient_sums.hpp"
#include "hyperslab/sharding/present_values.hpp"
#include "hyperslab/sharding/residence.hpp"

namespace hyperslab::sharding {

/// Brings parameters from where they rest to where layers use them, and gradients back. Owns the
/// memory of masters, values and gradients of a stage.
class Presence {
 public:
  /// `overlaps_updates`: updates run beside the next forward pass.
  explicit Presence(const Residence& residence = zero(0), bool overlaps_updates = false)
      : residence_(residence), overlaps_updates_(overlaps_updates) {}

  /// The dtypes in which parameters are stored. master: f32, or f64 if computing in f64; gradient:
  /// likewise, or bf16 if computing in that.
  struct DTypes {
    DType master;
    DType compute;
    DType gradient;
  };
  [[nodiscard]] bool overlaps_updates() const { return overlaps_updates_; }
  /// The arenas that memory is taken from.
  struct Memory {
    Arena& parameters;
    Arena& host;       ///< for state that rests on the host
    Arena* gradients;  ///< null: the parameters are not trained
  };
  /// Setup, first: takes memory for masters, values and gradients of the trained parameters and for
  /// the values of frozen ones; binds all views. The store must outlive this.
  void allocate(param::ParamStore& store, const Memory& memory, const DTypes& dtypes);
  /// Setup, second, if gradients were taken. The mesh, over whose groups they are summed, must
  /// outlive this.
  void connect(const mesh::Mesh& mesh);

  /// True if optimizer state has entries for this rank's shards alone, not for every element.
  [[nodiscard]] bool shards_state() const { return is_flat(residence_.state); }
  /// The memory of masters and optimizer state.
  [[nodiscard]] Home state_home() const { return residence_.state.home; }
  /// The movements of a step of so many microbatches: of values, then of gradients.
  [[nodiscard]] std::vector<NamedMovement> movements(int microbatches) const;
  [[nodiscard]] PresentValues& values() { return values_; }
  [[nodiscard]] const PresentValues& values() const { return values_; }
  [[nodiscard]] GradientSums& gradients() { return gradients_; }
  [[nodiscard]] const GradientSums& gradients() const { return gradients_; }

 private:
  Residence residence_;
  bool overlaps_updates_ = false;
  PresentValues values_;
  GradientSums gradients_;
};

}  // namespace hyperslab::sharding
