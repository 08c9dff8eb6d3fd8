// SPDX-License-Identifier: Apache-2.0
#include "bench_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hyperslab/bench/bench_data.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

void print(const bench::DataBenchResult& result, std::size_t ranks) {
  const double bytes = result.rank_bytes / result.rank_tokens;  // of a token
  fmt::print("tokens           {}\n", result.source);
  fmt::print("step             {:.0f} tokens a rank, {:.1f} % of the targets count\n",
             result.rank_tokens, 100.0 * result.counted);
  fmt::print("\n{:<14} {:>14} {:>14} {:>18} {:>18} {:>14}\n", "median step", "slowest ms",
             "Mtokens/s", "slowest rank", "fastest rank", "MB/s");
  for (const bench::DataBenchRow& row : result.rows) {
    const auto [slowest, fastest] = std::ranges::minmax(row.rank_tokens_per_second);
    fmt::print("{:<14} {:>14.3f} {:>14.1f} {:>18.1f} {:>18.1f} {:>14.1f}\n", row.name,
               1e3 * std::ranges::max(row.step_seconds), 1e-6 * row.tokens_per_second(),
               1e-6 * slowest, 1e-6 * fastest, 1e-6 * bytes * row.tokens_per_second());
  }
  fmt::print("\n{} rank(s) together; bytes are {:.1f} a token as a stage takes them\n", ranks,
             bytes);
}

nlohmann::ordered_json to_json(const bench::DataBenchResult& result, const std::string& deck,
                               int ranks) {
  nlohmann::ordered_json out;
  out["deck"] = deck;
  out["mode"] = "data";
  out["ranks"] = ranks;
  out["commit"] = commit();
  out["source"] = result.source;
  out["rank_tokens"] = result.rank_tokens;
  out["rank_bytes"] = result.rank_bytes;
  out["counted_share"] = result.counted;
  for (const bench::DataBenchRow& row : result.rows) {
    out["rows"][row.name] = {{"tokens_per_second", row.tokens_per_second()},
                             {"step_seconds", row.step_seconds},
                             {"rank_tokens_per_second", row.rank_tokens_per_second}};
  }
  return out;
}

}  // namespace

void run_bench_of_data(comm::World& world, const Arguments& args, const train::Config& config,
                       int warmup, int steps) {
  const bench::DataBenchResult result = bench::run_data_bench(world, config, warmup, steps);
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    print(result, static_cast<std::size_t>(world.size()));
    if (!args.has("json")) return;
    const auto figures = to_json(result, args.list("DECK").front(), world.size());
    io::write_text_file(args.get<std::string>("json"), figures.dump(2) + '\n');
  });
}

}  // namespace hyperslab::cli
