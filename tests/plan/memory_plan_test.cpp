// SPDX-License-Identifier: Apache-2.0
// What a rank of a layout holds, found on `meta`, against closed forms.
#include <gtest/gtest.h>

#include "train/closed_forms.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::Numbers;

/// Of allocations one after the other; arenas align the beginning of each to 256 bytes.
std::size_t in_arena(const std::vector<std::int64_t>& bytes) {
  std::int64_t end = 0;
  for (const std::int64_t each : bytes) end = test::up_to(end, 256) + each;
  return static_cast<std::size_t>(end);
}

std::vector<std::int64_t> joined(std::vector<std::int64_t> first,
                                 const std::vector<std::int64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

model::MemoryPlan memory(const Numbers& numbers, int rank = 0,
                         const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = numbers.overrides();
  overrides.insert(overrides.end(), more.begin(), more.end());
  const train::Config config = test::small_config(overrides, numbers.ranks());
  return plan::make_plan(config, {}, rank).memory;
}

/// Bytes of the two rooms in which buckets take turns; with one bucket there is one.
std::vector<std::int64_t> rooms_of(const test::Buckets& buckets) {
  std::vector<std::int64_t> rooms(std::min<std::size_t>(2, buckets.parts.size()), 0);
  for (std::size_t i = 0; i < buckets.parts.size(); ++i) {
    std::int64_t& room = rooms[i % rooms.size()];
    room = std::max(room, 4 * buckets.parts[i]);
  }
  return rooms;
}

/// Sizes whose tensors fill whole 256-byte units, so that nothing but data counts.
Numbers round_numbers(int tensor, bool gpt2) {
  Numbers numbers;
  numbers.tensor = tensor;
  numbers.gpt2 = gpt2;
  numbers.layers = {5};
  numbers.B = 8;
  numbers.T = 32;
  numbers.C = 64;
  numbers.heads = 8;
  numbers.kv_heads = 8;
  numbers.F = 128;
  return numbers;
}

/// N counts padding; without a tied table and a tensor group nothing is held besides.
TEST(MemoryPlan, ShardsOfGradientsAndStateEqualTheClosedForms) {
  for (const bool gpt2 : {true, false}) {
    for (const bool tiny : {true, false}) {
      for (const int d : {1, 2, 3, 4, 8}) {
        Numbers numbers;
        numbers.data = d;
        numbers.gpt2 = gpt2;
        numbers.tied = false;
        numbers.tiny_buckets = tiny;
        const test::Buckets buckets = test::buckets(numbers, test::pipeline_rank_of(numbers, 0));
        const std::int64_t N = buckets.total();
        const std::int64_t decay = N / d / 32 * 4;  // a factor for every 32 elements
        SCOPED_TRACE(fmt::format("data {} gpt2 {} N {}", d, gpt2, N));

        numbers.zero = 0;
        const model::MemoryPlan zero0 = memory(numbers);
        numbers.zero = 1;
        const model::MemoryPlan zero1 = memory(numbers);
        numbers.zero = 2;
        const model::MemoryPlan zero2 = memory(numbers);
        numbers.zero = 3;
        const model::MemoryPlan zero3 = memory(numbers);

        EXPECT_EQ(zero0.gradients, in_arena({4 * N}));
        EXPECT_EQ(zero1.gradients, in_arena({4 * N}));
        const std::vector<std::int64_t> sharded = joined({4 * N / d}, rooms_of(buckets));
        EXPECT_EQ(zero2.gradients, in_arena(sharded));
        EXPECT_EQ(zero0.optimizer, in_arena({4 * N, 4 * N, d * decay}));
        EXPECT_EQ(zero1.optimizer, in_arena({4 * N / d, 4 * N / d, decay}));
        EXPECT_EQ(zero2.optimizer, zero1.optimizer);
        EXPECT_EQ(zero3.optimizer, zero1.optimizer);
        EXPECT_EQ(zero3.gradients, zero2.gradients);
        EXPECT_EQ(zero2.parameters, zero0.parameters);
        if (!gpt2) continue;  // whose table of angles lies there, too
        EXPECT_EQ(zero2.parameters, in_arena({4 * N}));
        EXPECT_EQ(zero3.parameters, in_arena(d == 1 ? std::vector{4 * N} : sharded));
      }
    }
  }
}

TEST(MemoryPlan, MomentsInBf16TakeHalf) {
  for (const int zero : {0, 1, 2}) {
    Numbers numbers;
    numbers.data = 4;
    numbers.zero = zero;
    const std::int64_t N = test::buckets(numbers, test::pipeline_rank_of(numbers, 0)).total();
    const std::int64_t kept = zero == 0 ? N : N / 4;

    EXPECT_EQ(memory(numbers, 0, {"optimizer.state=bf16"}).optimizer,
              in_arena({2 * kept, 2 * kept, kept / 32 * 4}))
        << zero;
  }
}

/// Buckets of tied, summed and equal tensors have buffers of their own beside the two.
TEST(MemoryPlan, Zero2HoldsTwoBucketsAndThoseThatStayOpen) {
  Numbers numbers;
  numbers.data = 4;
  numbers.tensor = 2;
  numbers.sequence = true;
  numbers.zero = 2;
  numbers.microbatches = 3;
  const test::Buckets buckets = test::buckets(numbers, test::pipeline_rank_of(numbers, 0));

  EXPECT_EQ(memory(numbers).gradients,
            in_arena(joined(joined({4 * buckets.total() / 4}, rooms_of(buckets)),
                            {4 * buckets.tied, 4 * buckets.summed, 4 * buckets.equal})));
}

/// A slot is what one microbatch takes, so activations are slots times that of one microbatch.
TEST(MemoryPlan, ActivationsFollowTheSlotsOfTheSchedule) {
  Numbers numbers = round_numbers(1, true);
  numbers.pipeline = 4;
  numbers.layers = {1, 2, 2, 1};
  const auto slots = [](const std::string& schedule, std::int64_t m, int s) -> std::int64_t {
    if (schedule == "gpipe") return m;
    return std::min<std::int64_t>(m, 4 - s);  // 1f1b
  };
  for (const char* schedule : {"gpipe", "1f1b"}) {
    numbers.schedule = schedule;
    for (int stage = 0; stage < 4; ++stage) {
      numbers.microbatches = 1;
      const std::size_t slot = memory(numbers, stage).activations;
      for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 9}) {
        numbers.microbatches = m;
        EXPECT_EQ(memory(numbers, stage).activations,
                  static_cast<std::size_t>(slots(schedule, m, stage)) * slot)
            << schedule << " stage " << stage << " microbatches " << m;
      }
    }
  }
}

