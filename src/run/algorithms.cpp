// SPDX-License-Identifier: Apache-2.0
#include "algorithms.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"

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

ops::AlgorithmCache choose_algorithms(const Start& start, train::Trainer& trainer,
                                      io::Loader& loader, ResumePoint point) {
  Context& ctx = trainer.context();
  ops::AlgorithmCache& known = point.algorithms;
  const std::string platform = ops::gemm_platform(ctx);
  if (platform.empty()) return known;
  const std::string path = start.config.run.directory + "/algorithms.txt";
  if (start.is_first()) {
    known.merge(read_algorithms_file(path));
    known.merge(
        read_algorithms_file(start.config.run.directory + "/products.txt"));  // its old name
  }
  known = merge_algorithms(start.world, known, {});
  const std::size_t foreign = known.size() - known.size_on(platform);
  if (foreign > 0 && start.is_first()) {
    log::info(fmt::format("{} GEMM algorithms of earlier starts are not for {}: not used", foreign,
                          platform));
  }
  ops::adopt_algorithms(ctx, known);
  trainer.warm_up(loader, point.first_step);
  ops::AlgorithmCache used = merge_algorithms(start.world, ops::algorithms_of(ctx), known);
  ops::adopt_algorithms(ctx, used);
  const std::int64_t chosen = start.world.max(ops::chosen_algorithms(ctx));
  comm::agree(start.world, [&] {
    if (start.is_first()) write_algorithms_file(path, used);
  });
  if (start.is_first()) {
    log::info(
        fmt::format("GEMMs: {} kinds on this rank, at most {} algorithms chosen by time on a rank; "
                    "cached in {}",
                    ops::algorithms_of(ctx).size(), chosen, path));
  }
  return used;
}

}  // namespace hyperslab::run
