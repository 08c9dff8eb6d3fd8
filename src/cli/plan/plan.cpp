// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "../command.hpp"
#include "../planned.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/plan/documents.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"
#include "layout.hpp"
#include "time.hpp"

namespace hyperslab::cli {
namespace {

/// Plans of the ranks of one pipeline; ranks along the other axes hold and do the same.
std::vector<plan::Plan> make_plans(const train::Config& config, bool training, int listed_steps,
                                   const KeyShares& documents) {
  train::TrainerOptions options = planned_options(config);
  options.training = training;
  std::vector<plan::Plan> plans;
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int rank = mesh::first_rank_of(config.parallel, stage);
    plans.push_back(plan::make_plan(config, options, rank, listed_steps));
    plan::leave_out_documents(plans.back(), config, documents);
  }
  return plans;
}

std::array<double, 7> columns_of(const model::MemoryPlan& memory) {
  const auto number = [](std::size_t bytes) { return static_cast<double>(bytes); };
  return {number(memory.parameters),  number(memory.gradients), number(memory.optimizer),
          number(memory.activations), number(memory.scratch),   number(memory.workspace),
          number(memory.total())};
}

void print_memory_row(const std::string& name, const Unit& unit,
                      const std::array<double, 7>& columns) {
  fmt::print("{:<10}", name);
  for (const double column : columns) fmt::print(" {:>11}", in(unit, column));
  fmt::print("\n");
}

/// The largest peak of all ranks, which runs report as theirs.
std::int64_t most_in_use(const std::vector<plan::Plan>& plans) {
  return std::ranges::max(plans, {}, &plan::Plan::peak_in_use).peak_in_use;
}

/// The most of a rank in its host's memory, besides what a GPU has.
std::size_t most_on_host(const std::vector<plan::Plan>& plans) {
  const auto host = [](const plan::Plan& plan) { return plan.memory.host; };
  return host(*std::ranges::max_element(plans, {}, host));
}

/// A row for each pipeline rank, the sum over all ranks, and which holds most.
void print_memory(const train::Config& config, const std::vector<plan::Plan>& plans) {
  const mesh::ParallelConfig& parallel = config.parallel;
  const auto total = [](const plan::Plan& plan) { return plan.memory.total(); };
  const auto largest = std::ranges::max_element(plans, {}, total);
  const Unit unit = byte_unit(static_cast<double>(total(*largest)));
  fmt::print("{:<10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}\n", unit.name, "parameters",
             "gradients", "optimizer", "activations", "scratch", "workspace", "total");
  const int ranks_of_stage = parallel.ranks() / parallel.pipeline;
  std::array<double, 7> sum{};
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    const std::array<double, 7> columns = columns_of(plans[stage].memory);
    print_memory_row(fmt::format("pipeline {}", stage), unit, columns);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += columns[i] * ranks_of_stage;
    }
  }
  print_memory_row("all ranks", unit, sum);
  fmt::print("largest       pipeline {}: {} {} on each of its {}\n", largest - plans.begin(),
             in(unit, static_cast<double>(total(*largest))), unit.name, ranks_text(ranks_of_stage));
  fmt::print("in use        {} {} at most at one time of a step, without workspace\n",
             in(unit, static_cast<double>(most_in_use(plans))), unit.name);
  const std::size_t host = most_on_host(plans);
  if (host > 0) {
    const bool has_state = config.memory.optimizer == Home::host;
    const bool has_inputs = config.memory.activations == Home::host;
    const std::string_view what = !has_inputs ? "masters and optimizer state"
                                  : has_state ? "masters, optimizer state and inputs of blocks"
                                              : "inputs of blocks";
    fmt::print("on the host   {} {} at most for each rank: {}\n",
               in(unit, static_cast<double>(host)), unit.name, what);
  }
  fmt::print("\n");
}

std::string units_text(const plan::Plan& plan, const sharding::NamedMovement& moved) {
  const auto name = [&](int unit) { return plan.units[static_cast<std::size_t>(unit)]; };
  const std::string units =
      moved.first_unit == moved.last_unit
          ? name(moved.first_unit)
          : fmt::format("{} to {}", name(moved.first_unit), name(moved.last_unit));
  return moved.of_experts ? "experts in " + units : units;
}

