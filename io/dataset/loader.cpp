// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {
namespace {

using Ids = std::span<const std::int32_t>;
constexpr int kDigitBits = 11;

/// One stable pass of a radix sort: positions by the digit of their token at `shift`. An empty
/// `from` stands for 0, 1, 2, ...
void sort_by_digit(Ids tokens, Ids from, int shift, int bits, std::int32_t* to) {
  const std::uint32_t mask = (1U << bits) - 1;
  const auto digit = [&](std::size_t position) {
    return (static_cast<std::uint32_t>(tokens[position]) >> shift) & mask;
  };
  std::array<std::int32_t, 1 << kDigitBits> next;
  std::fill_n(next.begin(), mask + 1, 0);
  for (std::size_t i = 0; i < tokens.size(); ++i) ++next[digit(i)];
  std::int32_t sum = 0;
  for (std::uint32_t d = 0; d <= mask; ++d) sum += std::exchange(next[d], sum);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t position = from.empty() ? static_cast<std::int32_t>(i) : from[i];
    to[next[digit(static_cast<std::size_t>(position))]++] = position;
  }
}

}  // namespace

/// Two passes serve ids below 2^22, three any id.
void sort_tokens(Ids tokens, std::span<std::int32_t> order, std::span<std::int32_t> scratch) {
  std::uint32_t largest = 1;
  for (const std::int32_t id : tokens) largest = std::max(largest, static_cast<std::uint32_t>(id));
  const int width = std::bit_width(largest);
  const int passes = width <= 2 * kDigitBits ? 2 : 3;
  const int bits = (width + passes - 1) / passes;
  Ids from;
  for (int pass = 0; pass < passes; ++pass) {
    const auto to = (passes - pass) % 2 == 1 ? order : scratch;
    sort_by_digit(tokens, from, pass * bits, bits, to.data());
    from = to;
  }
}

Loader::Loader(const Samples& samples, std::int64_t global_batch, int data_rank, int data_ranks,
               bool overfit_one_batch)
    : samples_(samples),
      global_batch_(global_batch),
      data_rank_(data_rank),
      data_ranks_(data_ranks),
      overfit_one_batch_(overfit_one_batch) {
  require(data_rank >= 0 && data_rank < data_ranks, "loader of an impossible data rank");
  require(global_batch > 0 && global_batch % data_ranks == 0,
          "a global batch that does not divide among the data ranks");
}

void Loader::load(std::int64_t step, int microbatch, const Batch& out) {
  const Dim B = out.sample_position.numel();
  samples_.read(first_sample(step, microbatch, B), kNoEnd, out);
  const auto positions = out.sample_position.span<std::int64_t>();
  std::iota(positions.begin(), positions.end(), position_of(microbatch, B));
  if (counts_keys_ && out.first_keys) add_keys(step, out.first_keys);
  if (!out.token_sort_index) return;
  const auto tokens = out.tokens.span<std::int32_t>();
  require(out.token_sort_index.numel() == out.tokens.numel(),
          "a sort index of another size than the tokens");
  const std::lock_guard lock(scratch_mutex_);
  if (scratch_.size() < tokens.size()) scratch_.resize(tokens.size());
  sort_tokens(tokens, out.token_sort_index.span<std::int32_t>(), scratch_);
}

void Loader::add_keys(std::int64_t step, CView first_keys) {
  const auto [B, T] = first_keys.dims<2>("first keys");
  const auto* first = first_keys.data<std::int32_t>();
  const std::int64_t window = window_ > 0 ? window_ : T;
  Keys keys = {.step = step};
  for (Dim t = 0; t < T; ++t) {
    for (Dim b = 0; b < B; ++b) {
      const std::int64_t seen = t - first[b * T + t] + 1;
      keys.all += static_cast<double>(seen);
      keys.windowed += static_cast<double>(std::min(seen, window));
    }
    keys.all_of_one += static_cast<double>(B * (t + 1));
    keys.windowed_of_one += static_cast<double>(B * std::min(t + 1, window));
  }
  const std::lock_guard lock(keys_mutex_);
  Keys& sums = keys_[static_cast<std::size_t>(step) % keys_.size()];
  if (sums.step != step) sums = {.step = step};
  sums.all += keys.all;
  sums.windowed += keys.windowed;
  sums.all_of_one += keys.all_of_one;
  sums.windowed_of_one += keys.windowed_of_one;
}

KeyShares Loader::key_shares(std::int64_t step) const {
  const std::lock_guard lock(keys_mutex_);
  const Keys& sums = keys_[static_cast<std::size_t>(step) % keys_.size()];
  if (sums.step != step || sums.all_of_one == 0) return {};
  return {sums.all / sums.all_of_one, sums.windowed / sums.windowed_of_one};
}

std::int64_t Loader::first_sample(std::int64_t step, int microbatch, Dim B) const {
  require(step >= 1 && microbatch >= 0 && position_of(microbatch, B) + B <= global_batch_,
          "microbatch outside the global batch");
  return first_sample(step) + position_of(microbatch, B);
}

template <class Of>
auto Loader::sum_of_step(std::int64_t step, Of&& of_sample) const {
  const std::int64_t base = first_sample(step);
  auto sum = of_sample(base);
  for (std::int64_t i = 1; i < global_batch_; ++i) sum += of_sample(base + i);
  return sum;
}

std::int64_t Loader::counted_tokens(std::int64_t step) {
  require(step >= 1, "counted tokens of a step before the first");
  if (!samples_.may_ignore()) return global_batch_ * samples_.targets();
  if (overfit_one_batch_) step = 1;
  // Held while counting, so that a second thread waits for the number instead of reading as well.
  const std::lock_guard lock(count_mutex_);
  Count& count = counts_[static_cast<std::size_t>(step) % counts_.size()];
  if (count.step == step && count.tokens >= 0) return count.tokens;
  if (count.step != step) count = {.step = step};
  count.tokens = sum_of_step(step, [&](std::int64_t index) { return samples_.counted(index); });
  return count.tokens;
}

double Loader::weights(std::int64_t step) {
  if (!samples_.has_weights()) return static_cast<double>(counted_tokens(step));
  require(step >= 1, "weights of a step before the first");
  if (overfit_one_batch_) step = 1;
  const std::lock_guard lock(count_mutex_);
  Count& count = counts_[static_cast<std::size_t>(step) % counts_.size()];
  if (count.step == step && count.weights >= 0) return count.weights;
  if (count.step != step) count = {.step = step};
  count.weights = sum_of_step(step, [&](std::int64_t index) { return samples_.weights(index); });
  return count.weights;
}

}  // namespace hyperslab::io
