// SPDX-License-Identifier: Apache-2.0
#include "data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hyperslab/bench/bench_data.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

/// The counted unit: its names, and the factor from counts to a table's unit.
struct Unit {
  const char* plural;
  const char* one;
  const char* of_table;
  double scale;
};

Unit unit_of(const bench::DataBenchResult& result) {
  if (result.of_images) return {"images", "image", "images/s", 1};
  return {"tokens", "token", "Mtokens/s", 1e-6};
}

void print(const bench::DataBenchResult& result, std::size_t ranks) {
  const Unit unit = unit_of(result);
  const double bytes = result.rank_bytes / result.rank_targets;
  fmt::print("{:<16} {}\n", unit.plural, result.source);
  fmt::print("step             {:.0f} {} a rank, {:.1f} % of the targets count\n",
             result.rank_targets, unit.plural, 100.0 * result.counted);
  fmt::print("\n{:<14} {:>14} {:>14} {:>18} {:>18} {:>14}\n", "median step", "slowest ms",
             unit.of_table, "slowest rank", "fastest rank", "MB/s");
  for (const bench::DataBenchRow& row : result.rows) {
    const auto [slowest, fastest] = std::ranges::minmax(row.rank_targets_per_second);
    fmt::print("{:<14} {:>14.3f} {:>14.1f} {:>18.1f} {:>18.1f} {:>14.1f}\n", row.name,
               1e3 * std::ranges::max(row.step_seconds), unit.scale * row.targets_per_second(),
               unit.scale * slowest, unit.scale * fastest, 1e-6 * bytes * row.targets_per_second());
  }
  fmt::print("\n{} rank(s) together; bytes are {:.1f} {} {} as a stage takes them\n", ranks, bytes,
             result.of_images ? "an" : "a", unit.one);
}

nlohmann::ordered_json to_json(const bench::DataBenchResult& result, const std::string& deck,
                               int ranks) {
  nlohmann::ordered_json out;
  out["deck"] = deck;
  out["mode"] = "data";
  out["ranks"] = ranks;
  out["commit"] = commit();
  out["source"] = result.source;
  const std::string plural = unit_of(result).plural;
  out["rank_" + plural] = result.rank_targets;
  out["rank_bytes"] = result.rank_bytes;
  out["counted_share"] = result.counted;
  for (const bench::DataBenchRow& row : result.rows) {
    out["rows"][row.name] = {{plural + "_per_second", row.targets_per_second()},
                             {"step_seconds", row.step_seconds},
                             {"rank_" + plural + "_per_second", row.rank_targets_per_second}};
  }
  return out;
}

}  // namespace

void run_bench_of_data(comm::World& world, const Arguments& args, const train::Config& config,
                       int warmup, int steps) {
  const bench::DataBenchResult result = bench::run_data_bench(world, config, warmup, steps);
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    if (args.has("samples")) bench::write_samples(config, args.get<std::string>("samples"));
    print(result, static_cast<std::size_t>(world.size()));
    if (!args.has("json")) return;
    const auto figures = to_json(result, args.list("DECK").front(), world.size());
    io::write_text_file(args.get<std::string>("json"), figures.dump(2) + '\n');
  });
}

}  // namespace hyperslab::cli
