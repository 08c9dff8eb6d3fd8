// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {

/// The first token of every token's document, in its sample: 0, and the token after each end_token.
inline void find_first_keys(std::span<const std::int32_t> tokens, std::int32_t end_token,
                            std::span<std::int32_t> first_keys) {
  std::int32_t first = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    first_keys[t] = first;
    if (end_token >= 0 && tokens[t] == end_token) first = static_cast<std::int32_t>(t) + 1;
  }
}

/// Values of the targets of one sample; empty spans are not asked for.
struct TargetValues {
  std::span<float> values{};              ///< `columns` of each target
  std::span<std::int32_t> teacher_ids{};  ///< `teachers` of each target
  Dim columns = 0;
  Dim teachers = 0;

  /// Those in row `b` of a batch.
  TargetValues(const Batch& batch, Dim b) {
    if (batch.token_values) {
      values = batch.token_values.slice(b, 1).span<float>();
      columns = batch.token_values.shape()[2];
    }
    if (batch.teacher_ids) {
      teacher_ids = batch.teacher_ids.slice(b, 1).span<std::int32_t>();
      teachers = batch.teacher_ids.shape()[2];
    }
  }
  void clear() const {
    std::ranges::fill(values, 1.0F);
    std::ranges::fill(teacher_ids, 0);
  }
  /// Targets [at, at + count) are the source's tokens from `first` on. 1 and 0 if it has no values.
  void read(const TokenSource& source, std::int64_t first, std::size_t at,
            std::size_t count) const {
    if (columns + teachers == 0 || source.columns().count() == 0) return;
    require(source.columns().count() == columns && source.columns().teachers >= teachers,
            "a source of other columns than the batch");
    const auto part = [&](auto span, Dim width) {
      return span.subspan(at * static_cast<std::size_t>(width),
                          count * static_cast<std::size_t>(width));
    };
    if (columns > 0) source.read_values(first, part(values, columns));
    if (teachers > 0) source.read_teacher_ids(first, part(teacher_ids, teachers));
  }
};

/// Samples [first, first + B) into the rows of `out`: read_one(index, tokens, targets, values)
/// each. Those from `end` on are filled with values that do not count. `end_token` ends documents;
/// -1: none.
template <class ReadOne>
void read_rows(std::int64_t first, std::int64_t end, const Batch& out, std::int32_t end_token,
               ReadOne&& read_one) {
  const Dim B = out.tokens.dims<2>("tokens")[0];
  for (Dim b = 0; b < B; ++b) {
    const auto tokens = out.tokens.slice(b, 1).span<std::int32_t>();
    const auto targets = out.targets.slice(b, 1).span<std::int32_t>();
    const TargetValues values(out, b);
    values.clear();
    if (first + b < end) {
      read_one(first + b, tokens, targets, values);
    } else {
      std::ranges::fill(tokens, 0);
      std::ranges::fill(targets, ops::kIgnoredTarget);
    }
    if (!out.first_keys) continue;
    find_first_keys(tokens, end_token, out.first_keys.slice(b, 1).span<std::int32_t>());
  }
}

}  // namespace hyperslab::io