/// A line for each movement and each of its steps, by pipeline rank.
void print_movements(const std::vector<plan::Plan>& plans) {
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    fmt::print("movements of a step, on a rank of pipeline stage {}\n", stage);
    for (const sharding::NamedMovement& moved : plans[stage].movements) {
      fmt::print(
          "  {} of {}, {} a step, starts {}, {}\n", moved.what, units_text(plans[stage], moved),
          moved.times == 1 ? "once" : fmt::format("{} times", moved.times), moved.starts,
          moved.behind.empty() ? "nothing hides it" : fmt::format("behind {}", moved.behind));
      for (const layout::Step& step : moved.steps) {
        fmt::print("    {}\n", describe(step));
      }
    }
    if (plans[stage].movements.empty()) fmt::print("  none: every rank has what its layers use\n");
    fmt::print("\n");
  }
}

/// The bytes of a checkpoint, of all ranks and of the largest one.
void print_checkpoint(const train::Config& config, const std::vector<plan::Plan>& plans) {
  std::size_t most = 0;
  std::size_t sum = 0;
  for (const plan::Plan& plan : plans) {
    most = std::max(most, plan.checkpoint_bytes);
    sum += plan.checkpoint_bytes *
           static_cast<std::size_t>(config.parallel.shards() * config.parallel.tensor);
  }
  const Unit unit = byte_unit(static_cast<double>(sum));
  fmt::print(
      "checkpoint    {} {}, of a rank at most {} {}{}\n\n", in(unit, static_cast<double>(sum)),
      unit.name, in(unit, static_cast<double>(most)), unit.name,
      config.checkpoint.async ? ", which its host's memory holds while they are written" : "");
}

/// The bytes that a member of a group of `size` sends if collectives go around a ring.
double bytes_sent(const comm::Traffic& traffic, int size) {
  const auto bytes = [&](comm::Call call) {
    return static_cast<double>(traffic.bytes[static_cast<std::size_t>(call)]);
  };
  const double others = static_cast<double>(size - 1) / size;
  return others * (2 * bytes(comm::Call::all_reduce) + bytes(comm::Call::reduce_scatter) +
                   bytes(comm::Call::all_gather) + bytes(comm::Call::all_to_all)) +
         bytes(comm::Call::send);
}

/// Roles and sizes of the groups of more than one rank.
std::vector<std::pair<comm::GroupRole, int>> groups_of(const train::Config& config) {
  using comm::GroupRole;
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
  std::vector<std::pair<GroupRole, int>> groups;
  for (const GroupRole role :
       {GroupRole::data, GroupRole::shard, GroupRole::replica, GroupRole::expert,
        GroupRole::expert_data, GroupRole::expert_shard, GroupRole::context, GroupRole::tensor,
        GroupRole::pipeline, GroupRole::tied, GroupRole::key_value}) {
    for (const comm::Communicator* group : mesh.groups()) {
      if (group->role() == role && group->size() > 1) groups.emplace_back(role, group->size());
    }
  }
  return groups;
}

/// Work and messages of a step, a row for each pipeline rank.
void print_work(const train::Config& config, const std::vector<plan::Plan>& plans) {
  const auto groups = groups_of(config);
  double most_flops = 0;
  double most_bytes = 0;
  std::vector<std::vector<double>> sent;
  for (const plan::Plan& plan : plans) {
    most_flops = std::max(most_flops, plan.flops());
    std::vector<double>& row = sent.emplace_back();
    for (const auto& [role, size] : groups) {
      const auto found = plan.traffic.find(role);
      row.push_back(found == plan.traffic.end() ? 0 : bytes_sent(found->second, size));
      most_bytes = std::max(most_bytes, row.back());
    }
  }
  const Unit flops = flop_unit(most_flops);
  const Unit bytes = byte_unit(most_bytes);
  fmt::print("{:<10} {:>11}", "a step", flops.name);
  for (const auto& [role, size] : groups) {
    fmt::print(" {:>13}", fmt::format("{} {}", name_of(role), bytes.name));
  }
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    fmt::print("\n{:<10} {:>11}", fmt::format("pipeline {}", stage),
               in(flops, plans[stage].flops()));
    for (const double amount : sent[stage]) fmt::print(" {:>13}", in(bytes, amount));
  }
  fmt::print("\n");
  if (groups.empty()) return;
  fmt::print(
      "sent by a rank around rings: of n ranks, all-reduce 2 (n-1)/n of a buffer, "
      "reduce-scatter and all-gather (n-1)/n\n");
}

