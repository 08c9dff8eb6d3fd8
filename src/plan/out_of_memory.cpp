// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/out_of_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "hyperslab/comm/memory_limit.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::plan {
namespace {

struct Change {
  std::string setting;
  train::Config config;
};

std::string gibibytes(std::int64_t bytes) {
  const double gib = static_cast<double>(bytes) / 1073741824.0;
  return gib < 0.1 ? fmt::format("{:.1f} MiB", 1024.0 * gib) : fmt::format("{:.2f} GiB", gib);
}

/// Attention that does not keep its probabilities; it has no dropout of them.
void add_attention(const train::Config& config, const train::TrainerOptions& options,
                   std::vector<Change>& to) {
  if (config.model.attention != model::AttentionPath::reference) return;
  if (options.device != Device::cuda ||
      !ops::has_fused_attention_on_gpu(options.compute, config.model.head_width())) {
    return;
  }
  const bool drops = options.training && config.model.dropout > 0;
  Change& change =
      to.emplace_back(Change{std::string("model.attention: auto") +
                                 (drops ? " with no dropout of attention's probabilities" : ""),
                             config});
  change.config.model.attention = model::AttentionPath::automatic;
}

void add_microbatch(const train::Config& config, const train::TrainerOptions& options,
                    std::vector<Change>& to) {
  // Texts that are read whole have the bits of the deck's microbatch.
  if (options.B > 0 || options.generation == model::Generation::whole) return;
  const std::int64_t half = config.train.microbatch / 2;
  if (half == 0 || config.train.microbatch % 2 != 0) return;
  Change& change = to.emplace_back(Change{fmt::format("train.microbatch: {}", half), config});
  change.config.train.microbatch = half;
}

void add_recompute(const train::Config& config, std::vector<Change>& to) {
  for (const nn::Recompute choice : {nn::Recompute::selective, nn::Recompute::full}) {
    if (choice <= config.memory.recompute) continue;  // which already saves as much
    Change& change =
        to.emplace_back(Change{fmt::format("memory.recompute: {}", name_of(choice)), config});
    change.config.memory.recompute = choice;
  }
}

void add_zero(const train::Config& config, std::vector<Change>& to) {
  if (config.parallel.data == 1) return;
  for (int zero = config.parallel.zero + 1; zero <= mesh::kMostZero; ++zero) {
    Change& change = to.emplace_back(Change{fmt::format("parallel.zero: {}", zero), config});
    change.config.parallel.zero = zero;
  }
}

void add_state(const train::Config& config, std::vector<Change>& to) {
  if (!optim::traits_of(config.optimizer.name).has_bf16_state) return;
  if (config.optimizer.state == optim::StateKind::bf16) return;
  Change& change = to.emplace_back(Change{"optimizer.state: bf16", config});
  change.config.optimizer.state = optim::StateKind::bf16;
}

void add_gradients(const train::Config& config, std::vector<Change>& to) {
  if (config.precision.gradients == Precision::bf16) return;
  Change& change = to.emplace_back(Change{"precision.gradients: bf16", config});
  change.config.precision.gradients = Precision::bf16;
}

void add_tensor(const train::Config& config, std::vector<Change>& to) {
  const int tensor = 2 * config.parallel.tensor;
  Change& change = to.emplace_back(
      Change{fmt::format("parallel.tensor: {} with {} ranks", tensor, 2 * config.parallel.ranks()),
             config});
  change.config.parallel.tensor = tensor;
}

std::vector<Change> changes_of(const train::Config& config, const train::TrainerOptions& options) {
  std::vector<Change> changes;
  add_microbatch(config, options, changes);
  add_attention(config, options, changes);
  if (options.training) {
    add_recompute(config, changes);
    add_zero(config, changes);
    add_state(config, changes);
    add_gradients(config, changes);
  }
  if (options.generation == model::Generation::none) add_tensor(config, changes);
  return changes;
}

/// Throws OutOfMemory for more of the host's memory than the control groups of a job allow: the
/// system gives addresses for it, and kills the process when it writes there.
void require_within_limit(const train::TrainerOptions& options, std::size_t planned_bytes) {
  if (options.device != Device::cpu) return;
  const std::optional<comm::MemoryLimit> limit = comm::memory_limit();
  if (!limit || planned_bytes <= limit->rank_bytes()) return;
  const std::string share =
      limit->ranks > 1 ? fmt::format(", which {} ranks share", limit->ranks) : "";
  throw OutOfMemory(fmt::format("by the limit of control group {}{}", limit->folder, share),
                    planned_bytes, limit->rank_bytes());
}

}  // namespace

std::vector<MemorySaving> memory_savings(const train::Config& config,
                                         const train::TrainerOptions& options, int world_rank,
                                         const IsLegal& is_legal) {
  const mesh::Coordinates at = mesh::coordinates_of(config.parallel, world_rank);
  const auto now = make_plan(config, options, world_rank).memory.total();
  std::vector<MemorySaving> savings;
  for (const Change& change : changes_of(config, options)) {
    if (!is_legal || !is_legal(change.config)) continue;
    const int rank = mesh::world_rank_of(change.config.parallel, at);
    const std::size_t then = make_plan(change.config, options, rank).memory.total();
    if (then >= now) continue;
    savings.push_back({change.setting, then, static_cast<std::int64_t>(now - then)});
  }
  std::ranges::stable_sort(savings, std::greater<>(), &MemorySaving::saved_bytes);
  return savings;
}

std::string memory_advice(const train::Config& config, const train::TrainerOptions& options,
                          int world_rank, const IsLegal& is_legal) {
  std::vector<std::string> changes;
  for (const MemorySaving& saving : memory_savings(config, options, world_rank, is_legal)) {
    changes.push_back(fmt::format("{} (saves {})", saving.setting, gibibytes(saving.saved_bytes)));
  }
  // The context of images follows from their size.
  changes.emplace_back(config.model.is_of_images() ? "a smaller model.image"
                                                   : "a smaller model.context");
  std::string text = "what would help: ";
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const bool is_last = i + 1 == changes.size();
    text += fmt::format("{}{}{}", i == 0 ? "" : ", ", is_last && i > 0 ? "or " : "", changes[i]);
  }
  return text;
}

std::unique_ptr<train::Trainer> make_trainer(const train::Config& config, const mesh::Mesh& mesh,
                                             const train::TrainerOptions& options,
                                             const model::MemoryPlan& memory,
                                             const IsLegal& is_legal) {
  try {
    require_within_limit(options, memory.total());
    return train::Trainer::make(config, mesh, options, memory);
  } catch (const OutOfMemory& error) {
    const int rank = mesh::world_rank_of(config.parallel, mesh.at());
    throw Error(ExitCode::device, fmt::format("{}; this rank needs {} in all; {}", error.facts(),
                                              gibibytes(static_cast<std::int64_t>(memory.total())),
                                              memory_advice(config, options, rank, is_legal)));
  }
}

}  // namespace hyperslab::plan
