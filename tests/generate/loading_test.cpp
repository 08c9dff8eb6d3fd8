// SPDX-License-Identifier: Apache-2.0
// A generator that takes the values of another checkpoint continues texts as that model does.
#include <gtest/gtest.h>

#include "hyperslab/core/error.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"
#include "unequal_texts.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

/// Saves the initial values of a deck, which its seed decides; returns the step's folder.
std::string saved(const std::string& directory, const std::vector<std::string>& overrides) {
  const train::Config config = small_config(overrides, 1);
  const auto mesh = train::make_mesh(test::world(), config, Device::cpu);
  test::SmallRun run(config, *mesh, 0);
  io::CheckpointMeta meta;
  meta.step = 5;
  meta.model = model::identity(config.model);
  io::save_checkpoint(test::world(), directory, meta, run.trainer().state().slabs());
  return io::CheckpointReader(directory).folder();
}

TEST(Loading, TextsAreThoseOfTheCheckpointThatWasLoadedLast) {
  const test::TempFolder folder;
  const SamplingOptions options = options_of(0, 25);
  for (const char* family : {"model.family=gpt2", "model.family=llama"}) {
    const std::string first = saved(folder.path() + "/a", {family, "run.seed=12"});
    const std::string second = saved(folder.path() + "/b", {family, "run.seed=13"});
    const train::Config config = small_config({family}, 1);
    const auto texts_of = [&](const std::string& path) {
      const io::CheckpointReader reader(path);
      Generator known(test::world(), config, &reader, {.rows = 4});
      return together(known, options, true);
    };
    Generator generator(test::world(), config, nullptr, {.rows = 4});
    Prompts newest = together(generator, options, true);
    for (const std::string& path : {first, second, first}) {
      generator.require_takes(io::CheckpointReader(path));
      generator.load(path, false);
      const Prompts found = together(generator, options, true);
      EXPECT_EQ(found, texts_of(path));
      EXPECT_NE(found, newest);
      newest = found;
    }
  }
}

TEST(Loading, AnotherModelIsRefusedAndChangesNothing) {
  const test::TempFolder folder;
  const std::string other = saved(folder.path(), {"model.layers=2"});
  Generator generator(test::world(), small_config({}, 1), nullptr, {.rows = 4});
  const SamplingOptions options = options_of(0, 25);
  const Prompts before = together(generator, options, true);
  for (const bool averages : {false, true}) {  // none are kept
    EXPECT_THROW(generator.load(other, averages), Error);
  }
  EXPECT_THROW(generator.require_takes(io::CheckpointReader(other)), Error);
  EXPECT_EQ(together(generator, options, true), before);
}

}  // namespace
}  // namespace hyperslab::generate
