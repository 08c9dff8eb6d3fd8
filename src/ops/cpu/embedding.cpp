// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "../backend.hpp"
#include "parallel.hpp"
#include "widen.hpp"

namespace hyperslab::ops::cpu {
namespace {

using Tokens = std::span<const std::int32_t>;

void require_tokens(Tokens tokens, Dim V, const char* what) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= V) {
      throw Error(ExitCode::data, std::string(what) + ": index " + std::to_string(i) +
                                      " holds token " + std::to_string(tokens[i]) +
                                      ", expected less than " + std::to_string(V) +
                                      "; compare model.vocabulary with the token files");
    }
  }
}

/// Throws unless `sort_index` lists every index once, by token and then by index.
void require_sort_index(Tokens tokens, Tokens sort_index) {
  for (std::size_t i = 0; i < sort_index.size(); ++i) {
    const bool inside =
        sort_index[i] >= 0 && static_cast<std::size_t>(sort_index[i]) < tokens.size();
    require(inside, "embedding_backward sort_index: an index is outside the tokens");
    if (i == 0) continue;
    const std::int32_t before = tokens[sort_index[i - 1]];
    const std::int32_t here = tokens[sort_index[i]];
    require(before < here || (before == here && sort_index[i - 1] < sort_index[i]),
            "embedding_backward sort_index: not sorted by token and index");
  }
}

/// The first index from `i` on where a token's run begins.
Dim run_start(Tokens tokens, Tokens sort_index, Dim i) {
  const Dim count = static_cast<Dim>(sort_index.size());
  while (i > 0 && i < count && tokens[sort_index[i]] == tokens[sort_index[i - 1]]) ++i;
  return i;
}

/// The part of `sort_index` whose tokens are the shard's.
Tokens part_of(const VocabularyShard& shard, Tokens tokens, Tokens sort_index) {
  const auto token = [=](std::int32_t index) { return Dim{tokens[index]}; };
  const auto begin = std::ranges::lower_bound(sort_index, shard.first, {}, token);
  const auto end =
      std::ranges::lower_bound(begin, sort_index.end(), shard.first + shard.count, {}, token);
  return {begin, end};
}

template <class T>
struct TableGradient {
  const T* dy;
  T* dtable;
  Dim C;
  Dim first;  // token of row 0
  T scale;
  bool accumulate;
};

/// The table rows [row, row_end), whose tokens are at sort_index[i] and after.
template <class T>
void sum_rows(const TableGradient<T>& g, Tokens tokens, Tokens sort_index, Dim i, Dim row,
              Dim row_end) {
  const Dim count = static_cast<Dim>(sort_index.size());
  for (; row < row_end; ++row) {
    T* out = g.dtable + row * g.C;
    if (!g.accumulate) std::fill_n(out, g.C, T(0));
    for (; i < count && tokens[sort_index[i]] == g.first + row; ++i) {
      const T* dy = g.dy + sort_index[i] * g.C;
#pragma omp simd
      for (Dim c = 0; c < g.C; ++c) out[c] += g.scale * dy[c];
    }
  }
}

/// out = scale * row + position; a null one counts as zero. `out` may be `row`.
template <class T>
void look_up(const T* row, const T* position, Dim C, T scale, T* out) {
  if (row == nullptr) {
    position == nullptr ? std::fill_n(out, C, T(0)) : std::copy_n(position, C, out);
  } else if (position == nullptr) {
#pragma omp simd
    for (Dim c = 0; c < C; ++c) out[c] = scale * row[c];
  } else {
#pragma omp simd
    for (Dim c = 0; c < C; ++c) out[c] = scale * row[c] + position[c];
  }
}

/// The row of `positions` that token i of all samples gets.
Dim position_of(const EmbeddingTables& tables, Dim i, Dim tokens_in_sample) {
  const Dim in_sample = tables.first_position.of(i / tokens_in_sample) + i % tokens_in_sample;
  return tables.first_keys ? in_sample - tables.first_keys.data<std::int32_t>()[i] : in_sample;
}

/// Calls visit(t) for the tokens first + t of a sample at position p of their documents, from the
/// last of these to the first. first_keys: of these tokens; null: the sample is one document.
template <class Visit>
void for_tokens_at(Dim p, Dim first, const std::int32_t* first_keys, Dim tokens, Visit&& visit) {
  for (Dim end = first + tokens; end > first;) {
    const Dim start = first_keys == nullptr ? 0 : first_keys[end - first - 1];
    if (start + p >= first && start + p < end) visit(start + p - first);
    end = start;
  }
}

}  // namespace

void embedding_forward(Context& ctx, CView tokens, const EmbeddingTables& tables, float scale,
                       View y) {
  const auto ids = tokens.span<std::int32_t>();
  const VocabularyShard& shard = tables.shard;
  require_tokens(ids, shard.vocabulary, "embedding_forward tokens");
  with_real(tables.table.dtype(), "embedding_forward", [&]<class T>(T) {
    const T* table = tables.table.data<T>();
    const Dim C = tables.table.shape()[1];
    const Dim T_tokens = tokens.shape()[1];
    const T* positions = optional_data<T>(tables.positions);
    parallel_chunks(ctx.threads(), tokens.numel(), C, [&](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end; ++i) {
        const Dim row = ids[i] - shard.first;
        const bool here = row >= 0 && row < shard.count;
        const Dim place = position_of(tables, i, T_tokens);
        const T* position = positions ? positions + place * C : nullptr;
        look_up(here ? table + row * C : nullptr, position, C, T(scale), y.data<T>() + i * C);
      }
    });
  });
}

