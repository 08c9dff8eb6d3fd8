// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/search.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/plan/documents.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/plan/simulate.hpp"

namespace hyperslab::plan {
namespace {

using mesh::Schedule;
using train::Config;

/// Layouts whose other schedules are tried.
constexpr std::size_t kRefined = 8;
constexpr int kLargestMicrobatch = 64;
constexpr const char* kNeedsMemory = "needs more memory than a rank has";

/// The cuts of `ranks` into data x tensor x pipeline.
std::vector<mesh::ParallelConfig> cuts_of(int ranks) {
  std::vector<mesh::ParallelConfig> cuts;
  for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
    if (ranks % pipeline != 0) continue;
    for (int tensor = 1; tensor <= ranks / pipeline; ++tensor) {
      if (ranks / pipeline % tensor != 0) continue;
      mesh::ParallelConfig cut;
      cut.data = ranks / pipeline / tensor;
      cut.tensor = tensor;
      cut.pipeline = pipeline;
      cuts.push_back(cut);
    }
  }
  return cuts;
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
        documents_(documents) {}

  SearchResult run() {
    for (const mesh::ParallelConfig& cut : cuts_of(ranks_)) try_cut(cut);
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
      for (int microbatch = 1; microbatch <= kLargestMicrobatch; microbatch *= 2) {
        Config config = deck_;
        config.parallel = cut;
        config.parallel.bucket_mib = deck_.parallel.bucket_mib;
        config.parallel.sequence = sequence;
        config.train.microbatch = microbatch;
        if (!try_sizes(config)) break;
      }
    }
  }

  /// With the least recomputation and sharding that fits. False if no larger microbatch can.
  bool try_sizes(Config config) {
    const std::int64_t samples =
        static_cast<std::int64_t>(config.parallel.data) * config.train.microbatch;
    if (config.train.global_batch % samples != 0) {
      consider(config);  // once, with that reason
      return false;
    }
    bool fits = false;
    for (const nn::Recompute recompute : nn::kRecomputes) {
      const int alone = deck_.precision.fp8_param_gather ? 1 : 0;  // required by the deck's rules
      for (const int zero : config.parallel.data > 1 ? std::vector{1, 2, 3} : std::vector{alone}) {
        config.memory.recompute = recompute;
        config.parallel.zero = zero;
        const std::string reason = consider(config);
        if (reason.empty()) return true;
        fits = fits || reason != kNeedsMemory;
      }
    }
    return fits;
  }

  void try_schedules(const Config& config) {
    if (config.parallel.pipeline == 1) return;
    Config other = config;
    other.parallel.schedule = Schedule::zero_bubble;
    consider(other);
    for (const int chunks : {2, 4}) {
      other = config;
      other.parallel.schedule = Schedule::interleaved;
      other.parallel.virtual_stages = chunks;
      consider(other);
    }
  }

  /// With copies of the shards on every node.
  void try_shards_of_a_node(const Config& config) {
    const mesh::ParallelConfig& parallel = config.parallel;
    const int shards = machine_.ranks_per_node / (parallel.tensor * parallel.pipeline);
    if (shards < 2 || shards >= parallel.data || parallel.data % shards != 0) return;
    Config other = config;
    other.parallel.shard = shards;
    consider(other);
  }

  /// Adds the layout, or counts why not and returns it.
  std::string consider(const Config& config) {
    ++result_.tried;
    std::string reason = add(config);
    if (!reason.empty()) ++result_.left_out[reason];
    return reason;
  }

  /// Adds the layout to those that were found, or says why not.
  std::string add(const Config& config) {
    if (std::string reason = why_not_(config); !reason.empty()) return reason;
    constexpr int kSimulatedSteps = 2;
    std::vector<std::vector<OperationList>> steps;
    std::size_t most = 0;
    for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
      Plan plan =
          make_plan(config, options_, mesh::first_rank_of(config.parallel, stage), kSimulatedSteps);
      most = std::max(most, plan.memory.total());
      if (machine_.memory_bytes > 0 && static_cast<double>(most) > usable_bytes()) {
        return kNeedsMemory;
      }
      leave_out_documents(plan, config, documents_);
      steps.push_back(std::move(plan.operations));
    }
    Prices prices(machine_, config.precision.compute);
    const SimulatedStep step = simulate_sustained(steps, config.parallel, prices);
    result_.found.push_back({config, step.seconds, most});
    return "";
  }

  /// The bytes left for the arenas: contexts of CUDA, NCCL and cuBLASLt take some.
  [[nodiscard]] double usable_bytes() const {
    constexpr double kLibraries = 3.0 * (1 << 30);
    return machine_.memory_bytes - (machine_.device == "cuda" ? kLibraries : 0);
  }

  const Config& deck_;
  int ranks_;
  const train::TrainerOptions& options_;
  const MachineFile& machine_;
  const WhyNot& why_not_;
  KeyShares documents_;
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
  if (parallel.sequence) text += " sequence=true";
  if (parallel.data > 1) text += fmt::format(" zero={}", parallel.zero);
  if (parallel.shards() < parallel.data) text += fmt::format(" shard={}", parallel.shard);
  text += fmt::format(" microbatch={}", config.train.microbatch);
  if (config.memory.recompute != nn::Recompute::none) {
    text += fmt::format(" recompute={}", name_of(config.memory.recompute));
  }
  return text;
}

}  // namespace hyperslab::plan
