// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "../command.hpp"
#include "hyperslab/core/dtype.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/run/run_lock.hpp"

namespace hyperslab::cli {

/// Options of `checkpoint export`, `import` and `merge`.
void add_exchange_options(Arguments& args);
/// A checkpoint becomes a folder of another program; one rank.
void export_checkpoint(const Arguments& args);
/// A folder of another program becomes a checkpoint; one rank.
void import_checkpoint(comm::World& world, const Arguments& args);

/// The one folder on the command line. Throws Error(usage) for more.
[[nodiscard]] std::string only_folder(const Arguments& args);
/// A checkpoint; with --ema the averages of its trained weights instead of them. Throws
/// Error(checkpoint).
[[nodiscard]] io::CheckpointReader trained_weights(const Arguments& args,
                                                   const std::string& folder);
/// --output; throws Error(usage) without.
[[nodiscard]] std::string output_of(const Arguments& args);
/// Throws Error(storage) unless nothing is at the path, or an empty folder.
void require_new(const std::string& output);
/// The value of --dtype; throws Error(usage).
[[nodiscard]] DType dtype_of_name(const std::string& name);
/// The last name of a path, for the run that goes on from there.
[[nodiscard]] std::string last_name(const std::string& path);

/// Keeps a run that writes in the output, or has its checkpoints there, and an import apart.
class ImportLocks {
 public:
  ImportLocks(const std::string& output, const std::string& host);

 private:
  std::optional<run::RunLock> run_;
  std::optional<run::RunLock> output_;  // released first
};

}  // namespace hyperslab::cli