void quantized_embedding_forward(Context& ctx, CView tokens, const CQuantizedMatrix& table,
                                 const EmbeddingTables& tables, float scale, View y) {
  const auto ids = tokens.span<std::int32_t>();
  const VocabularyShard& shard = tables.shard;
  require_tokens(ids, shard.vocabulary, "quantized_embedding_forward tokens");
  with_real(y.dtype(), "quantized_embedding_forward", [&]<class T>(T) {
    const Dim C = table.shape[1];
    const Dim groups = C == 0 ? 0 : C / table.group;  // scale groups in a row
    const Dim T_tokens = tokens.shape()[1];
    const T* positions = optional_data<T>(tables.positions);
    parallel_chunks(ctx.threads(), tokens.numel(), C, [&](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end; ++i) {
        T* out = y.data<T>() + i * C;
        const Dim row = ids[i] - shard.first;
        const bool here = row >= 0 && row < shard.count;
        if (here) widen(table, row * groups, (row + 1) * groups, out);
        const Dim place = position_of(tables, i, T_tokens);
        const T* position = positions ? positions + place * C : nullptr;
        look_up(here ? out : nullptr, position, C, T(scale), out);
      }
    });
  });
}

void embedding_backward(Context& ctx, const SortedTokens& sorted, CView dy,
                        const VocabularyShard& shard, float scale, Accumulate accumulate,
                        View dtable) {
  const Dim rows = dtable.shape()[0];
  const Dim C = dtable.shape()[1];
  const auto ids = sorted.tokens.span<std::int32_t>();
  const auto sort_index = sorted.sort_index.span<std::int32_t>();
  require_tokens(ids, shard.vocabulary, "embedding_backward tokens");
  require_sort_index(ids, sort_index);
  const Tokens own = part_of(shard, ids, sort_index);
  with_real(dy.dtype(), "embedding_backward", [&]<class T>(T) {
    const TableGradient<T> gradient = {
        dy.data<T>(), dtable.data<T>(), C, shard.first, T(scale), accumulate == Accumulate::yes};
    const Dim count = static_cast<Dim>(own.size());
    const int threads = ctx.threads();
    // A chunk begins with the first occurrence of a token, and owns the table rows up to the next
    // chunk's.
    const auto begin_of = [&](int chunk) { return run_start(ids, own, count * chunk / threads); };
    const auto row_of = [&](int chunk) -> Dim {
      const Dim i = begin_of(chunk);
      return chunk == 0 ? 0 : i < count ? ids[own[i]] - shard.first : rows;
    };
    parallel_chunks(threads, threads, count * C / threads, [&](int chunk, Dim, Dim) {
      sum_rows(gradient, ids, own, begin_of(chunk), row_of(chunk),
               chunk + 1 == threads ? rows : row_of(chunk + 1));
    });
  });
}

void position_backward(Context& ctx, CView dy, Dim first_token, CView first_keys,
                       Accumulate accumulate, View dpositions) {
  with_real(dy.dtype(), "position_backward", [&]<class T>(T) {
    const auto [B, T_tokens, C] = dy.dims<3>("position_backward dy");
    const T* gradient = dy.data<T>();
    T* out = dpositions.data<T>();
    const bool clear = accumulate == Accumulate::no;
    const std::int32_t* keys = optional_data<std::int32_t>(first_keys);
    const auto rows = [=, B = B, T_tokens = T_tokens, C = C](int, Dim begin, Dim end) {
      for (Dim p = begin; p < end; ++p) {
        T* row = out + p * C;
        if (clear) std::fill_n(row, C, T(0));
        for (Dim b = 0; b < B; ++b) {
          const std::int32_t* of_sample = keys == nullptr ? nullptr : keys + b * T_tokens;
          for_tokens_at(p, first_token, of_sample, T_tokens, [&](Dim t) {
            const T* source = gradient + (b * T_tokens + t) * C;
#pragma omp simd
            for (Dim c = 0; c < C; ++c) row[c] += source[c];
          });
        }
      }
    };
    parallel_chunks(ctx.threads(), dpositions.shape()[0], B * C, rows);
  });
}

void sinusoidal_table(Context&, View table) {
  with_real(table.dtype(), "sinusoidal_table", [&]<class T>(T) {
    const Dim C = table.shape()[1];
    for (Dim t = 0; t < table.shape()[0]; ++t) {
      for (Dim c = 0; c < C; ++c) {
        const auto pair = static_cast<double>(c - c % 2);
        const double angle =
            static_cast<double>(t) * std::pow(10000.0, -pair / static_cast<double>(C));
        table.data<T>()[t * C + c] = static_cast<T>(c % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
  });
}

}  // namespace hyperslab::ops::cpu
