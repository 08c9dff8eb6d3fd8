// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

/// Which algorithm each kind of GEMM takes on a GPU, to be used again by other ranks and
/// later starts. An entry belongs to a platform, a version of the library on a model of GPU, and
/// means nothing on another.
class AlgorithmCache {
 public:
  /// Everything that decides about an algorithm, as numbers: sizes, strides, dtypes, alignments,
  /// and whether it was chosen for a deterministic run.
  using Kind = std::array<std::int64_t, 12>;
  /// As the library stores it.
  using Algorithm = std::array<std::uint64_t, 8>;
  /// Version of text() and of the meaning of a kind's numbers.
  static constexpr int kFormat = 3;

  /// Does nothing if the kind has an entry.
  void add(const std::string& platform, const Kind& kind, const Algorithm& algorithm);
  /// Adds the entries of `other` for kinds that are not here.
  void merge(const AlgorithmCache& other);
  /// Null if there is none.
  [[nodiscard]] const Algorithm* find(const std::string& platform, const Kind& kind) const;
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t size_on(const std::string& platform) const;
  /// All entries, by platform.
  [[nodiscard]] const std::map<std::string, std::map<Kind, Algorithm>>& platforms() const {
    return platforms_;
  }
  bool operator==(const AlgorithmCache& other) const = default;

  /// Lines of text, the last one with their number and a hash of them; equal for equal tables.
  [[nodiscard]] std::string text() const;
  /// Throws Error(storage) that names `where` and the line: cut off, changed, of another format.
  [[nodiscard]] static AlgorithmCache of_text(const std::string& text, const std::string& where);

 private:
  std::map<std::string, std::map<Kind, Algorithm>> platforms_;
};

/// The library that multiplies on GPUs with its version; empty in builds without CUDA.
[[nodiscard]] std::string gemm_library();

/// Version of the library and model of GPU that the context's GEMMs run on; empty if its
/// device has only one algorithm; then the functions below do nothing.
[[nodiscard]] std::string gemm_platform(Context& ctx);

/// The algorithms of every kind of GEMM that the context has run.
[[nodiscard]] AlgorithmCache algorithms_of(Context& ctx);

/// From now on kinds of GEMMs take their algorithm from the table, if it has one for this
/// platform that the library does not refuse. Kinds that ran before change theirs; graphs that were
/// captured before do not.
void adopt_algorithms(Context& ctx, const AlgorithmCache& table);

/// Kinds of GEMMs whose algorithm the context chose itself at their first run, by their time or
/// in the library's order.
[[nodiscard]] std::int64_t chosen_algorithms(Context& ctx);

}  // namespace hyperslab::ops
