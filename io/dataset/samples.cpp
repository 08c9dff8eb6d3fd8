// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "dataset/counted_targets.hpp"
#include "dataset/read_rows.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {

TokenSamples::TokenSamples(const TokenSource& source, Sampling sampling, Dim T, std::uint64_t seed,
                           bool shuffle, const TargetRules& rules)
    : source_(source),
      sampling_(sampling),
      T_(T),
      seed_(seed),
      shuffle_(shuffle),
      rules_(rules),
      stride_(T),
      targets_(source.size() - 1) {
  require(T > 0, "samples of no tokens");
  if (source.size() <= T) {
    throw Error(
        ExitCode::data,
        fmt::format("{}: expected at least {} tokens (one sample of {} and its last target), "
                    "found {}; give more text or a smaller model.context",
                    source.description(), T + 1, T, source.size()));
  }
  targets_ -= targets_ % T;
}

TokenSamples TokenSamples::strided(const TokenSource& source, Dim T, Dim stride,
                                   std::int64_t targets, const TargetRules& rules) {
  TokenSamples samples(source, Sampling::blocks, T, 0, false, rules);
  require(stride > 0 && stride <= T && targets >= T && targets < source.size(),
          "strided samples without a stride or beyond their source");
  samples.stride_ = stride;
  samples.targets_ = targets;
  return samples;
}

std::int64_t TokenSamples::size() const { return 1 + (targets_ - T_ + stride_ - 1) / stride_; }

std::int64_t TokenSamples::repeated(std::int64_t index) const {
  if (shuffle_ || index % size() == 0) return 0;
  return T_ + (index % size() - 1) * stride_ - start(index);
}

std::int64_t TokenSamples::start(std::int64_t index) const {
  require(index >= 0, "negative sample index");
  const std::int64_t n = size();
  if (!shuffle_) return std::min(index % n * stride_, targets_ - T_);
  if (sampling_ == Sampling::blocks) {
    const auto block =
        permuted_index(static_cast<std::uint64_t>(index % n), static_cast<std::uint64_t>(n), seed_,
                       static_cast<std::uint64_t>(index / n));
    return static_cast<std::int64_t>(block) * T_;
  }
  static const std::uint64_t stream = name_hash("sample windows");
  const PhiloxCounter words =
      philox(philox_counter(static_cast<std::uint64_t>(index), stream), seed_);
  const std::uint64_t word = words.x[0] | static_cast<std::uint64_t>(words.x[1]) << 32;
  return static_cast<std::int64_t>(word % static_cast<std::uint64_t>(source_.size() - T_));
}

void TokenSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  read_rows(
      first, end, out, rules_.end_token,
      [this](std::int64_t index, auto tokens, auto targets) { read(index, tokens, targets); });
}

void TokenSamples::read(std::int64_t index, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const {
  require(static_cast<Dim>(tokens.size()) == T_ && static_cast<Dim>(targets.size()) == T_,
          "tokens and targets of another length than the samples");
  const std::int64_t first = start(index);
  source_.read(first, tokens);
  std::ranges::copy(tokens.subspan(1), targets.begin());
  source_.read(first + T_, targets.last(1));
  if (reads_to_ignore()) ignore(first + 1, tokens.front(), targets);
  std::ranges::fill(targets.first(static_cast<std::size_t>(repeated(index))), ops::kIgnoredTarget);
}

void TokenSamples::ignore(std::int64_t first, std::int32_t before,
                          std::span<std::int32_t> targets) const {
  ignore_targets(source_, rules_, first, before, targets);
}

std::int64_t TokenSamples::counted(std::int64_t index) const {
  const std::int64_t own = T_ - repeated(index);
  if (!reads_to_ignore()) return own;
  return count_targets(source_, rules_, start(index) + T_ - own + 1, own);
}

}  // namespace hyperslab::io
