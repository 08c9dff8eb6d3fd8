// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/out_of_memory.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <map>
#include <regex>
#include <sstream>

#include "hyperslab/core/error.hpp"
#include "support/thread_peers.hpp"
#include "train/closed_forms.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using namespace hyperslab::test;
using testing::HasSubstr;
using testing::Not;

/// The deck's rules for changes of `config`.
plan::IsLegal rules_of(const train::Config& config) {
  return [config](const train::Config& changed) { return deck::keeps_rules(config, changed, {}); };
}

std::vector<plan::MemorySaving> savings_of(const train::Config& config,
                                           const train::TrainerOptions& options = {}) {
  return plan::memory_savings(config, options, 0, rules_of(config));
}

std::size_t planned(const std::vector<std::string>& overrides, int ranks) {
  return plan::make_plan(small_config(overrides, ranks), {}, 0).memory.total();
}

/// That exactly those of `legal` settings are named that save memory, with the bytes of their
/// plans.
void expect_plans(const std::vector<std::string>& deck, const std::vector<std::string>& legal) {
  std::map<std::string, std::size_t> expected;
  const std::size_t now = planned(deck, 2);
  for (const std::string& setting : legal) {
    const int ranks = setting.starts_with("parallel.tensor") ? 4 : 2;
    std::vector<std::string> changed = deck;
    changed.push_back(setting);
    changed.back().replace(setting.find(": "), 2, "=");
    const std::size_t then = planned(changed, ranks);
    if (then < now) expected[setting + (ranks == 4 ? " with 4 ranks" : "")] = then;
  }

  const auto savings = savings_of(small_config(deck, 2));

  std::map<std::string, std::size_t> found;
  for (const plan::MemorySaving& saving : savings) {
    const std::size_t hosts = saving.setting.find(" on more hosts");
    found[saving.setting.substr(0, hosts)] = saving.planned_bytes;
    EXPECT_EQ(saving.saved_bytes, static_cast<std::int64_t>(now - saving.planned_bytes));
  }
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(std::ranges::is_sorted(savings, std::greater<>(), &plan::MemorySaving::saved_bytes));
  for (const char* setting :
       {"train.microbatch: 1", "memory.recompute: full", "parallel.zero: 1"}) {
    EXPECT_TRUE(found.contains(setting)) << setting;
  }
}

TEST(MemorySavings, AreThoseOfThePlans) {
  std::vector<std::string> settings = {"train.microbatch: 1",    "memory.recompute: selective",
                                       "memory.recompute: full", "parallel.zero: 1",
                                       "parallel.zero: 2",       "parallel.zero: 3",
                                       "parallel.tensor: 2"};
  expect_plans({"parallel.data=2", "optimizer.name=muon"}, settings);
  settings.emplace_back("optimizer.state: bf16");
  expect_plans({"parallel.data=2"}, settings);
}

TEST(MemorySavings, PiecesOfAFeedForwardNetworkWhereBlocksAreComputedAgain) {
  const std::string pieces = "memory.mlp_rows: 4096";
  const auto offered = [&](const std::vector<std::string>& more) {
    std::vector<std::string> deck = {"model.context=8192", "memory.recompute=full"};
    deck.insert(deck.end(), more.begin(), more.end());
    const auto savings = savings_of(small_config(deck, 1));
    return std::ranges::count(savings, pieces, &plan::MemorySaving::setting) == 1;
  };

  EXPECT_TRUE(offered({}));
  EXPECT_FALSE(offered({"memory.mlp_rows=8192"}));
  EXPECT_FALSE(offered({"memory.recompute=selective"}));
  EXPECT_FALSE(offered({"model.context=2048"}));
}

