// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "hyperslab/plan/documents.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/plan/simulate.hpp"
#include "memory_fit.hpp"
#include "memory_ways.hpp"

namespace hyperslab::plan {
namespace {

using mesh::Schedule;
using train::Config;

/// Layouts whose other schedules are tried.
constexpr std::size_t kRefined = 8;
constexpr int kLargestMicrobatch = 64;

/// Samples of fewer tokens are not cut: their exchanges take longer than what they spare.
constexpr Dim kFewestCutTokens = 8192;

/// The divisors of a number, in ascending order.
std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0) all.push_back(divisor);
  }
  return all;
}

/// Numbers of data ranks that may hold different experts.
std::vector<int> expert_ranks(int data, const nn::ExpertsConfig& experts) {
  return experts ? divisors(std::gcd(data, static_cast<int>(experts.count))) : std::vector{1};
}

/// The cuts of `ranks` into data x tensor x pipeline x context, and of data into experts.
std::vector<mesh::ParallelConfig> cuts_of(int ranks, const model::ModelSpec& model) {
  std::vector<mesh::ParallelConfig> cuts;
  for (const int pipeline : divisors(ranks)) {
    for (const int tensor : divisors(ranks / pipeline)) {
      for (const int context : divisors(ranks / pipeline / tensor)) {
        if (context > 1 && model.context < kFewestCutTokens) continue;
        mesh::ParallelConfig cut;
        cut.data = ranks / pipeline / tensor / context;
        cut.tensor = tensor;
        cut.pipeline = pipeline;
        cut.context = context;
        for (const int expert : expert_ranks(cut.data, model.experts)) {
          cut.expert = expert;
          cuts.push_back(cut);
        }
      }
    }
  }
  return cuts;
}

/// The bytes left for the arenas: contexts of CUDA, NCCL and cuBLASLt take some.
std::optional<double> room_bytes(const MachineFile& machine) {
  constexpr double kLibraries = 3.0 * (1 << 30);
  if (machine.memory_bytes <= 0) return std::nullopt;
  return machine.memory_bytes - (machine.device == "cuda" ? kLibraries : 0);
}

class Search {
 public:
  Search(const Config& deck, int ranks, const train::TrainerOptions& options,
         const MachineFile& machine, const WhyNot& why_not, const KeyShares& documents)
      : deck_(deck),
        ranks_(ranks),
        options_(options),
        machine_(machine),
        why_not_(why_not),
        documents_(documents),
        room_(options, room_bytes(machine)),
        // Machine files of CPU ranks, whose host is their device, and older ones have no rate.
        ways_(room_, why_not, options,
              options.device == Device::cuda && machine.host_bytes_per_second > 0) {}

  SearchResult run() {
    for (const mesh::ParallelConfig& cut : cuts_of(ranks_, deck_.model)) try_cut(cut);
    sort();
    const std::size_t refined = std::min(kRefined, result_.found.size());
    const std::vector<FoundLayout> fastest(
        result_.found.begin(), result_.found.begin() + static_cast<std::ptrdiff_t>(refined));
    for (const FoundLayout& layout : fastest) {
      try_schedules(layout.config);
      try_shards_of_a_node(layout.config);
    }
    sort();
    return std::move(result_);
  }

 private:
  void sort() { std::ranges::sort(result_.found, {}, &FoundLayout::seconds); }

  void try_cut(const mesh::ParallelConfig& cut) {
    for (const bool sequence : {false, true}) {
      if (sequence && cut.tensor == 1) continue;
      bool fits = false;
      for (int microbatch = 1; microbatch <= kLargestMicrobatch; microbatch *= 2) {
        Config config = deck_;
        config.parallel = cut;
        config.parallel.bucket_mib = deck_.parallel.bucket_mib;
        config.parallel.sequence = sequence;
        config.train.microbatch = microbatch;
        config.memory = {.loss_rows = deck_.memory.loss_rows};
        if (!try_sizes(config, fits)) break;
      }
    }
  }

  /// The fastest of the ways in which it fits. False if no larger microbatch can; `fits` becomes
  /// true where one does without a last resort.
  bool try_sizes(const Config& layout, bool& fits) {
    const std::int64_t samples =
        static_cast<std::int64_t>(layout.parallel.data) * layout.train.microbatch;
    if (layout.train.global_batch % samples != 0) {
      consider(layout);  // once, with that reason
      return false;
    }
    bool is_refused = false;
    bool needs_memory = false;
    const std::vector<MemoryWays::Way> ways = ways_.of(layout, [&](const std::string& reason) {
      leave_out(reason);
      (reason == kNeedsMemory ? needs_memory : is_refused) = true;
    });
    if (!ways.empty()) {
      add_fastest(ways);
      return fits = true;
    }
    if (!needs_memory) return is_refused;
    const std::vector<MemoryWays::Way> last = ways_.last_resorts(layout);
    if (!last.empty()) add_fastest(last);
    return is_refused || (!last.empty() && !fits);
  }

