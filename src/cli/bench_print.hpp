// SPDX-License-Identifier: Apache-2.0
// Figures of `bench` as text, JSON and CSV.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "hyperslab/train/bench.hpp"

namespace hyperslab::cli {

void print_times(const train::BenchResult& result);
void print_components(const train::BenchResult& result);
void print_kernels(const train::BenchResult& result);
void print_dtypes(const train::BenchResult& result);
void print_memory(const train::BenchMemory& memory);
void print_counts(const train::CallCounts& counts);

[[nodiscard]] nlohmann::ordered_json to_json(const train::BenchResult& result);
[[nodiscard]] nlohmann::ordered_json to_json(const train::CallCounts& counts);
[[nodiscard]] nlohmann::ordered_json to_json(const train::BenchMemory& memory, int rank);
/// Rows "rank,arena,label,dtype,shape,bytes,offset"; those of the header, too.
[[nodiscard]] std::string csv_header();
[[nodiscard]] std::string to_csv(const train::BenchMemory& memory, int rank);

}  // namespace hyperslab::cli