/// Four bytes of every element whose moments a rank keeps; the arena's alignment takes some.
TEST(MemorySavings, MomentsInBf16SaveHalfOfThem) {
  const std::string bf16 = "optimizer.state: bf16";
  for (const int zero : {0, 1, 2}) {
    Numbers numbers;
    numbers.data = 2;
    numbers.zero = zero;
    const std::int64_t N = buckets(numbers, pipeline_rank_of(numbers, 0)).total();
    const auto savings = savings_of(small_config(numbers.overrides(), 2));

    const auto found = std::ranges::find(savings, bf16, &plan::MemorySaving::setting);
    ASSERT_NE(found, savings.end()) << zero;
    EXPECT_NEAR(static_cast<double>(found->saved_bytes),
                static_cast<double>(4 * (zero == 0 ? N : N / 2)), 512)
        << zero;
  }
  train::TrainerOptions forward;
  forward.training = false;
  const auto offered = [&](const std::vector<std::string>& deck,
                           const train::TrainerOptions& options) {
    const auto savings = savings_of(small_config(deck, 1), options);
    return std::ranges::count(savings, bf16, &plan::MemorySaving::setting) == 1;
  };
  EXPECT_TRUE(offered({}, {}));
  EXPECT_FALSE(offered({}, forward));
  EXPECT_FALSE(offered({"optimizer.state=bf16"}, {}));
  EXPECT_FALSE(offered({"optimizer.name=muon"}, {}));
  EXPECT_FALSE(offered({"optimizer.name=sgd"}, {}));
}

TEST(MemorySavings, GradientsInBf16SaveHalfOfThem) {
  const std::string bf16 = "precision.gradients: bf16";
  train::TrainerOptions options;
  options.compute = DType::bf16;
  const std::vector<std::string> one_microbatch = {"precision.compute=bf16", "train.microbatch=12"};
  const train::Config config = small_config(one_microbatch, 1);
  const auto gradients = static_cast<double>(plan::make_plan(config, options, 0).memory.gradients);
  const auto savings = savings_of(config, options);

  const auto found = std::ranges::find(savings, bf16, &plan::MemorySaving::setting);
  ASSERT_NE(found, savings.end());
  EXPECT_NEAR(static_cast<double>(found->saved_bytes), gradients / 2, 512);
  for (const std::vector<std::string>& other : std::vector<std::vector<std::string>>{
           {"precision.compute=bf16"}, {"train.microbatch=12"}, {"optimizer.name=muon"}}) {
    const auto offered = savings_of(small_config(other, 1), options);
    EXPECT_EQ(std::ranges::count(offered, bf16, &plan::MemorySaving::setting), 0);
  }
}

/// The advice names nothing that the rules of the deck forbid.
TEST(MemorySavings, KeepToTheRules) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"train.microbatch=3"},
           {"parallel.schedule=zero_bubble", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.pipeline=2"},
           {"parallel.data=2", "parallel.zero=1", "memory.recompute=full"},
           {"parallel.tensor=4", "parallel.sequence=true"},
           {"parallel.data=2", "train.log_norms=5"}}) {
    const train::Config asked = small_config(overrides, 0);
    for (const plan::MemorySaving& saving : savings_of(asked)) {
      std::string change = saving.setting.substr(0, saving.setting.find(" with "));
      change.replace(change.find(": "), 2, "=");
      std::vector<std::string> changed = overrides;
      changed.push_back(change);
      EXPECT_NO_THROW((void)small_config(changed, 0)) << change;
    }
  }
  train::TrainerOptions forward;
  forward.training = false;
  for (const auto& saving : savings_of(small_config({"parallel.data=2"}, 2), forward)) {
    EXPECT_THAT(saving.setting, Not(HasSubstr("recompute")));
    EXPECT_THAT(saving.setting, Not(HasSubstr("zero")));
  }
}

