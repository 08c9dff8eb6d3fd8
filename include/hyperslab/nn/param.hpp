// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"

namespace hyperslab::nn {

enum class ParamKind : std::uint8_t { matrix, bias, norm, token_table, position_table };
enum class Init : std::uint8_t { normal, zeros, ones };

/// A part of a named global tensor that this rank owns, and where it lives. The three views have
/// the shape `count`; they are bound by ParamTable::bind.
struct Param {
  std::string name;  ///< of the model: "blocks.0.attention.query.weight"
  Shape global_shape;
  Shape offset;  ///< of this rank's hyperslab
  Shape count;
  ParamKind kind = ParamKind::matrix;
  Init init = Init::zeros;
  float init_std = 0;
  int unit = 0;        ///< embedding, block or head that it belongs to
  Dim flat_begin = 0;  ///< elements from the start of the flat space
  View master;         ///< f32 (f64 for f64)
  View value;          ///< compute dtype; the master itself where that is f32
  View gradient;       ///< f32 (f64 for f64); absent in a forward-only run
  [[nodiscard]] Dim numel() const { return count.numel(); }
};

/// What a declaration says about a parameter.
struct ParamSpec {
  std::string name;
  Shape shape;
  ParamKind kind = ParamKind::matrix;
  Init init = Init::normal;
  float init_std = 0;
};

/// Parameters that lie one behind the other, so that several named tensors with equal inner sizes
/// are one operand: query|key|value, gate|up.
struct Pack {
  std::vector<Param*> members;
  /// The members' views as one view with their first dimensions added up.
  [[nodiscard]] CView value() const;
  [[nodiscard]] View gradient() const;
  [[nodiscard]] explicit operator bool() const { return !members.empty(); }
};

/// A contiguous range of the flat space whose gradients are reduced by one call, closed in
/// backward order: all units in [first_unit, last_unit] are done.
struct Bucket {
  int first_unit = 0;
  int last_unit = 0;
  Dim begin = 0;  ///< elements
  Dim end = 0;
  [[nodiscard]] Dim size() const { return end - begin; }
};

/// All parameters of a stage in forward order, laid out in one flat space that masters, values,
/// gradients and optimizer state share. Setup: declare everything, lay out, bind to memory.
class ParamTable {
 public:
  /// Starts the next unit; the tensors declared from now on belong to it.
  void begin_unit();
  /// Declares tensors that are to lie one behind the other.
  Pack declare(std::span<const ParamSpec> specs);
  Param& declare(const ParamSpec& spec);

  /// Gives every parameter its place and forms buckets of at least `bucket_bytes` of f32 gradients
  /// from whole units, last unit first. Bucket sizes are multiples of `ranks` x 128 bytes.
  /// `separate_first_unit` keeps unit 0 in a bucket of its own.
  void lay_out(int ranks, std::size_t bucket_bytes, bool separate_first_unit);

  /// Takes masters (and values, where `compute` is another dtype) from `parameters` and, where
  /// `gradients` is given, gradients from it; binds all views.
  void bind(Arena& parameters, Arena* gradients, DType master, DType compute);

  [[nodiscard]] Dim flat_size() const { return flat_size_; }
  [[nodiscard]] const std::deque<Param>& params() const { return params_; }
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] View master() const { return master_; }      ///< (flat_size)
  [[nodiscard]] View value() const { return value_; }        ///< (flat_size)
  [[nodiscard]] View gradient() const { return gradient_; }  ///< (flat_size)

 private:
  struct Run {  // a pack: its members have no gaps between them
    std::size_t first = 0;
    std::size_t count = 0;
    int unit = 0;
  };
  std::deque<Param> params_;  // addresses are stable
  std::vector<Run> runs_;
  std::vector<Bucket> buckets_;
  int unit_ = -1;
  Dim flat_size_ = 0;
  View master_;
  View value_;
  View gradient_;
};

/// Part of a tensor as offset and count, and where it begins in the tensor's flat elements.
struct Hyperslab {
  Shape offset;
  Shape count;
  Dim first = 0;
};
/// Elements [begin, end) of a row-major tensor of `shape` as at most three hyperslabs: part of a
/// row, whole rows, part of a row. One or two dimensions.
[[nodiscard]] std::vector<Hyperslab> hyperslabs_of_range(const Shape& shape, Dim begin, Dim end);

/// Fills `masters`, a flat CPU view laid out as the table's, by the parameters' rules: normals are
/// Philox of (seed, name, global element index), so every layout starts from the same weights.
/// Padding becomes zero.
void initialize(const ParamTable& table, std::uint64_t seed, View masters);

}  // namespace hyperslab::nn
