// SPDX-License-Identifier: Apache-2.0
// What a layout holds and sends, by hand: written from the description of the axes, without a call
// into the program.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::test {

/// A deck in numbers. `layers` is that of every stage of the pipeline, virtual ones too; fp32.
struct Numbers {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  std::vector<int> layers = {3};
  bool sequence = false;
  const char* schedule = "1f1b";
  int zero = 0;
  int shard = 0;     ///< data ranks that share state; 0: all
  bool gpt2 = true;  ///< biases, layernorm, learned positions, 2 matrices; else llama: none, 3
  bool tied = true;
  std::int64_t kv_heads = 4;
  std::int64_t microbatches = 1;
  const char* recompute = "none";
  bool tiny_buckets = true;  ///< a bucket for every unit; else one for all
  std::int64_t B = 2;
  std::int64_t T = 8;
  std::int64_t C = 16;
  std::int64_t heads = 4;
  std::int64_t F = 24;
  std::int64_t V = 67;
  std::int64_t head_chunks = 1;  ///< rows of logits at once: B T / head_chunks
  std::int64_t mlp_pieces = 0;   ///< of a feed-forward network; 0: it is not in pieces
  int context = 1;

  /// Data ranks that share state.
  [[nodiscard]] int fold() const { return shard == 0 ? data : shard; }
  [[nodiscard]] int shards() const { return fold() * context; }
  [[nodiscard]] int ranks() const { return data * pipeline * tensor * context; }
  /// Rows of a microbatch on a rank's stream, if they are not cut further.
  [[nodiscard]] std::int64_t rows() const { return B * T / context; }
  [[nodiscard]] int virtual_stages() const { return static_cast<int>(layers.size()) / pipeline; }
  [[nodiscard]] bool recomputes_all() const { return std::string(recompute) == "full"; }
  [[nodiscard]] bool splits_backward() const { return std::string(schedule) == "zero_bubble"; }

  [[nodiscard]] std::vector<std::string> overrides() const {
    int total = 0;
    for (const int n : layers) total += n;
    const auto put = [](const char* key, const auto& value) {
      return fmt::format("{}={}", key, value);
    };
    return {put("model.family", gpt2 ? "gpt2" : "llama"),
            put("model.layers", total),
            put("model.width", C),
            put("model.heads", heads),
            put("model.kv_heads", kv_heads),
            put("model.ffn_width", F),
            put("model.vocabulary", V),
            put("model.context", T),
            put("model.tie_embeddings", tied),
            put("model.attention", "fused"),
            put("train.microbatch", B),
            put("train.global_batch", B * microbatches * data),
            put("parallel.data", data),
            put("parallel.pipeline", pipeline),
            put("parallel.tensor", tensor),
            put("parallel.context", context),
            put("parallel.sequence", sequence),
            put("parallel.schedule", schedule),
            put("parallel.virtual_stages", virtual_stages()),
            fmt::format("parallel.stage_layers=[{}]", fmt::join(layers, ",")),
            put("parallel.zero", zero),
            put("parallel.shard", shard),
            put("parallel.bucket_mib", tiny_buckets ? 1e-6 : 64.0),
            put("memory.recompute", recompute),
            put("memory.mlp_rows", mlp_pieces > 0 ? rows() / mlp_pieces : 0)};
  }
};

/// Elements of this rank's parameters, fused ones rounded up to 32 each: what it holds alone (by
/// unit), what the whole tensor group holds (equal), what it holds and sees only its rows of
/// (summed), and the tied table.
struct Held {
  std::vector<std::int64_t> units;  ///< embedding, blocks, head, where they are on this rank
  std::int64_t equal = 0;
  std::int64_t summed = 0;
  std::int64_t tied = 0;
};

/// What a pipeline rank holds of the model.
struct PipelineRank {
  bool first = false;
  bool last = false;
  std::vector<int> blocks;  ///< of every chunk
  [[nodiscard]] std::int64_t layers() const {
    std::int64_t sum = 0;
    for (const int n : blocks) sum += n;
    return sum;
  }
};

inline PipelineRank pipeline_rank_of(const Numbers& n, int index) {
  PipelineRank rank;
  rank.first = index == 0;
  rank.last = index == n.pipeline - 1;
  for (int chunk = 0; chunk < n.virtual_stages(); ++chunk) {
    const auto stage = static_cast<std::size_t>(chunk) * static_cast<std::size_t>(n.pipeline);
    rank.blocks.push_back(n.layers[stage + static_cast<std::size_t>(index)]);
  }
  return rank;
}