TEST(MemorySavings, FusedAttentionIfAGpuHasIt) {
  train::TrainerOptions options;
  options.device = Device::cuda;
  const std::vector<std::string> deck = {"model.context=2048", "model.width=32"};
  const auto found = [&](DType compute, const std::vector<std::string>& changes) {
    options.compute = compute;
    std::vector<std::string> overrides = deck;
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    std::map<std::string, std::size_t> bytes;
    for (const auto& saving : savings_of(small_config(overrides, 1), options)) {
      bytes[saving.setting] = saving.planned_bytes;
    }
    return bytes;
  };
  const std::string fused = "model.attention: auto";
  const std::string kept = "model.attention=reference";

  const auto half = found(DType::bf16, {kept});
  ASSERT_TRUE(half.contains(fused));
  EXPECT_EQ(half.at(fused), plan::make_plan(small_config(deck, 1), options, 0).memory.total());
  EXPECT_TRUE(found(DType::f16, {kept, "model.dropout=0.1"})
                  .contains(fused + " with no dropout of attention's probabilities"));
  EXPECT_FALSE(found(DType::bf16, {}).contains(fused));
  EXPECT_FALSE(found(DType::f32, {kept}).contains(fused));
  EXPECT_FALSE(found(DType::bf16, {kept, "model.width=48"}).contains(fused));
}

TEST(MemorySavings, TextsThatAreReadWholeKeepTheirMicrobatch) {
  train::TrainerOptions options;
  options.training = false;
  const auto names_microbatch = [&] {
    const auto savings = savings_of(small_config({"train.microbatch=4"}, 1), options);
    return std::ranges::any_of(savings, [](const plan::MemorySaving& saving) {
      return saving.setting.starts_with("train.microbatch");
    });
  };

  EXPECT_TRUE(names_microbatch());
  options.generation = model::Generation::whole;
  EXPECT_FALSE(names_microbatch());
}

TEST(MemorySavings, AreNoneIfNothingIsKnownToBeLegal) {
  EXPECT_TRUE(plan::memory_savings(small_config({"parallel.data=2"}, 2), {}, 0, {}).empty());
}

TEST(MemoryAdvice, NamesTheLargestParts) {
  model::MemoryPlan memory;
  memory.parameters = std::size_t{3} << 30U;
  memory.gradients = std::size_t{1} << 30U;
  memory.optimizer = std::size_t{2} << 30U;
  memory.activations = std::size_t{5} << 40U;
  memory.scratch = 1024;
  EXPECT_EQ(plan::largest_parts(memory),
            "activations 5.00 TiB, parameters 3.00 GiB and optimizer 2.00 GiB");
  memory = {};
  memory.workspace = std::size_t{7} << 20U;
  EXPECT_EQ(plan::largest_parts(memory), "workspace 7.0 MiB");
}

constexpr std::size_t kGiB = std::size_t{1} << 30U;

/// The message with which ranks on these hosts are refused; empty: they are not.
std::string refusal_on(const std::vector<std::string>& hosts, const train::Config& config,
                       const train::TrainerOptions& options, const model::MemoryPlan& memory,
                       std::size_t room_of_host) {
  std::vector<std::string> messages(hosts.size());
  as_ranks_on(hosts, [&](comm::Peers& peers) {
    const std::vector<comm::MemoryLimit> limits = {
        {room_of_host, peers.host(), "on host " + peers.host()}};
    try {
      plan::require_host_memory(peers, config, options, memory, rules_of(config), limits);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::device);
      EXPECT_TRUE(error.is_on_all_ranks());
      messages[static_cast<std::size_t>(peers.rank())] = error.what();
    }
  });
  EXPECT_THAT(messages, testing::Each(messages.front()));
  return messages.front();
}

TEST(HostMemory, OfCpuRanksIsSharedByThoseOfAHost) {
  const train::Config config = small_config({"parallel.data=2"}, 2);
  const model::MemoryPlan memory = plan::make_plan(config, {}, 0).memory;
  const std::size_t both = 2 * memory.total();

  EXPECT_EQ(refusal_on({"n1", "n1"}, config, {}, memory, both), "");
  EXPECT_EQ(refusal_on({"n1", "n2"}, config, {}, memory, both - 1), "");
  const std::string message = refusal_on({"n1", "n1"}, config, {}, memory, both - 1);
  EXPECT_THAT(message, testing::MatchesRegex(
                           "out of memory: 2 ranks on host n1 need [0-9.]+ MiB together, and "
                           "[0-9.]+ MiB are free; the fullest needs [0-9.]+ MiB in all, most of it "
                           "for .*; what would help: .*, fits\\), .*"));
  EXPECT_THAT(message, HasSubstr("fewer data ranks on a host"));
  EXPECT_THAT(message, HasSubstr("parallel.tensor: 2 with 4 ranks on more hosts"));
}

