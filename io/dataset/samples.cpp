// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dataset/counted_targets.hpp"
#include "dataset/read_rows.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {

namespace {

[[noreturn]] void fail_short(const TokenSource& source, Dim T, std::int64_t most,
                             std::size_t segments) {
  const bool several = segments > 1;
  throw Error(
      ExitCode::data,
      fmt::format("{}: expected at least {} tokens{} (one sample of {} and its last target), found "
                  "{}{}; give more text{} a smaller model.context{}",
                  source.description(), T + 1, several ? " in a file" : "", T,
                  several ? "at most " : "", most, several ? "," : " or",
                  several ? ", or data.join_files: true" : ""));
}

}  // namespace

TokenSamples::TokenSamples(const TokenSource& source, Sampling sampling, Dim T, std::uint64_t seed,
                           bool shuffle, const TargetRules& rules)
    : source_(source),
      sampling_(sampling),
      T_(T),
      seed_(seed),
      shuffle_(shuffle),
      rules_(rules),
      stride_(T) {
  require(T > 0, "samples of no tokens");
  const std::vector<std::int64_t> begins = source.segments();
  std::int64_t most = 0;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const std::int64_t end = i + 1 < begins.size() ? begins[i + 1] : source.size();
    const std::int64_t tokens = end - begins[i];
    most = std::max(most, tokens);
    if (tokens > T) add({begins[i], tokens, (tokens - 1) / T * T});
  }
  if (segments_.empty()) fail_short(source, T, most, begins.size());
}

std::int64_t TokenSamples::samples_of(std::int64_t targets) const {
  return targets <= T_ ? 1 : 1 + (targets - T_ + stride_ - 1) / stride_;
}

void TokenSamples::add(Segment segment) {
  segment.sample = size_;
  segment.window = windows_;
  size_ += samples_of(segment.targets);
  windows_ += std::max<std::int64_t>(0, segment.tokens - T_);
  targets_ += segment.targets;
  segments_.push_back(segment);
}

std::int64_t TokenSamples::targets_in(const TokenSource& source) {
  return source.size() - std::ssize(source.segments());
}

TokenSamples TokenSamples::strided(const TokenSource& source, Dim T, Dim stride,
                                   std::int64_t targets, const TargetRules& rules) {
  TokenSamples samples(source, Sampling::blocks, T, 0, false, rules);
  require(stride > 0 && stride <= T && targets >= T && targets <= targets_in(source),
          "strided samples without a stride or beyond their source");
  const bool all = targets == targets_in(source);
  const std::vector<Segment> whole = std::exchange(samples.segments_, {});
  samples.stride_ = stride;
  samples.size_ = samples.windows_ = samples.targets_ = 0;
  const std::vector<std::int64_t> begins = all ? source.segments() : std::vector<std::int64_t>();
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const std::int64_t end = i + 1 < begins.size() ? begins[i + 1] : source.size();
    if (end - begins[i] > 1) samples.add({begins[i], end - begins[i], end - begins[i] - 1});
  }
  for (std::size_t i = 0; !all && i < whole.size() && targets > 0; ++i) {
    const std::int64_t most = i + 1 < whole.size() ? whole[i].targets : whole[i].tokens - 1;
    samples.add({whole[i].begin, whole[i].tokens, std::min(targets, most)});
    targets -= most;
  }
  return samples;
}

std::int64_t TokenSamples::size() const { return size_; }

const TokenSamples::Segment& TokenSamples::segment_of(std::int64_t sample) const {
  return *(std::ranges::upper_bound(segments_, sample, {}, &Segment::sample) - 1);
}

std::int64_t TokenSamples::repeated(std::int64_t index) const {
  if (shuffle_) return 0;
  const Segment& segment = segment_of(index % size_);
  const std::int64_t local = index % size_ - segment.sample;
  return local == 0 ? 0 : T_ + (local - 1) * stride_ - (start(index) - segment.begin);
}

std::int64_t TokenSamples::length(std::int64_t index) const {
  return shuffle_ ? T_ : std::min(T_, segment_of(index % size_).targets);
}

std::int64_t TokenSamples::start(std::int64_t index) const {
  require(index >= 0, "negative sample index");
  if (!shuffle_) {
    const Segment& segment = segment_of(index % size_);
    const std::int64_t last = std::max<std::int64_t>(0, segment.targets - T_);
    return segment.begin + std::min((index % size_ - segment.sample) * stride_, last);
  }
  if (sampling_ == Sampling::blocks) {
    const auto n = static_cast<std::uint64_t>(size_);
    const auto block = static_cast<std::int64_t>(permuted_index(
        static_cast<std::uint64_t>(index) % n, n, seed_, static_cast<std::uint64_t>(index) / n));
    const Segment& segment = segment_of(block);
    return segment.begin + (block - segment.sample) * T_;
  }
  static const std::uint64_t stream = name_hash("sample windows");
  const PhiloxCounter words =
      philox(philox_counter(static_cast<std::uint64_t>(index), stream), seed_);
  const std::uint64_t word = words.x[0] | static_cast<std::uint64_t>(words.x[1]) << 32;
  const auto window = static_cast<std::int64_t>(word % static_cast<std::uint64_t>(windows_));
  const Segment& segment = *(std::ranges::upper_bound(segments_, window, {}, &Segment::window) - 1);
  return segment.begin + window - segment.window;
}

void TokenSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  read_rows(first, end, out, rules_.end_token,
            [this](std::int64_t index, auto tokens, auto targets, const TargetValues& values) {
              read(index, tokens, targets);
              values.read(source_, start(index) + 1, 0, static_cast<std::size_t>(length(index)));
            });
}

void TokenSamples::read(std::int64_t index, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const {
  require(static_cast<Dim>(tokens.size()) == T_ && static_cast<Dim>(targets.size()) == T_,
          "tokens and targets of another length than the samples");
  const std::int64_t first = start(index);
  const auto own = static_cast<std::size_t>(length(index));
  source_.read(first, tokens.first(own));
  std::ranges::copy(tokens.first(own).subspan(1), targets.begin());
  source_.read(first + static_cast<std::int64_t>(own), targets.subspan(own - 1, 1));
  std::ranges::fill(tokens.subspan(own), 0);
  std::ranges::fill(targets.subspan(own), ops::kIgnoredTarget);
  if (reads_to_ignore()) ignore(first + 1, tokens.front(), targets.first(own));
  std::ranges::fill(targets.first(static_cast<std::size_t>(repeated(index))), ops::kIgnoredTarget);
}

void TokenSamples::ignore(std::int64_t first, std::int32_t before,
                          std::span<std::int32_t> targets) const {
  ignore_targets(source_, rules_, first, before, targets);
}

double TokenSamples::weights(std::int64_t index) const {
  if (!has_weights()) return static_cast<double>(counted(index));
  const std::int64_t all = length(index);
  const std::int64_t own = all - repeated(index);
  return sum_weights(source_, rules_, start(index) + all - own + 1, own);
}

std::int64_t TokenSamples::counted(std::int64_t index) const {
  const std::int64_t all = length(index);
  const std::int64_t own = all - repeated(index);
  if (!reads_to_ignore()) return own;
  return count_targets(source_, rules_, start(index) + all - own + 1, own);
}

}  // namespace hyperslab::io
