// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "hyperslab/param/spec.hpp"

namespace hyperslab::param {

struct Param;

/// A matrix operand that layers do not multiply by as it is stored. Two kinds:
/// - frozen: the members have no values; `matrix` holds them quantized, in training perhaps only
///   while a pass uses them. There they are widened into `dequantized`; in a forward-only run
///   products read `matrix`.
/// - trained with fake quantization: the members' values, quantized and widened again, go to
///   `dequantized`; `matrix` holds them quantized if products take that (int8 activations).
/// sharding::FrozenValues sets `matrix` of frozen ones, sharding::ConvertedWeights the other views;
/// it writes `dequantized`.
struct QuantizedWeight {
  std::vector<Param*> members;  ///< one after the other
  int unit = 0;
  bool frozen = true;
  QuantizationSpec spec;
  Shape shape;                       ///< (rows of all members with padding, columns)
  ops::QuantizedMatrix matrix = {};  ///< absent codes: fake quantization of weights alone
  View dequantized = {};  ///< in the compute dtype, in a room that other units take, too;
                          ///< absent in a forward-only run

  /// Copies what this rank keeps out of `matrix`, which lies in a room; empty: all of it.
  std::function<void(Context&)> keep = {};
  /// To be called once `matrix` is filled from outside.
  void filled(Context& ctx) const {
    if (keep) keep(ctx);
  }

  bool rounds = true;  ///< false: fake quantization leaves the values as they are
  /// The ranks that hold the other parts of the rows, for int8 whose scales belong to whole rows.
  /// Else null.
  comm::Communicator* row_ranks = nullptr;

  /// Calls body(first, count) for rows [first, first + count) of `matrix` in turn. A call has up to
  /// 16 MiB of f32 values, but at least one row, and whole blocks of nf4 scales.
  void for_rounded_rows(const std::function<void(Dim, Dim)>& body) const;
  /// Rounds frozen values, f32, to rows of `matrix` from `first` on, as for_rounded_rows gives
  /// them: for each member the rows of rounded_part, then its padding's.
  void round(Context& ctx, CView values, Dim first) const;
  /// The part of a member that rows [first, first + count) hold, beginning at row `at` of them.
  struct MemberRows {
    Param* member;
    Hyperslab part;
    Dim at;
  };
  [[nodiscard]] std::vector<MemberRows> members_in(Dim first, Dim count) const;
  /// The part of a member that `round` reads: this rank's part, or all columns of its rows if their
  /// scales depend on them. So it needs no other rank, which may have failed to read its part.
  [[nodiscard]] Hyperslab rounded_part(const Param& member) const;
  /// Shape of all values that `round` reads.
  [[nodiscard]] Shape rounded_shape() const;
  /// True if products take the quantized values and not `dequantized`.
  [[nodiscard]] bool multiplies_codes() const {
    return !dequantized || (rounds && spec.activations != ops::ActivationFormat::none);
  }
};

}  // namespace hyperslab::param