TEST(HostMemory, OfOneRankIsItsOwn) {
  const train::Config config = small_config({}, 1);
  const model::MemoryPlan memory = plan::make_plan(config, {}, 0).memory;

  EXPECT_EQ(refusal_on({"n1"}, config, {}, memory, memory.total()), "");
  EXPECT_THAT(refusal_on({"n1"}, config, {}, memory, memory.total() - 1),
              testing::MatchesRegex("out of memory: 1 rank on host n1 needs [0-9.]+ MiB, and "
                                    "[0-9.]+ MiB are free; it needs .*"));
}

TEST(HostMemory, OfGpusIsPageLocked) {
  train::Config config = small_config({"parallel.data=2", "memory.recompute=full"}, 2);
  train::TrainerOptions options;
  options.device = Device::cuda;
  model::MemoryPlan memory;
  memory.host = 4 * kGiB;
  memory.activations = 100 * kGiB;

  config.memory.optimizer = Home::host;
  EXPECT_EQ(refusal_on({"n1", "n1"}, config, options, memory, 8 * kGiB), "");
  EXPECT_EQ(refusal_on({"n1", "n1"}, config, options, memory, 7 * kGiB),
            "out of memory: 2 ranks on host n1 need 8.00 GiB together, and 7.00 GiB are free; "
            "memory.optimizer: host takes 4.00 GiB of page-locked memory for each rank; use more "
            "hosts, parallel.zero 1 over more data ranks or optimizer.state: bf16");
  config.memory.activations = Home::host;
  EXPECT_THAT(refusal_on({"n1", "n1"}, config, options, memory, 7 * kGiB),
              HasSubstr("memory.optimizer: host and memory.activations: host take 4.00 GiB of "
                        "page-locked memory for each rank; use more hosts, parallel.zero 1 over "
                        "more data ranks, optimizer.state: bf16 or fewer memory.host_layers"));
  config.memory.optimizer = Home::device;
  EXPECT_THAT(refusal_on({"n1", "n1"}, config, options, memory, 7 * kGiB),
              HasSubstr("memory.activations: host takes 4.00 GiB of page-locked memory for each "
                        "rank; use more hosts or fewer memory.host_layers"));
}

TEST(MemorySavings, OfAGpuNameStateOnTheHost) {
  // Three chunks of state take less than all of it.
  const train::Config config = small_config({"model.width=1024", "model.layers=8"}, 1);
  train::TrainerOptions options;
  const auto names_host = [&] {
    const auto savings = plan::memory_savings(config, options, 0, rules_of(config));
    return std::ranges::any_of(savings, [](const plan::MemorySaving& saving) {
      return saving.setting == "memory.optimizer: host";
    });
  };
  EXPECT_FALSE(names_host());
  options.device = Device::cuda;
  EXPECT_TRUE(names_host());
}

const std::vector<std::string> kAdvised = {"parallel.data=2", "train.microbatch=4",
                                           "train.global_batch=16"};

std::string advice_for(std::size_t room) {
  const train::Config config = small_config(kAdvised, 2);
  return plan::memory_advice(config, {}, 0, rules_of(config), room);
}

/// The settings in `text`, "key: value", as overrides.
std::vector<std::string> overrides_in(std::string text) {
  std::vector<std::string> found;
  const std::regex setting(R"(([a-z_]+\.[a-z_]+): ([a-z0-9]+))");
  for (std::smatch match; std::regex_search(text, match, setting); text = match.suffix()) {
    found.push_back(match[1].str() + "=" + match[2].str());
  }
  return found;
}

