// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../backend.hpp"
#include "../dropout_checks.hpp"
#include "dropout_mask.hpp"
#include "hyperslab/core/philox.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kBlocks = 64;  // Philox blocks at once, four words each

/// The words of kBlocks counters {block, step, site} in order; philox() with its loops exchanged,
/// so that the blocks are the vector.
void philox_words(std::uint64_t first_block, std::uint32_t step, std::uint32_t site,
                  std::uint64_t key, std::uint32_t* words) {
  std::uint32_t x0[kBlocks];
  std::uint32_t x1[kBlocks];
  std::uint32_t x2[kBlocks];
  std::uint32_t x3[kBlocks];
  for (Dim i = 0; i < kBlocks; ++i) {
    const std::uint64_t block = first_block + static_cast<std::uint64_t>(i);
    x0[i] = static_cast<std::uint32_t>(block);
    x1[i] = static_cast<std::uint32_t>(block >> 32);
    x2[i] = step;
    x3[i] = site;
  }
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (Dim i = 0; i < kBlocks; ++i) {
      const std::uint64_t p0 = 0xD2511F53ULL * x0[i];
      const std::uint64_t p1 = 0xCD9E8D57ULL * x2[i];
      x0[i] = static_cast<std::uint32_t>(p1 >> 32) ^ x1[i] ^ k0;
      x1[i] = static_cast<std::uint32_t>(p1);
      x2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ x3[i] ^ k1;
      x3[i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (Dim i = 0; i < kBlocks; ++i) {
    words[4 * i] = x0[i];
    words[4 * i + 1] = x1[i];
    words[4 * i + 2] = x2[i];
    words[4 * i + 3] = x3[i];
  }
}

}  // namespace

template <class T>
void apply_dropout(const Dropout& dropout, std::uint64_t first, Dim count, const T* x, T* y) {
  const std::uint64_t key = dropout.seed ^ name_hash("dropout");
  const auto step = static_cast<std::uint32_t>(dropout.state->input.step);
  const float probability = dropout.probability;
  const T scale = T(1) / (T(1) - T(probability));
  std::uint32_t words[4 * kBlocks];
  for (Dim done = 0; done < count;) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(done);
    const Dim lane = static_cast<Dim>(index % 4);
    const Dim take = std::min(count - done, 4 * kBlocks - lane);
    philox_words(index / 4, step, dropout.site, key, words);
    const std::uint32_t* word = words + lane;
#pragma omp simd
    for (Dim i = 0; i < take; ++i) {
      y[done + i] = philox_uniform(word[i]) >= probability ? x[done + i] * scale : T(0);
    }
    done += take;
  }
}

template void apply_dropout(const Dropout&, std::uint64_t, Dim, const float*, float*);
template void apply_dropout(const Dropout&, std::uint64_t, Dim, const double*, double*);

void dropout(Context& ctx, const Dropout& dropout, CView x, View y) {
  if (!dropout.active()) return x.raw() == y.raw() ? void() : cast(ctx, x, y);
  if (x.numel() == 0) return;
  with_real(x.dtype(), "dropout", [&]<class T>(T) {
    const Dim first = dropout.first_element;
    const MaskColumns columns = mask_columns(dropout, x);
    // Elements whose global indices follow each other: of a sample, or of a row's part.
    const Dim per_sample = sample_elements(dropout, x);
    const Dim run = columns.are_all() ? per_sample : columns.here;
    const Dim rows = per_sample / run;
    const auto* position = dropout.sample_position.data<std::int64_t>();
    parallel_chunks(ctx.threads(), x.numel(), 8, [&](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end;) {
        const Dim row = (first + i) / run;
        const Dim stop = std::min(end, (row + 1) * run - first);
        const Dim global_row = samples_before(dropout, position[row / rows]) * rows + row % rows;
        const Dim global = global_row * (columns.are_all() ? run : columns.total) + columns.first +
                           (first + i) % run;
        apply_dropout(dropout, static_cast<std::uint64_t>(global), stop - i, x.data<T>() + i,
                      y.data<T>() + i);
        i = stop;
      }
    });
  });
}

void drop_path(Context& ctx, const Dropout& dropout, CView x, View y) {
  if (!dropout.active()) return x.raw() == y.raw() ? void() : cast(ctx, x, y);
  if (x.numel() == 0) return;
  with_real(x.dtype(), "drop_path", [&]<class T>(T) {
    const Dim per_sample = sample_elements(dropout, x);
    const auto* position = dropout.sample_position.data<std::int64_t>();
    const auto step = static_cast<std::uint32_t>(dropout.state->input.step);
    const std::uint64_t key = dropout.seed ^ name_hash("drop path");
    const auto factor_of = [&](Dim sample) {
      const auto index = static_cast<std::uint64_t>(position[sample]);
      const PhiloxCounter words =
          philox({{static_cast<std::uint32_t>(index / 4),
                   static_cast<std::uint32_t>(index / 4 >> 32), step, dropout.site}},
                 key);
      const bool keeps = philox_uniform(words.x[index % 4]) >= dropout.probability;
      return keeps ? T(1) / (T(1) - T(dropout.probability)) : T(0);
    };
    parallel_chunks(ctx.threads(), x.numel(), 1, [&](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end;) {
        const Dim sample = (dropout.first_element + i) / per_sample;
        const Dim stop = std::min(end, (sample + 1) * per_sample - dropout.first_element);
        const T factor = factor_of(sample);
        for (; i < stop; ++i) y.data<T>()[i] = factor == 0 ? T(0) : x.data<T>()[i] * factor;
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