inline std::int64_t up_to(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
inline std::int64_t packed(std::int64_t n) { return up_to(n, 32); }

/// Rows of the key matrix on a rank: an equal part, or a whole head that several ranks share.
inline std::int64_t kv_rows(const Numbers& n) {
  return std::max<std::int64_t>(n.kv_heads / n.tensor, 1) * (n.C / n.heads);
}

inline std::int64_t norm_elements(const Numbers& n) { return (n.gpt2 ? 2 : 1) * packed(n.C); }

/// Matrices of a block and the biases that are cut with them.
inline std::int64_t block_parts(const Numbers& n) {
  const std::int64_t t = n.tensor;
  const std::int64_t inner = n.gpt2 ? n.F / t : 2 * n.F / t;
  const std::int64_t qkv_rows = n.C / t + 2 * kv_rows(n);
  const std::int64_t matrices =
      packed(qkv_rows * n.C) + packed(n.C * n.C / t) + packed(inner * n.C) + packed(n.C * n.F / t);
  return matrices + (n.gpt2 ? packed(qkv_rows) + packed(inner) : 0);
}

inline Held held(const Numbers& n, const PipelineRank& rank) {
  const std::int64_t table = packed((n.V + n.tensor - 1) / n.tensor * n.C);
  const std::int64_t row_biases = n.gpt2 ? 2 * packed(n.C) : 0;  // of output and down
  const bool alone = n.tensor == 1;
  Held out;
  const auto replicated = [&](std::int64_t elements, bool sees_rows) {
    if (alone) {
      out.units.back() += elements;
    } else if (sees_rows && n.sequence) {
      out.summed += elements;
    } else {
      out.equal += elements;
    }
  };
  if (rank.first) {
    out.units.push_back(n.tied ? 0 : table);
    if (n.tied) out.tied = table;
    if (n.gpt2) replicated(packed(n.T * n.C), false);
  }
  for (std::int64_t layer = 0; layer < rank.layers(); ++layer) {
    out.units.push_back(block_parts(n));
    replicated(2 * norm_elements(n), true);
    replicated(row_biases, false);
  }
  if (rank.last) {
    out.units.push_back(n.tied ? 0 : table);
    if (n.tied) out.tied = table;
    replicated(norm_elements(n), true);
  }
  return out;
}

/// Sizes of the gradient buckets in elements: padded to shards x 32.
struct Buckets {
  std::int64_t tied = 0;
  std::int64_t summed = 0;
  std::int64_t equal = 0;
  std::vector<std::int64_t> parts;
  [[nodiscard]] std::vector<std::int64_t> all() const {
    std::vector<std::int64_t> out = parts;
    for (const std::int64_t size : {tied, summed, equal}) {
      if (size > 0) out.push_back(size);
    }
    return out;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t size : all()) sum += size;
    return sum;
  }
};

inline Buckets buckets(const Numbers& n, const PipelineRank& rank) {
  const Held mine = held(n, rank);
  const auto padded = [&](std::int64_t size) { return up_to(size, 32L * n.shards()); };
  Buckets out = {padded(mine.tied), padded(mine.summed), padded(mine.equal), {}};
  std::int64_t sum = 0;
  for (const std::int64_t unit : mine.units) {
    sum += unit;
    if (n.tiny_buckets && unit > 0) out.parts.push_back(padded(unit));
  }
  if (!n.tiny_buckets && sum > 0) out.parts.push_back(padded(sum));
  return out;
}

/// Calls and bytes of one kind.
struct Flow {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  void add(std::int64_t more_calls, std::int64_t bytes_each) {
    calls += more_calls;
    bytes += more_calls * bytes_each;
  }
  friend bool operator==(const Flow&, const Flow&) = default;
};

/// What goes through one group in a step; the bytes are those of the whole buffer.
struct Flows {
  Flow all_reduce;
  Flow reduce_scatter;
  Flow all_gather;
  Flow send;
  Flow recv;
  Flow all_to_all = {};
};

/// The tensor group (Shoeybi et al. 2019; Korthikanti et al. 2022).
inline Flows tensor_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.tensor == 1) return out;
  const std::int64_t stream = 4 * n.rows() * n.C;
  const std::int64_t m = n.microbatches;
  const std::int64_t layers = rank.layers() * m;
  const std::int64_t forwards = n.recomputes_all() ? 2 : 1;
  const std::int64_t pieces = std::max<std::int64_t>(1, n.mlp_pieces);
  // A block that is computed again ends before the feed-forward network's second layer.
  constexpr std::int64_t mlp_outputs = 1;
  Flow& sums = n.sequence ? out.reduce_scatter : out.all_reduce;
  sums.add((forwards + 1) * layers, stream);  // outputs of attention, then gradients of its inputs
  sums.add((mlp_outputs + 1) * layers * pieces, stream / pieces);
  if (rank.first) sums.add(m, stream);  // the vectors of tokens, each on one rank
  if (rank.last) {
    sums.add(m, stream);  // the gradient of the head's input
    const std::int64_t rows = n.rows() / n.head_chunks;
    out.all_gather.add(m * n.head_chunks, n.tensor * rows * 4 * 4);  // four statistics a row
  }
  if (!n.sequence) return out;
  // Rows of the input again, and of the output's gradient, which a split backward needs twice.
  const std::int64_t gathers = (forwards + (n.splits_backward() ? 3 : 2)) * layers;
  out.all_gather.add(gathers, stream);
  out.all_gather.add(gathers * pieces, stream / pieces);
  out.all_gather.add((rank.first ? m : 0) + (rank.last ? m : 0), stream);
  const std::int64_t times = n.zero >= 2 ? m : 1;
  const std::int64_t summed = buckets(n, rank).summed;
  if (summed > 0) out.all_reduce.add(times, 4 * summed / (n.zero == 0 ? 1 : n.shards()));
  return out;
}