TEST(MemoryPlan, ZeroBubbleKeepsNoMoreMicrobatchesThanTheFirstRankOf1f1b) {
  Numbers numbers = round_numbers(1, true);
  numbers.pipeline = 4;
  numbers.layers = {1, 2, 2, 1};
  numbers.schedule = "zero_bubble";
  for (int stage = 0; stage < 4; ++stage) {
    numbers.microbatches = 1;
    const std::size_t slot = memory(numbers, stage).activations;
    numbers.microbatches = 9;
    const std::size_t all = memory(numbers, stage).activations;
    EXPECT_EQ(all % slot, 0U) << stage;
    EXPECT_LE(all, 4 * slot) << stage;
    EXPECT_GT(all, slot) << stage;
  }
}

/// Bytes of one microbatch by hand (Korthikanti et al. 2022, section 4, in fp32): of a block that
/// is not the first, and what the others keep.
struct ByHand {
  std::size_t stream = 0;     ///< (B, T, C), or this rank's rows of it
  std::size_t activated = 0;  ///< (B, T, F), of this rank
  std::size_t block = 0;
  std::size_t first_block = 0;  ///< nothing is added in front of it

  explicit ByHand(const Numbers& n) {
    const auto rows = static_cast<std::size_t>(4 * n.B * n.T);
    const auto t = static_cast<std::size_t>(n.tensor);
    const auto C = static_cast<std::size_t>(n.C);
    const auto F = static_cast<std::size_t>(n.F);
    const std::size_t stream_rows = n.sequence ? rows / t : rows;
    stream = stream_rows * C;
    activated = rows * F / t;
    const std::size_t statistics = (n.gpt2 ? 2 : 1) * stream_rows;  // mean and 1 / deviation
    const std::size_t norm = 2 * stream + statistics;               // the sum and what comes out
    const std::size_t qkv = 3 * rows * C / t;
    const std::size_t attention = qkv + rows * C / t + rows * static_cast<std::size_t>(n.heads) / t;
    const std::size_t mlp = (n.gpt2 ? 1 : 2) * activated + activated;
    block = 2 * norm + attention + mlp;
    first_block = block - stream;
  }
};