  void try_schedules(const Config& config) {
    if (config.parallel.pipeline == 1) return;
    Config other = config;
    other.parallel.schedule = Schedule::zero_bubble;
    consider_fitted(other);
    for (const int chunks : {2, 4}) {
      other = config;
      other.parallel.schedule = Schedule::interleaved;
      other.parallel.virtual_stages = chunks;
      consider_fitted(other);
    }
  }

  /// With copies of the shards on every node.
  void try_shards_of_a_node(const Config& config) {
    const mesh::ParallelConfig& parallel = config.parallel;
    const int shards =
        machine_.ranks_per_node / (parallel.tensor * parallel.pipeline * parallel.context);
    if (shards < 2 || shards >= parallel.data || parallel.data % shards != 0) return;
    Config other = config;
    other.parallel.shard = shards;
    consider_fitted(other);
  }

  void consider_fitted(const Config& config) {
    consider(why_not_(config).empty() ? ways_.fitted(config) : config);
  }

  /// Adds the layout, or counts why not.
  void consider(const Config& config) {
    const std::string reason = why_not_(config);
    if (!reason.empty()) return leave_out(reason);
    add_fastest({{config}});
  }

  void leave_out(const std::string& reason) {
    ++result_.tried;
    ++result_.left_out[reason];
  }

  /// Adds the fastest configuration of the ways that fit.
  void add_fastest(const std::vector<MemoryWays::Way>& ways) {
    std::optional<FoundLayout> fastest;
    for (const MemoryWays::Way& way : ways) {
      double before = std::numeric_limits<double>::infinity();
      for (const Config& config : way) {
        std::optional<FoundLayout> found = priced(config);
        if (!found || found->seconds > before) break;
        before = found->seconds;
        if (!fastest || found->seconds < fastest->seconds) fastest = std::move(found);
      }
    }
    if (!fastest) return leave_out(kNeedsMemory);
    ++result_.tried;
    result_.found.push_back(std::move(*fastest));
  }

  /// None if it needs more memory than a rank has.
  std::optional<FoundLayout> priced(const Config& config) {
    constexpr int kSimulatedSteps = 2;
    std::vector<std::vector<OperationList>> steps;
    FoundLayout found{config};
    for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
      Plan plan =
          make_plan(config, options_, mesh::first_rank_of(config.parallel, stage), kSimulatedSteps);
      if (!room_.holds(plan.memory)) return std::nullopt;
      found.memory_bytes = std::max(found.memory_bytes, plan.memory.total());
      found.host_bytes = std::max(found.host_bytes, plan.memory.host);
      leave_out_documents(plan, config, documents_);
      steps.push_back(std::move(plan.operations));
    }
    Prices prices(machine_, config.precision.compute);
    found.seconds = simulate_sustained(steps, config.parallel, prices).seconds;
    return found;
  }

  const Config& deck_;
  int ranks_;
  const train::TrainerOptions& options_;
  const MachineFile& machine_;
  const WhyNot& why_not_;
  KeyShares documents_;
  Room room_;
  MemoryWays ways_;
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const Config& deck, int ranks, const train::TrainerOptions& options,
                            const MachineFile& machine, const WhyNot& why_not,
                            const KeyShares& documents) {
  return Search(deck, ranks, options, machine, why_not, documents).run();
}

std::string settings_of(const Config& config) {
  const mesh::ParallelConfig& parallel = config.parallel;
  std::string text = fmt::format("data={} tensor={} pipeline={}", parallel.data, parallel.tensor,
                                 parallel.pipeline);
  if (parallel.pipeline > 1) text += fmt::format(" schedule={}", name_of(parallel.schedule));
  if (parallel.virtual_stages > 1) {
    text += fmt::format(" virtual_stages={}", parallel.virtual_stages);
  }
  if (parallel.context > 1) text += fmt::format(" context={}", parallel.context);
  if (parallel.expert > 1) text += fmt::format(" expert={}", parallel.expert);
  if (parallel.sequence) text += " sequence=true";
  if (parallel.data * parallel.context > 1) text += fmt::format(" zero={}", parallel.zero);
  if (parallel.data_shards() < parallel.data) text += fmt::format(" shard={}", parallel.shard);
  text += fmt::format(" microbatch={}", config.train.microbatch);
  if (config.memory.recompute != nn::Recompute::none) {
    text += fmt::format(" recompute={}", name_of(config.memory.recompute));
  }
  const train::MemoryConfig& memory = config.memory;
  if (memory.recompute_layers > 0)
    text += fmt::format(" recompute_layers={}", memory.recompute_layers);
  if (memory.mlp_rows > 0) text += fmt::format(" mlp_rows={}", memory.mlp_rows);
  if (memory.loss_rows > 0) text += fmt::format(" loss_rows={}", memory.loss_rows);
  if (memory.optimizer == Home::host) text += " memory.optimizer=host";
  if (memory.resident_gib > 0) text += fmt::format(" resident_gib={:g}", memory.resident_gib);
  return text;
}

}  // namespace hyperslab::plan
