// SPDX-License-Identifier: Apache-2.0
// Figures of `bench` as text, JSON and CSV.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "../command.hpp"
#include "hyperslab/bench/bench.hpp"

namespace hyperslab::cli {

/// The subject of a bench: model, device and shape of a step.
struct BenchSetup {
  std::string model;  ///< "llama: 2 layers, width 64, ..."
  std::int64_t parameters = 0;
  std::string device;  ///< "cpu", or the name of the GPU
  std::string precision;
  int ranks = 1;
  std::string layout;
  std::int64_t microbatch = 0;  ///< samples
  std::int64_t microbatches = 0;
  std::int64_t global_batch = 0;  ///< samples
  std::int64_t context = 0;       ///< tokens of a sample
};
[[nodiscard]] BenchSetup setup_of(const train::Config& config);

void print_setup(const BenchSetup& setup);
/// `cold`: the first step holds the setup and has its own row. `each`: every step on a line.
void print_times(const bench::BenchResult& result, bool cold, bool each);
void print_components(const bench::BenchResult& result);
void print_kernels(const bench::BenchResult& result);
/// The results of --communication.
void print_communication(const bench::BenchResult& result);
void print_dtypes(const bench::BenchResult& result);
void print_memory(const bench::BenchMemory& memory);
void print_counts(const bench::CallCounts& counts);

[[nodiscard]] nlohmann::ordered_json to_json(const BenchSetup& setup);
/// The first keys of a file of `bench`: deck, mode, ranks, commit and the setup.
[[nodiscard]] nlohmann::ordered_json head_of(const Arguments& args, const BenchSetup& setup);
/// `cold` as for print_times().
[[nodiscard]] nlohmann::ordered_json to_json(const bench::BenchResult& result, bool cold);
[[nodiscard]] nlohmann::ordered_json to_json(const bench::CallCounts& counts);
[[nodiscard]] nlohmann::ordered_json to_json(const bench::BenchMemory& memory, int rank);
/// The times of a step in which a rank's allocations are in use, and its bytes by kind.
[[nodiscard]] nlohmann::ordered_json timeline_json(const bench::BenchMemory& memory, int rank);
/// Rows "rank,arena,label,dtype,shape,bytes,offset", and their header.
[[nodiscard]] std::string csv_header();
[[nodiscard]] std::string to_csv(const bench::BenchMemory& memory, int rank);

}  // namespace hyperslab::cli