TEST(MemoryPlan, RecomputationSavesExactlyWhatItComputesAgain) {
  for (const bool sequence : {false, true}) {
    for (const bool gpt2 : {true, false}) {
      for (const int slots : {1, 2}) {
        Numbers numbers = round_numbers(2, gpt2);
        numbers.sequence = sequence;
        numbers.schedule = "gpipe";
        numbers.microbatches = slots;
        const ByHand hand(numbers);
        const auto m = static_cast<std::size_t>(slots);
        SCOPED_TRACE(fmt::format("sequence {} gpt2 {} slots {}", sequence, gpt2, slots));

        const model::MemoryPlan none = memory(numbers);
        numbers.recompute = "selective";
        const model::MemoryPlan selective = memory(numbers);
        numbers.recompute = "full";
        const model::MemoryPlan full = memory(numbers);

        EXPECT_EQ(none.activations - selective.activations,
                  m * 5 * (2 * hand.stream + hand.activated));
        EXPECT_EQ(selective.scratch - none.scratch, hand.stream + hand.activated);
        // Instead of five blocks their inputs are kept, the first one with the embedding's output.
        EXPECT_EQ(none.activations - full.activations,
                  m * (hand.first_block + 4 * hand.block - 4 * hand.stream));
        EXPECT_EQ(full.scratch - none.scratch, hand.first_block);
        EXPECT_LT(full.activations, selective.activations);
        const model::MemoryPlan first_three = memory(numbers, 0, {"memory.recompute_layers=3"});
        EXPECT_EQ(first_three.activations - full.activations, m * 2 * (hand.block - hand.stream));
        EXPECT_EQ(first_three.scratch, full.scratch);
      }
    }
  }
}

TEST(MemoryPlan, PiecesTakeTheRowsOfOneOfThem) {
  for (const bool sequence : {false, true}) {
    for (const bool gpt2 : {true, false}) {
      Numbers numbers = round_numbers(2, gpt2);
      numbers.sequence = sequence;
      numbers.recompute = "full";
      const ByHand hand(numbers);
      SCOPED_TRACE(fmt::format("sequence {} gpt2 {}", sequence, gpt2));
      const model::MemoryPlan whole = memory(numbers);
      for (const std::int64_t pieces : {1, 2, 4, 8}) {
        numbers.mlp_pieces = pieces;
        const model::MemoryPlan found = memory(numbers);

        // Before and after the activation, and a gated one's gradient.
        const std::size_t wide = (gpt2 ? 2 : 4) * hand.activated;
        EXPECT_EQ(whole.scratch - found.scratch, wide - wide / static_cast<std::size_t>(pieces));
        EXPECT_EQ(found.activations, whole.activations);
      }
    }
  }
}

