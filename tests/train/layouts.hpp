// SPDX-License-Identifier: Apache-2.0
// A small deck on every axis, and layouts of it that are drawn with a fixed seed.
#pragma once

#include <fmt/format.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/deck/deck.hpp"

namespace hyperslab::test {

/// Four blocks of eight heads; the vocabulary divides by no number of ranks.
inline constexpr const char* kLayoutsDeck = R"(
run: {name: layouts, seed: 11}
model: {family: gpt2, layers: 4, width: 32, heads: 8, ffn_width: 48, vocabulary: 67, context: 8}
data: {train: [synthetic]}
optimizer: {lr: 3.0e-3, clip_norm: 0.5}
schedule: {name: cosine, warmup_steps: 2}
train: {steps: 60, global_batch: 8}
)";

/// Overrides of the model and the batch, and those of the layout.
struct Case {
  std::vector<std::string> model;
  std::vector<std::string> layout;
  [[nodiscard]] std::string str() const {
    std::string text;
    for (const auto* part : {&model, &layout}) {
      for (const std::string& set : *part) text += (text.empty() ? "" : " ") + set;
    }
    return text;
  }
};

template <class Value>
void set(std::vector<std::string>& to, const char* key, const Value& value) {
  to.push_back(fmt::format("{}={}", key, value));
}

inline train::Config read_layout(std::vector<std::string> overrides,
                                 const std::vector<std::string>& more, int ranks) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  deck::Surroundings surroundings;
  surroundings.ranks = ranks;
  return deck::read_deck(kLayoutsDeck, "layouts.yaml", overrides, surroundings);
}

/// Whether the rules of the deck take it.
inline bool is_legal(const Case& layout, int ranks) {
  try {
    (void)read_layout(layout.model, layout.layout, ranks);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// Layouts of a number of ranks, legal or not.
class Draw {
 public:
  explicit Draw(int ranks) : ranks_(ranks), random_(static_cast<std::uint32_t>(1000 + ranks)) {}

  Case next() {
    const int tensor = divisor(ranks_);
    const int pipeline = divisor(ranks_ / tensor);
    const int context = one_of({true, true, false}) ? divisor(ranks_ / tensor / pipeline) : 1;
    const int data = ranks_ / tensor / pipeline / context;
    Case out;
    draw_model(out.model, data);
    set(out.layout, "parallel.data", data);
    set(out.layout, "parallel.tensor", tensor);
    set(out.layout, "parallel.pipeline", pipeline);
    set(out.layout, "parallel.context", context);
    set(out.layout, "parallel.sequence", tensor > 1 && one_of({true, false}));
    draw_schedule(out.layout, pipeline);
    set(out.layout, "parallel.zero", one_of({0, 1, 2, 3}));
    set(out.layout, "parallel.shard", data == 4 || data == 8 ? one_of({0, 2}) : 0);
    set(out.layout, "parallel.bucket_mib", one_of({0.001, 0.01, 16.0}));
    const std::string recompute = one_of<const char*>({"none", "selective", "full"});
    set(out.layout, "memory.recompute", recompute);
    set(out.layout, "memory.activations",
        recompute == "full" && one_of({true, false}) ? "host" : "device");
    set(out.layout, "memory.mlp_rows", recompute == "full" ? one_of({0, 5, 16}) : 0);
    set(out.layout, "memory.loss_rows", one_of({0, 0, 5}));
    return out;
  }

 private:
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random_() % values.size()));
  }

  int divisor(int number) {
    for (;;) {
      const int candidate = one_of({1, 2, 3, 4, 6, 8});
      if (number % candidate == 0) return candidate;
    }
  }

  void draw_model(std::vector<std::string>& to, int data) {
    const int microbatches = one_of({1, 2, 3, 4, 5, 6, 7, 8, 9});
    const int microbatch = one_of({1, 2, 3});
    if (ranks_ % 3 == 0) {  // six heads, so that three ranks can share them
      set(to, "model.width", 36);
      set(to, "model.heads", 6);
      set(to, "model.context", 12);
      set(to, "model.kv_heads", one_of({6, 3, 2, 1}));
    } else {
      set(to, "model.kv_heads", one_of({8, 4, 2, 1}));
    }
    set(to, "model.family", one_of<const char*>({"gpt2", "llama"}));
    set(to, "model.tie_embeddings", one_of({true, false}));
    set(to, "model.attention", one_of<const char*>({"fused", "reference"}));
    set(to, "model.dropout", one_of({0.0, 0.0, 0.1}));
    const std::string norm_place =
        one_of<const char*>({"pre", "pre", "pre", "post", "sandwich", "post_sublayer"});
    set(to, "model.norm_place", norm_place);
    // What a bias adds to a sublayer's output is nearly taken off again by its norm, so that
    // gradients of biases would be rounding in the main; models with these norms have none.
    if (norm_place == "sandwich" || norm_place == "post_sublayer") set(to, "model.bias", false);
    set(to, "model.parallel_block", norm_place == "pre" && one_of({true, false, false}));
    set(to, "model.attention_sinks", microbatches % 3 == 0);
    set(to, "train.z_loss", microbatches % 2 == 0 ? 0.01 : 0.0);
    set(to, "train.microbatch", microbatch);
    set(to, "train.global_batch", microbatch * microbatches * data);
  }

  void draw_schedule(std::vector<std::string>& to, int pipeline) {
    const std::string schedule =
        one_of<const char*>({"gpipe", "1f1b", "1f1b", "interleaved", "zero_bubble"});
    set(to, "parallel.schedule", schedule);
    int stages = pipeline;
    if (schedule == "interleaved" && pipeline > 1) {
      const int virtual_stages = one_of({1, 2, 2, 3});
      set(to, "parallel.virtual_stages", virtual_stages);
      stages *= virtual_stages;
    }
    if (stages > 1 && one_of({true, false})) draw_cut(to, stages);
  }

  /// The four blocks in any parts, none only at the ends.
  void draw_cut(std::vector<std::string>& to, int stages) {
    std::vector<int> layers(static_cast<std::size_t>(stages), 1);
    layers.front() = layers.back() = 0;
    for (int left = 4 - std::max(0, stages - 2); left > 0; --left) {
      ++layers[random_() % layers.size()];
    }
    to.push_back(fmt::format("parallel.stage_layers=[{}]", fmt::join(layers, ",")));
  }

  int ranks_;
  std::mt19937 random_;
};

/// Legal layouts of so many ranks, each once.
inline std::vector<Case> draw_layouts(int ranks, std::size_t count) {
  Draw draw(ranks);
  std::set<std::string> seen;
  std::vector<Case> out;
  while (out.size() < count) {
    const Case next = draw.next();
    if (is_legal(next, ranks) && seen.insert(next.str()).second) out.push_back(next);
  }
  return out;
}

}  // namespace hyperslab::test
