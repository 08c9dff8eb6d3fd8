// SPDX-License-Identifier: Apache-2.0
#include "memory_fit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>

#include "hyperslab/mesh/mesh.hpp"
#include "train/small_run.hpp"

namespace hyperslab::plan {
namespace {

using test::small_config;

TEST(LeastThatFits, IsFoundInAsManyTriesAsTheNumberHasBits) {
  for (const std::int64_t most : {1, 2, 3, 7, 32, 100}) {
    for (std::int64_t least = 1; least <= most; ++least) {
      unsigned tries = 0;
      const std::int64_t found = least_that_fits(1, most, [&](std::int64_t number) {
        ++tries;
        return number >= least;
      });
      EXPECT_EQ(found, least) << "of " << most;
      EXPECT_LE(tries, std::bit_width(static_cast<std::uint64_t>(most))) << most;
    }
  }
}

/// Memory of the fullest rank of a pipeline, of the whole step.
std::size_t planned(const train::Config& config, const train::TrainerOptions& options = {}) {
  std::size_t most = 0;
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::first_rank_of(config.parallel, stage);
    most = std::max(most, make_plan(config, options, rank).memory.total());
  }
  return most;
}

/// That every stage takes with few microbatches as much as with all.
void expect_memory_of_all_microbatches(std::vector<std::string> overrides) {
  overrides.insert(overrides.end(),
                   {"model.layers=12", "train.microbatch=1", "train.global_batch=144"});
  const train::Config config = small_config(overrides, 0);
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::first_rank_of(config.parallel, stage);
    EXPECT_EQ(plan_memory(config, {}, rank).memory.total(),
              make_plan(config, {}, rank).memory.total())
        << fmt::format("{}, stage {}", fmt::join(overrides, " "), stage);
  }
}

TEST(PlanMemory, IsThatOfAllMicrobatches) {
  for (const std::string zero : {"0", "1", "2", "3"}) {
    expect_memory_of_all_microbatches({"parallel.data=2", "parallel.zero=" + zero});
  }
  for (const std::string pipeline : {"2", "3", "4"}) {
    const std::string stages = "parallel.pipeline=" + pipeline;
    for (const char* schedule : {"1f1b", "gpipe", "zero_bubble"}) {
      expect_memory_of_all_microbatches({stages, fmt::format("parallel.schedule={}", schedule)});
    }
    for (const char* chunks : {"2", "3"}) {
      expect_memory_of_all_microbatches({stages, "parallel.schedule=interleaved",
                                         fmt::format("parallel.virtual_stages={}", chunks)});
    }
  }
}

TEST(Pieces, AreSixteenOrOfEnoughRows) {
  const auto rows = [](std::int64_t context, std::int64_t mlp_rows = 0) {
    train::Config config = small_config({}, 1);
    config.model.context = context;
    config.train.microbatch = 2;
    config.memory.mlp_rows = mlp_rows;
    return rows_of_pieces(config);
  };
  EXPECT_EQ(rows(65536), 8192);
  EXPECT_EQ(rows(4096), 4096);
  EXPECT_EQ(rows(2048), std::nullopt) << "one piece";
  EXPECT_EQ(rows(65536, 512), std::nullopt) << "the deck has pieces";
}

/// For a rank that has what some number of blocks takes, and not a byte more.
TEST(RoomTest, AsManyBlocksKeepTheirActivationsAsFit) {
  const train::TrainerOptions options;
  for (const int pipeline : {1, 2}) {
    const train::Config deck =
        small_config({"model.layers=7", fmt::format("parallel.pipeline={}", pipeline)}, 0);
    const auto bytes_with = [&](std::int64_t blocks_again) {
      train::Config config = deck;
      config.memory.recompute = nn::Recompute::full;
      config.memory.recompute_layers = blocks_again;
      return planned(config);
    };
    EXPECT_EQ(Room(options, static_cast<double>(bytes_with(0) - 1)).keep_blocks(deck),
              std::nullopt);
    std::set<std::int64_t> answers;
    for (std::int64_t blocks = 0; blocks <= 7; ++blocks) {
      const std::size_t bytes = bytes_with(blocks);

      const auto kept = Room(options, static_cast<double>(bytes)).keep_blocks(deck);

      ASSERT_TRUE(kept.has_value()) << blocks;
      EXPECT_EQ(kept->memory.recompute, nn::Recompute::full);
      EXPECT_LE(planned(*kept), bytes);
      const std::int64_t again = kept->memory.recompute_layers;
      answers.insert(again);
      if (again > 1) {
        EXPECT_GT(bytes_with(again - 1), bytes) << "one more would fit";
      }
      if (again == 0) {
        EXPECT_EQ(bytes, bytes_with(0));
      }
    }
    EXPECT_GE(answers.size(), pipeline == 1 ? 7 : 3);
  }
}

TEST(RoomTest, AsMuchStateStaysOnTheDeviceAsFits) {
  train::TrainerOptions options;
  options.device = Device::cuda;
  for (const int pipeline : {1, 2}) {
    const train::Config config =
        small_config({"model.width=1024", "model.layers=8", "memory.optimizer=host",
                      fmt::format("parallel.pipeline={}", pipeline)},
                     0);
    const auto least = static_cast<double>(planned(config, options));
    const train::Config all = Room(options, least + 8e9).keep_state(config);
    std::set<double> answers;
    for (const double gib : {0.0, 0.1, 0.3, 0.4}) {
      const Room room(options, least + gib * (1 << 30));

      train::Config kept = room.keep_state(config);

      EXPECT_TRUE(room.fits(kept)) << gib;
      answers.insert(kept.memory.resident_gib);
      if (kept == all) continue;
      kept.memory.resident_gib += 0.25;
      EXPECT_FALSE(room.fits(kept)) << gib << " GiB, pipeline " << pipeline;
    }
    EXPECT_TRUE(answers.contains(0) && answers.contains(0.25)) << pipeline;
    EXPECT_EQ(all, Room(options, least + 9e9).keep_state(config)) << "there is no more state";
    const Plan plan = make_plan(all, options, 0);
    EXPECT_FALSE(std::ranges::any_of(plan.movements, [](const sharding::NamedMovement& moved) {
      return moved.what == "state";
    }));
  }
}

TEST(RoomTest, OfUnknownSizeHoldsAll) {
  const train::TrainerOptions options;
  EXPECT_TRUE(Room(options, std::nullopt).fits(small_config({}, 1)));
  EXPECT_FALSE(Room(options, 1024.0).fits(small_config({}, 1)));
}

}  // namespace
}  // namespace hyperslab::plan