TEST(MemoryPlan, LogitsTakeTheRowsThatTheDeckSays) {
  const Numbers numbers = round_numbers(1, false);
  const auto scratch = [&](std::int64_t rows) {
    std::vector<std::string> overrides = numbers.overrides();
    overrides.push_back(fmt::format("memory.loss_rows={}", rows));
    return plan::make_plan(test::small_config(overrides, 1), {}, 0).memory.scratch;
  };
  const auto bytes = [&](std::int64_t rows) {
    const std::int64_t logits = 4 * rows * numbers.V;
    return static_cast<std::size_t>(test::up_to(logits, Arena::kAlignment));
  };

  EXPECT_EQ(scratch(0), scratch(numbers.B * numbers.T));
  for (const std::int64_t rows : {1, 16, 64, 128}) {
    EXPECT_EQ(scratch(0) - scratch(rows), bytes(numbers.B * numbers.T) - bytes(rows)) << rows;
  }
}

/// Sequence parallelism cuts what lies between the tensor-parallel products.
TEST(MemoryPlan, SequenceParallelismCutsTheStream) {
  Numbers numbers = round_numbers(4, true);
  const ByHand whole(numbers);
  const model::MemoryPlan before = memory(numbers);
  numbers.sequence = true;
  const ByHand cut(numbers);
  const model::MemoryPlan after = memory(numbers);

  const std::size_t blocks = whole.first_block - cut.first_block + 4 * (whole.block - cut.block);
  const std::size_t rows = 4 * 8 * 32;
  // The embedding's output, the final norm with its sum and statistics, the stream's gradient.
  const std::size_t others = 4 * (whole.stream - cut.stream) + 2 * (rows - rows / 4);
  EXPECT_EQ(before.activations - after.activations, blocks + others);
}

/// What a rank takes from the scratch arena, in order.
std::vector<std::string> scratch_of(const train::Config& config, int rank) {
  std::vector<std::string> taken;
  for (const auto& [arena, each] : plan::make_plan(config, {}, rank).allocations) {
    if (arena != "scratch") continue;
    taken.push_back(fmt::format("{} at {}: {}", each.bytes, each.offset_bytes, each.label));
  }
  return taken;
}

/// Tensor ranks write into each other's scratch arena.
TEST(MemoryPlan, TensorRanksTakeTheSameFromTheScratchArena) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"parallel.sequence=true"},
      {"model.family=llama", "model.kv_heads=1"},
      {"model.family=llama", "model.tie_embeddings=true", "memory.recompute=selective"},
      {"memory.recompute=full", "parallel.zero=2", "optimizer.ema_decay=0.9"},
      {"memory.recompute=full", "memory.mlp_rows=7", "memory.loss_rows=5"},
      {"parallel.pipeline=2", "parallel.schedule=zero_bubble", "parallel.sequence=true"},
      {"parallel.pipeline=2", "model.tie_embeddings=true", "parallel.zero=1"},
      {"adapter.rank=2", "model.frozen_format=int8"},
      {"quantization.weights=int8", "parallel.zero=1"},
      {"optimizer.name=muon"}};
  for (const int tensor : {2, 4}) {
    for (std::vector<std::string> overrides : layouts) {
      overrides.push_back(fmt::format("parallel.tensor={}", tensor));
      SCOPED_TRACE(fmt::format("{}", fmt::join(overrides, " ")));
      const bool is_cut = std::ranges::count(overrides, "parallel.pipeline=2") > 0;
      const int ranks = tensor * (is_cut ? 2 : 1);
      const train::Config config = test::small_config(overrides, ranks);
      for (int first = 0; first < ranks; first += tensor) {  // of a tensor group
        const std::vector<std::string> expected = scratch_of(config, first);
        EXPECT_FALSE(expected.empty());
        for (int rank = first + 1; rank < first + tensor; ++rank) {
          EXPECT_EQ(scratch_of(config, rank), expected) << "rank " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