/// True if whole steps are planned.
bool is_training(const Arguments& args) {
  const auto mode = args.get<std::string>("mode");
  if (mode == "step" || mode == "forward") return mode == "step";
  throw Error(ExitCode::usage, fmt::format("--mode is {}, expected step or forward", mode))
      .on_all_ranks();
}

/// Whose step has most FLOPs.
const plan::Plan& busiest(const std::vector<plan::Plan>& plans) {
  return *std::ranges::max_element(plans, {}, &plan::Plan::flops);
}

std::size_t largest_bytes(const std::vector<plan::Plan>& plans) {
  std::size_t largest = 0;
  for (const plan::Plan& plan : plans) largest = std::max(largest, plan.memory.total());
  return largest;
}

/// Figures of --json that need no machine.
nlohmann::ordered_json figures_of(const train::Config& config, const std::vector<plan::Plan>& plans,
                                  const plan::DocumentKeys& documents) {
  nlohmann::ordered_json out = {{"layout", mesh::describe(config.parallel)},
                                {"ranks", config.parallel.ranks()},
                                {"memory_bytes", largest_bytes(plans)},
                                {"memory_in_use_bytes", most_in_use(plans)},
                                {"host_memory_bytes", most_on_host(plans)},
                                {"flops", busiest(plans).flops()},
                                {"bytes", busiest(plans).ledger.total().bytes},
                                {"matmul_parameters", model::matmul_parameter_count(config.model)}};
  if (documents.samples > 0) out["document_key_share"] = documents.shares.all;
  return out;
}

/// Options that need others, or do not go with them.
void require_usable(const Arguments& args) {
  for (const char* option : {"schedule", "movements", "json", "mtbf-hours", "save-seconds"}) {
    if (!args.has("search") || !args.has(option)) continue;
    throw Error(
        ExitCode::usage,
        fmt::format("--{} does not go with --search; plan the layout that it finds", option))
        .on_all_ranks();
  }
  for (const char* option : {"mtbf-hours", "save-seconds", "search"}) {
    if (!args.has(option)) continue;
    if (!args.has("machine")) {
      throw Error(ExitCode::usage,
                  fmt::format("--{} goes with --machine FILE, which has a machine's times: one of "
                              "inputs/machines, or measure this one with hyperslab bench DECK "
                              "--machine FILE",
                              option))
          .on_all_ranks();
    }
    if (std::string_view(option) != "search" && !(args.get<double>(option) > 0)) {
      throw Error(ExitCode::usage, fmt::format("--{} must be above 0", option)).on_all_ranks();
    }
  }
}

/// The time of saving a checkpoint, which all ranks write at once.
double save_seconds(const Arguments& args, const std::vector<plan::Plan>& plans,
                    const plan::MachineFile& machine) {
  if (args.has("save-seconds")) return args.get<double>("save-seconds");
  if (machine.storage_bytes_per_second <= 0) {
    throw Error(ExitCode::usage, fmt::format("the machine file of {} does not say "
                                             "storage_bytes_per_second; give --save-seconds S",
                                             machine.name));
  }
  std::size_t most = 0;
  for (const plan::Plan& plan : plans) most = std::max(most, plan.checkpoint_bytes);
  return static_cast<double>(most) / machine.storage_bytes_per_second;
}

/// The deck for the ranks and the device that are asked for, not those that are here.
train::Config planned_config(comm::World& world, const Arguments& args) {
  const int ranks = args.has("ranks") ? args.get<int>("ranks") : 0;
  if (args.has("ranks") && ranks < 1) {
    throw Error(ExitCode::usage, fmt::format("--ranks is {}, expected 1 or more", ranks))
        .on_all_ranks();
  }
  const auto device = args.has("device") ? args.get<std::string>("device") : "";
  if (args.has("device") && device != "cpu" && device != "cuda") {
    throw Error(ExitCode::usage, fmt::format("--device is {}, expected cpu or cuda", device))
        .on_all_ranks();
  }
  std::vector<std::string_view> unused = keys_beside_the_step();
  if (!is_training(args)) std::ranges::copy(keys_of_training(), std::back_inserter(unused));
  return read_planned_config(world, {.path = args.list("DECK").front(),
                                     .overrides = args.list("set"),
                                     .for_training = true,
                                     .any_ranks = ranks == 0 || args.has("search"),
                                     .ranks = args.has("search") ? 0 : ranks,
                                     .device = device,
                                     .is_plan = true,
                                     .unused = unused});
}