TEST(MemoryAdvice, MarksTheChangesThatFitAlone) {
  const std::vector<plan::MemorySaving> savings = savings_of(small_config(kAdvised, 2));
  ASSERT_GE(savings.size(), 2);
  ASSERT_LT(savings[0].planned_bytes, savings[1].planned_bytes);

  const std::string text = advice_for(savings[0].planned_bytes);

  EXPECT_THAT(text,
              testing::MatchesRegex("what would help: " + savings[0].setting +
                                    " \\(saves [^)]*, fits\\), .* or a smaller model.context"));
  EXPECT_EQ(text.find("fits"), text.rfind("fits")) << text;
}

TEST(MemoryAdvice, NamesChangesThatFitTogether) {
  const std::size_t alone = savings_of(small_config(kAdvised, 2))[0].planned_bytes;

  const std::string text = advice_for(alone - 1);

  const std::string begin = "none of the changes alone fits into ";
  ASSERT_THAT(text, HasSubstr(begin));
  const std::size_t from = text.find("but ");
  const std::size_t to = text.find(" together do (", from);
  ASSERT_NE(to, std::string::npos) << text;
  const std::vector<std::string> changes = overrides_in(text.substr(from, to - from));
  EXPECT_GE(changes.size(), 2);
  std::vector<std::string> changed = kAdvised;
  changed.insert(changed.end(), changes.begin(), changes.end());
  EXPECT_LT(planned(changed, 2), alone) << text;
}

TEST(MemoryAdvice, NamesTheContextThatFits) {
  std::vector<std::string> deck = kAdvised;
  deck.emplace_back("model.context=2048");
  const std::size_t half = planned(deck, 2) / 2;
  const train::Config config = small_config(deck, 2);

  const std::string text = plan::memory_advice(
      config, {}, 0, [&](const train::Config& changed) { return changed.model.context < 2048; },
      half);

  const std::size_t from = text.find("model.context: ");
  ASSERT_NE(from, std::string::npos) << text;
  const std::vector<std::string> changes = overrides_in(text.substr(from));
  ASSERT_EQ(changes.size(), 1) << text;
  deck.push_back(changes[0]);
  EXPECT_LE(planned(deck, 2), half);
  deck.back() = fmt::format("model.context={}", 2 * small_config(deck, 2).model.context);
  EXPECT_GT(planned(deck, 2), half) << "the longest";
}

TEST(MemoryAdvice, SaysThatNothingIsEnough) {
  EXPECT_THAT(advice_for(1024),
              HasSubstr("none of the changes alone fits into 0.0 MiB, nor do they together: it "
                        "takes a smaller model (model.layers, model.width) or more ranks "
                        "(parallel.tensor, parallel.pipeline) on more hosts"));
}

/// More than addresses reach: the activations of many long samples.
TEST(OutOfMemory, OfATrainerSaysWhatWouldHelp) {
  const train::Config config =
      small_config({"train.microbatch=65536", "train.global_batch=65536", "model.context=131072",
                    "model.layers=24", "model.attention=fused"},
                   1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
  const plan::Plan plan = plan::make_plan(config, {}, 0);
  try {
    const auto trainer = plan::make_trainer(config, mesh, {}, plan.memory, rules_of(config));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    std::ostringstream asked;
    asked << std::fixed << std::setprecision(2)
          << std::ldexp(static_cast<double>(plan.memory.activations), -30)
          << " GiB were asked for (activations)";
    EXPECT_THAT(error.what(), HasSubstr(asked.str()));
    EXPECT_THAT(error.what(), HasSubstr("are free"));
    EXPECT_THAT(error.what(), HasSubstr(" in all, most of it for activations "));
    EXPECT_THAT(error.what(), HasSubstr("none of the changes alone fits into "));
    EXPECT_THAT(error.what(), HasSubstr("train.microbatch: 32768 (saves "));
    EXPECT_THAT(error.what(), HasSubstr("memory.recompute: full (saves "));
    EXPECT_THAT(error.what(), Not(HasSubstr("parallel.zero")));
  }
}

}  // namespace
}  // namespace hyperslab
