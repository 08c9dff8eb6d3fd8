// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/out_of_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "hyperslab/comm/memory_limit.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/plan/units.hpp"
#include "memory_fit.hpp"

namespace hyperslab::plan {
namespace {

struct Change {
  std::string setting;
  train::Config config;
};

template <class Integer>
std::string gibibytes(Integer bytes) {
  return bytes_text(static_cast<double>(bytes));
}

/// "a, b or c"
std::string listed(const std::vector<std::string>& texts, const std::string& last_word) {
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const bool is_last = i + 1 == texts.size();
    text += (i == 0 ? "" : is_last ? " " + last_word + " " : ", ") + texts[i];
  }
  return text;
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

/// Feed-forward networks in a few pieces, of rows enough that products take no longer.
void add_mlp_rows(const train::Config& config, std::vector<Change>& to) {
  if (config.memory.recompute != nn::Recompute::full) return;
  const std::optional<std::int64_t> rows = rows_of_pieces(config);
  if (!rows) return;
  Change& change = to.emplace_back(Change{fmt::format("memory.mlp_rows: {}", *rows), config});
  change.config.memory.mlp_rows = *rows;
}

void add_zero(const train::Config& config, std::vector<Change>& to) {
  if (config.parallel.shards() == 1) return;
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

/// The host of CPU ranks is their device.
void add_host_state(const train::Config& config, const train::TrainerOptions& options,
                    std::vector<Change>& to) {
  if (options.device != Device::cuda || config.memory.optimizer == Home::host) return;
  Change& change = to.emplace_back(Change{"memory.optimizer: host", config});
  change.config.memory.optimizer = Home::host;
}

/// Inputs of blocks that are computed again.
void add_host_inputs(const train::Config& config, const train::TrainerOptions& options,
                     std::vector<Change>& to) {
  const bool has_some =
      config.memory.recompute == nn::Recompute::full && config.memory.activations == Home::device;
  if (options.device != Device::cuda || !has_some) return;
  Change& change = to.emplace_back(Change{"memory.activations: host", config});
  change.config.memory.activations = Home::host;
}

void add_gradients(const train::Config& config, std::vector<Change>& to) {
  if (config.precision.gradients == Precision::bf16) return;
  Change& change = to.emplace_back(Change{"precision.gradients: bf16", config});
  change.config.precision.gradients = Precision::bf16;
}

std::string on_more_hosts(const train::TrainerOptions& options) {
  return options.device == Device::cpu ? " on more hosts" : "";
}

void add_tensor(const train::Config& config, const train::TrainerOptions& options,
                std::vector<Change>& to) {
  const int tensor = 2 * config.parallel.tensor;
  // More ranks on a host of CPU ranks leave each of them less of its memory.
  Change& change =
      to.emplace_back(Change{fmt::format("parallel.tensor: {} with {} ranks{}", tensor,
                                         2 * config.parallel.ranks(), on_more_hosts(options)),
                             config});
  change.config.parallel.tensor = tensor;
}

std::vector<Change> changes_of(const train::Config& config, const train::TrainerOptions& options) {
  std::vector<Change> changes;
  add_microbatch(config, options, changes);
  add_attention(config, options, changes);
  if (options.training) {
    add_recompute(config, changes);
    add_mlp_rows(config, changes);
    add_zero(config, changes);
    add_state(config, changes);
    add_host_state(config, options, changes);
    add_host_inputs(config, options, changes);
    add_gradients(config, changes);
  }
  if (options.generation == model::Generation::none) add_tensor(config, options, changes);
  return changes;
}

/// A legal change that saves memory, and what the rank takes with it.
struct Outcome {
  Change change;
  std::size_t bytes = 0;
};

/// The rank whose memory is planned.
struct RankOptions {
  const train::TrainerOptions& options;
  mesh::Position at;
  const IsLegal& is_legal;

  /// The rank with the same coordinates on a mesh that may be larger.
  [[nodiscard]] int rank_in(const mesh::ParallelConfig& parallel) const {
    mesh::Position there(parallel, 0);
    for (const mesh::Axis axis : mesh::kAxes) there = there.moved(axis, at.at(axis));
    return there.world_rank();
  }
  [[nodiscard]] std::size_t bytes(const train::Config& config) const {
    return plan_memory(config, options, rank_in(config.parallel)).memory.total();
  }
  /// The largest saving first.
  [[nodiscard]] std::vector<Outcome> outcomes(const train::Config& config) const {
    const std::size_t now = bytes(config);
    std::vector<Outcome> found;
    for (const Change& change : changes_of(config, options)) {
      if (!is_legal || !is_legal(change.config)) continue;
      const std::size_t then = bytes(change.config);
      if (then < now) found.push_back({change, then});
    }
    std::ranges::stable_sort(found, {}, &Outcome::bytes);
    return found;
  }
};

/// Settings of one key each: a new one takes the place of an earlier one.
void set(const std::string& setting, std::vector<std::string>& settings) {
  const std::string key = setting.substr(0, setting.find(':') + 1);
  std::erase_if(settings, [&](const std::string& old) { return old.starts_with(key); });
  settings.push_back(setting);
}

/// Makes the change that saves most, again and again, until the rank fits; those that need more
/// ranks only where no other is left. Empty: it never fits.
std::string changes_that_fit(const RankOptions& rank, train::Config config,
                             std::size_t room_bytes) {
  constexpr int kMostChanges = 40;
  std::vector<std::string> settings;
  for (int i = 0; i < kMostChanges; ++i) {
    const std::vector<Outcome> outcomes = rank.outcomes(config);
    if (outcomes.empty()) return "";
    const int ranks = config.parallel.ranks();
    auto best = std::ranges::find_if(outcomes, [&](const Outcome& outcome) {
      return outcome.change.config.parallel.ranks() == ranks;
    });
    if (best == outcomes.end()) best = outcomes.begin();
    set(best->change.setting, settings);
    if (best->bytes <= room_bytes) {
      return fmt::format("but {} {} ({})", listed(settings, "and"),
                         settings.size() > 1 ? "together do" : "does", gibibytes(best->bytes));
    }
    config = best->change.config;
  }
  return "";
}

/// The longest context of half, a quarter, ... that fits; empty: none does.
std::string context_that_fits(const RankOptions& rank, train::Config config,
                              std::size_t room_bytes) {
  if (!rank.options.training || config.model.is_of_images()) return "";
  while (config.model.context >= 2) {
    config.model.context /= 2;
    if (!rank.is_legal || !rank.is_legal(config)) return "";
    const std::size_t bytes = rank.bytes(config);
    if (bytes > room_bytes) continue;
    return fmt::format("model.context: {} does ({})", config.model.context, gibibytes(bytes));
  }
  return "";
}

std::string fitting_text(const RankOptions& rank, const train::Config& config,
                         std::size_t room_bytes) {
  std::string text = changes_that_fit(rank, config, room_bytes);
  const std::string context = context_that_fits(rank, config, room_bytes);
  if (!context.empty()) text += (text.empty() ? "but " : ", and ") + context;
  return text.empty() ? "nor do they together: it takes a smaller model (model.layers, "
                        "model.width) or more ranks (parallel.tensor, parallel.pipeline)" +
                            on_more_hosts(rank.options)
                      : text;
}

/// Bytes of the host that each of its ranks can take.
std::size_t host_room() {
  const std::vector<comm::MemoryLimit> limits = comm::memory_limits("");
  return comm::rank_share(std::ranges::min(limits, {}, &comm::MemoryLimit::room_bytes).room_bytes);
}

/// Bytes of its device that a rank can take.
std::size_t room_of_rank(const train::TrainerOptions& options) {
  if (options.device == Device::meta) return std::numeric_limits<std::size_t>::max();
  return options.device == Device::cpu ? host_room() : device_memory(options.device).free;
}

/// Bytes of its host's memory that a rank takes.
std::size_t bytes_on_host(const train::TrainerOptions& options, const model::MemoryPlan& memory) {
  return memory.host + (options.device == Device::cpu ? memory.total() : 0);
}

/// The keys by which GPUs keep something in page-locked memory, and what takes less of it.
std::string page_locked_advice(const train::Config& config, const model::MemoryPlan& memory) {
  std::vector<std::string> keys;
  std::vector<std::string> changes = {"more hosts"};
  if (config.memory.optimizer == Home::host) {
    keys.emplace_back("memory.optimizer: host");
    changes.insert(changes.end(),
                   {"parallel.zero 1 over more data ranks", "optimizer.state: bf16"});
  }
  if (config.memory.activations == Home::host) {
    keys.emplace_back("memory.activations: host");
    changes.emplace_back("fewer memory.host_layers");
  }
  return fmt::format("{} {} {} of page-locked memory for each rank; use {}", listed(keys, "and"),
                     keys.size() > 1 ? "take" : "takes", gibibytes(memory.host),
                     listed(changes, "or"));
}

}  // namespace

std::vector<MemorySaving> memory_savings(const train::Config& config,
                                         const train::TrainerOptions& options, int world_rank,
                                         const IsLegal& is_legal) {
  const RankOptions rank{options, mesh::Position(config.parallel, world_rank), is_legal};
  const std::size_t now = rank.bytes(config);
  std::vector<MemorySaving> savings;
  for (const Outcome& outcome : rank.outcomes(config)) {
    savings.push_back(
        {outcome.change.setting, outcome.bytes, static_cast<std::int64_t>(now - outcome.bytes)});
  }
  return savings;
}

std::string largest_parts(const model::MemoryPlan& memory) {
  std::vector<std::pair<std::size_t, std::string>> parts = {
      {memory.parameters, "parameters"}, {memory.gradients, "gradients"},
      {memory.optimizer, "optimizer"},   {memory.activations, "activations"},
      {memory.scratch, "scratch"},       {memory.workspace, "workspace"}};
  std::ranges::stable_sort(parts, std::greater<>(), &decltype(parts)::value_type::first);
  std::vector<std::string> texts;
  for (const auto& [bytes, name] : parts) {
    if (texts.size() < 3 && bytes > 0)
      texts.push_back(fmt::format("{} {}", name, gibibytes(bytes)));
  }
  return listed(texts, "and");
}

std::string memory_advice(const train::Config& config, const train::TrainerOptions& options,
                          int world_rank, const IsLegal& is_legal, std::size_t room_bytes) {
  const RankOptions rank{options, mesh::Position(config.parallel, world_rank), is_legal};
  std::vector<std::string> changes;
  bool one_fits = false;
  for (const MemorySaving& saving : memory_savings(config, options, world_rank, is_legal)) {
    const bool fits = saving.planned_bytes <= room_bytes;
    one_fits = one_fits || fits;
    changes.push_back(fmt::format("{} (saves {}{})", saving.setting, gibibytes(saving.saved_bytes),
                                  fits ? ", fits" : ""));
  }
  if (options.device == Device::cpu && config.parallel.data > 1) {
    changes.emplace_back("fewer data ranks on a host");
  }
  // The context of images follows from their size.
  changes.emplace_back(config.model.is_of_images() ? "a smaller model.image"
                                                   : "a smaller model.context");
  std::string text = "what would help: " + listed(changes, "or");
  if (one_fits) return text;
  return fmt::format("{}; none of the changes alone fits into {}, {}", text, gibibytes(room_bytes),
                     fitting_text(rank, config, room_bytes));
}

std::string describe(const comm::MemoryShortage& shortage) {
  const bool alone = shortage.ranks == 1;
  return fmt::format("{} {} need{} {}{}, and {} are free",
                     alone ? "1 rank" : fmt::format("{} ranks", shortage.ranks),
                     shortage.limit.place, alone ? "s" : "", gibibytes(shortage.needed_bytes),
                     alone ? "" : " together", gibibytes(shortage.limit.room_bytes));
}

std::string host_advice(const train::Config& config, const train::TrainerOptions& options,
                        const model::MemoryPlan& memory, const IsLegal& is_legal,
                        const comm::MemoryShortage& shortage) {
  if (options.device == Device::cuda) return page_locked_advice(config, memory);
  return fmt::format(
      "{} needs {} in all, most of it for {}; {}", shortage.ranks == 1 ? "it" : "the fullest",
      gibibytes(shortage.fullest_bytes), largest_parts(memory),
      memory_advice(config, options, shortage.fullest_rank, is_legal, shortage.fullest_room()));
}

void require_host_memory(comm::Peers& peers, const train::Config& config,
                         const train::TrainerOptions& options, const model::MemoryPlan& memory,
                         const IsLegal& is_legal, const std::vector<comm::MemoryLimit>& limits) {
  const auto shortage = comm::memory_shortage(peers, {bytes_on_host(options, memory), limits});
  if (!shortage) return;
  const auto refuse = [&] {
    if (peers.rank() != shortage->fullest_rank) return;
    throw Error(ExitCode::device,
                fmt::format("out of memory: {}; {}", describe(*shortage),
                            host_advice(config, options, memory, is_legal, *shortage)));
  };
  // The line names the host, and all ranks of it.
  comm::agree(peers, refuse, {.message = [](int, const std::string& message) { return message; }});
}

void require_host_memory(comm::Peers& peers, const train::Config& config,
                         const train::TrainerOptions& options, const model::MemoryPlan& memory,
                         const IsLegal& is_legal) {
  require_host_memory(peers, config, options, memory, is_legal, comm::memory_limits(peers.host()));
}

std::unique_ptr<train::Trainer> make_trainer(const train::Config& config, const mesh::Mesh& mesh,
                                             const train::TrainerOptions& options,
                                             const model::MemoryPlan& memory,
                                             const IsLegal& is_legal) {
  const std::size_t room_bytes = room_of_rank(options);
  try {
    return train::Trainer::make(config, mesh, options, memory);
  } catch (const OutOfMemory& error) {
    const int rank = mesh.position().world_rank();
    throw Error(ExitCode::device,
                fmt::format("{}; this rank needs {} in all, most of it for {}; {}", error.facts(),
                            gibibytes(memory.total()), largest_parts(memory),
                            memory_advice(config, options, rank, is_legal, room_bytes)));
  }
}

}  // namespace hyperslab::plan