/// Looks for the fastest layout of --ranks ranks, or of as many as the deck's layout has.
void search(const Arguments& args, const train::Config& config,
            const plan::DocumentKeys& documents) {
  const plan::MachineFile machine = plan::read_machine_file(args.get<std::string>("machine"));
  const int ranks = args.has("ranks") ? args.get<int>("ranks") : config.parallel.ranks();
  const deck::Surroundings surroundings{.ranks = ranks,
                                        .has_cuda_device = planned_device(config) == Device::cuda,
                                        .has_cuda_build = true,
                                        .is_plan = true,
                                        .unused = keys_beside_the_step()};
  const plan::WhyNot why_not = [&](const train::Config& changed) {
    return deck::broken_rule(changed, surroundings);
  };
  print_documents(config, documents);
  print_search(plan::search_layouts(config, ranks, planned_options(config), machine, why_not,
                                    documents.shares),
               machine);
}

}  // namespace

Arguments plan_arguments() {
  Arguments args(
      "hyperslab plan DECK [--ranks N] [--device cpu|cuda] [--schedule]\n"
      "               [--movements] [--machine FILE [--search]] [--set k=v]...",
      "Shows what a run would hold, compute and send, and with a machine file how long a step "
      "takes, without starting it.");
  add_deck_options(args);
  args.add()("ranks", po::value<int>(), "ranks of the run (default: as many as the deck's layout)")(
      "device", po::value<std::string>(),
      "cpu or cuda: plan for it, whatever this machine has (default: what the deck means here, or "
      "cuda if there is no GPU and the deck needs one, or computes in bf16 and leaves run.device "
      "open)")("schedule",
               "draw the pipeline's passes in time: F forward, B backward, I and W its parts")(
      "movements", "list the movements of parameters and gradients in a step: axes, bytes, when")(
      "mode", po::value<std::string>()->default_value("step"),
      "step, or forward: without gradients and optimizer state")(
      "machine", po::value<std::string>(),
      "also say how long a step takes on the machine of this file (inputs/machines/, or written by "
      "bench --machine)")("search", "look for the fastest layout of this many ranks")(
      "mtbf-hours", po::value<double>(),
      "hours between two failures of one rank: say how often to save")(
      "save-seconds", po::value<double>(),
      "how long a checkpoint takes (default: by the machine file)")(
      "json", po::value<std::string>(), "also write memory and predicted times to this file");
  args.positional("DECK");
  return args;
}

ExitCode run_plan(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = plan_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  const bool training = is_training(args);
  const train::Config config = planned_config(world, args);
  require_usable(args);
  require_places(world, args, {"json"});
  if (world.rank() != 0) return ExitCode::ok;
  const plan::DocumentKeys documents = plan::count_document_keys(config);
  if (args.has("search")) {
    search(args, config, documents);
    return ExitCode::ok;
  }
  std::optional<plan::MachineFile> machine;
  if (args.has("machine")) machine = plan::read_machine_file(args.get<std::string>("machine"));
  print_layout(config, training, documents);
  const mesh::ParallelConfig& parallel = config.parallel;
  if (args.has("schedule")) {
    print_schedule(pipeline::make_program(
        training ? parallel.schedule : mesh::Schedule::forward_only, parallel.pipeline,
        parallel.virtual_stages, static_cast<int>(config.microbatches())));
  }
  constexpr int kSimulatedSteps = 2;
  const std::vector<plan::Plan> plans =
      make_plans(config, training, machine ? kSimulatedSteps : 1, documents.shares);
  print_memory(config, plans);
  if (!machine) print_host_doubt(world.host(), config, training, plans);
  if (training) print_checkpoint(config, plans);
  print_work(config, plans);
  if (args.has("movements")) print_movements(plans);
  nlohmann::ordered_json out = figures_of(config, plans, documents);
  if (machine) {
    print_doubts(config, training, plans, *machine);
    const plan::PredictedStep predicted =
        plan::predict(config, plans, *machine, training, documents.shares);
    print_prediction(config, predicted, *machine);
    out.update(to_json(config, predicted, *machine));
    if (args.has("mtbf-hours")) {
      print_interval(plan::checkpoint_interval(save_seconds(args, plans, *machine),
                                               args.get<double>("mtbf-hours"), parallel.ranks()),
                     predicted.step.seconds);
    }
  }
  if (args.has("json")) io::write_text_file(args.get<std::string>("json"), out.dump(2) + "\n");
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
