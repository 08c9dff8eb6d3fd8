// SPDX-License-Identifier: Apache-2.0
#include "algorithms.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "training_run.hpp"

namespace hyperslab::run {
namespace {

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

ops::AlgorithmCache read_algorithms(const std::string& text, const std::string& where) {
  if (text.empty()) return {};
  try {
    return ops::AlgorithmCache::of_text(text, where);
  } catch (const Error& error) {
    log::warn(error.what());
    return {};
  }
}

ops::AlgorithmCache read_algorithms_file(const std::string& path) {
  return read_algorithms(text_of_file(path), path);
}

void write_algorithms_file(const std::string& path, const ops::AlgorithmCache& table) {
  const std::string text = table.text();
  if (text_of_file(path) == text) return;
  io::write_text_file(path, text);
}

ops::AlgorithmCache merge_algorithms(comm::World& world, const ops::AlgorithmCache& mine,
                                     const ops::AlgorithmCache& kept) {
  const std::vector<std::string> texts = world.gather(mine.text());
  ops::AlgorithmCache all;
  for (const std::string& text : texts) {
    all.merge(ops::AlgorithmCache::of_text(text, "the algorithms of a rank"));
  }
  all.merge(kept);
  return ops::AlgorithmCache::of_text(world.broadcast(all.text()), "the algorithms of all ranks");
}

/// Before the first step, and before any graph is captured: ranks that run the same kind of product
/// run the same algorithm, now and when the run is resumed, so that replicas keep equal bits.
void TrainingRun::settle_algorithms() {
  Context& ctx = trainer_->context();
  const std::string platform = ops::gemm_platform(ctx);
  if (platform.empty() || first_step_ > last_step_) return;
  const std::string path = config_.run.directory + "/algorithms.txt";
  if (is_first()) {
    algorithms_.merge(read_algorithms_file(path));
    algorithms_.merge(
        read_algorithms_file(config_.run.directory + "/products.txt"));  // its old name
  }
  algorithms_ = merge_algorithms(world_, algorithms_, {});
  const std::size_t foreign = algorithms_.size() - algorithms_.size_on(platform);
  if (foreign > 0 && is_first()) {
    log::info(fmt::format("{} GEMM algorithms of earlier starts are not for {}: not used", foreign,
                          platform));
  }
  ops::adopt_algorithms(ctx, algorithms_);
  trainer_->warm_up(*loader_, first_step_);
  const ops::AlgorithmCache used = merge_algorithms(world_, ops::algorithms_of(ctx), algorithms_);
  ops::adopt_algorithms(ctx, used);
  algorithms_ = used;
  const std::int64_t chosen = world_.max(ops::chosen_algorithms(ctx));
  train::agree(world_, [&] {
    if (is_first()) write_algorithms_file(path, algorithms_);
  });
  if (!is_first()) return;
  log::info(
      fmt::format("GEMMs: {} kinds on this rank, at most {} algorithms chosen by time on a rank; "
                  "cached in {}",
                  ops::algorithms_of(ctx).size(), chosen, path));
}

}  // namespace hyperslab::run