/// Attention exchanges rows of queries, keys and values for heads, and outputs for rows; backward
/// does so with the gradients of both.
inline Flows context_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.context == 1) return out;
  const std::int64_t exchanges = (n.recomputes_all() ? 3 : 2) * rank.layers() * n.microbatches;
  const std::int64_t attended = n.C / n.tensor;
  out.all_to_all.add(exchanges, 4 * n.rows() * (attended + 2 * kv_rows(n)));
  out.all_to_all.add(exchanges, 4 * n.rows() * attended);
  return out;
}

/// Activations go to the next stage, gradients back.
inline Flows pipeline_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.pipeline == 1) return out;
  const std::int64_t message = 4 * n.rows() * n.C / (n.sequence ? n.tensor : 1);
  const std::int64_t chunks = n.virtual_stages();
  const std::int64_t before = chunks - (rank.first ? 1 : 0);  // chunks with a stage before them
  const std::int64_t after = chunks - (rank.last ? 1 : 0);
  out.send.add(n.microbatches * (before + after), message);
  out.recv.add(n.microbatches * (before + after), message);
  return out;
}

/// Ranks that share state: those of the data group, unless others hold copies of it.
inline Flows shard_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.data * n.context == 1) return out;
  const Buckets all = buckets(n, rank);
  for (const std::int64_t size : all.all()) {
    if (n.zero == 0) out.all_reduce.add(1, 4 * size);
    if (n.zero == 0) continue;
    out.reduce_scatter.add(n.zero >= 2 ? n.microbatches : 1, 4 * size);
    out.all_gather.add(1, 4 * size);
  }
  if (n.zero < 3 || n.pipeline > 1) return out;
  // Each pass but the first, which is counted, gathers again what lies in rooms, but for the two
  // buckets that the pass before used last.
  const auto& parts = all.parts;
  for (std::int64_t pass = 1; pass < 2 * n.microbatches; ++pass) {
    const bool is_forward = pass % 2 == 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t before = is_forward ? i : parts.size() - 1 - i;
      if (before >= 2) out.all_gather.add(1, 4 * parts[i]);
    }
  }
  return out;
}

/// Ranks that hold copies of the same shards.
inline Flows replica_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.fold() == n.data) return out;
  for (const std::int64_t size : buckets(n, rank).all()) {
    out.all_reduce.add(1, 4 * size / n.shards());
  }
  return out;
}

/// Both ends of a tied table, each data rank its shard of it if state is sharded.
inline Flows tied_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (!n.tied || n.pipeline == 1 || (!rank.first && !rank.last)) return out;
  out.all_reduce.add(1, 4 * buckets(n, rank).tied / (n.zero == 0 ? 1 : n.shards()));
  return out;
}

/// Ranks that share a key-value head: keys and values of a layer by one call, and their biases.
inline Flows key_value_flows(const Numbers& n, const PipelineRank& rank) {
  Flows out;
  if (n.tensor <= n.kv_heads) return out;
  const std::int64_t times = (n.zero >= 2 ? n.microbatches : 1) * rank.layers();
  out.all_reduce.add(times, 4 * 2 * kv_rows(n) * n.C);
  if (n.gpt2) out.all_reduce.add(times, 4 * 2 * kv_rows(n));
  return out;
}

/// One vector of sums a step.
inline Flows world_flows(const Numbers& n) {
  Flows out;
  if (n.ranks() > 1) out.all_reduce.add(1, 4 * hyperslab::ops::kSumCount);
  return out;
}

inline std::map<std::string, Flows> flows(const Numbers& n, int pipeline_rank) {
  const PipelineRank rank = pipeline_rank_of(n, pipeline_rank);
  return {{"tensor", tensor_flows(n, rank)},
          {"pipeline", pipeline_flows(n, rank)},
          {"context", context_flows(n, rank)},
          {n.fold() == n.data ? "data" : "shard", shard_flows(n, rank)},
          {n.fold() == n.data ? "shard" : "data", {}},
          {"replica", replica_flows(n, rank)},
          {"tied", tied_flows(n, rank)},
          {"key_value", key_value_flows(n, rank)},
          {"world", world_flows(n)}};
}

}  // namespace hyperslab::test
