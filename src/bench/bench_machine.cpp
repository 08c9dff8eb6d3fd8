// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "bench_rig.hpp"
#include "host_link.hpp"
#include "hyperslab/bench/machine.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/plan/documents.hpp"

namespace hyperslab::bench {
namespace {

using plan::CollectiveRow;
using plan::MachineFile;
using plan::OpRow;

/// Numbers the ops of a step, and on the CPU also takes their times.
class OpStopwatch final : public OpObserver {
 public:
  explicit OpStopwatch(Recorder& recorder) : recorder_(recorder) {
    require(recorder.op_observer() == nullptr, "two observers of ops at a time");
    recorder.set_op_observer(this);
  }
  ~OpStopwatch() override { recorder_.set_op_observer(nullptr); }
  OpStopwatch(const OpStopwatch&) = delete;
  OpStopwatch& operator=(const OpStopwatch&) = delete;
  OpStopwatch(OpStopwatch&&) = delete;
  OpStopwatch& operator=(OpStopwatch&&) = delete;

  void begin(std::string_view op) override {
    if (depth_++ > 0) return;
    names_.push_back(op);
    began_ = now_seconds();
  }
  void end() override {
    if (--depth_ == 0) seconds_.push_back(now_seconds() - began_);
  }
  [[nodiscard]] std::int64_t number() const override {
    return depth_ == 0 ? -1 : static_cast<std::int64_t>(names_.size()) - 1;
  }
  [[nodiscard]] const std::vector<std::string_view>& names() const { return names_; }
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  Recorder& recorder_;
  int depth_ = 0;
  double began_ = 0;
  std::vector<std::string_view> names_;
  std::vector<double> seconds_;
};

/// The ops of one step, as the plan lists them.
std::vector<const Operation*> planned_ops(const OperationList& operations) {
  std::vector<const Operation*> ops;
  for (const Operation& operation : operations) {
    if (operation.kind == Operation::Kind::compute) ops.push_back(&operation);
  }
  return ops;
}

/// Times of the ops of several steps, put beside the plan's ops of one step.
class OpTable {
 public:
  OpTable(const OperationList& operations, const OpStopwatch& watch)
      : ops_(planned_ops(operations)), samples_(ops_.size()), kernels_(ops_.size()) {
    const std::vector<std::string_view>& ran = watch.names();
    require(!ops_.empty() && ran.size() % ops_.size() == 0, "the plan lists other ops than ran");
    for (std::size_t i = 0; i < ran.size(); ++i) {
      require(ran[i] == ops_[i % ops_.size()]->name, "the plan lists another op than ran");
    }
  }

  void add(std::size_t number, double seconds, std::int64_t kernels) {
    samples_[number % ops_.size()].push_back(seconds);
    kernels_[number % ops_.size()] = static_cast<double>(kernels);
  }

  /// A row for each op and size: the median over its calls.
  [[nodiscard]] std::vector<OpRow> rows() const {
    std::vector<OpRow> rows;
    std::vector<std::vector<double>> samples;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (samples_[i].empty()) continue;
      const auto known = std::ranges::find_if(rows, [&](const OpRow& row) {
        return row.op == ops_[i]->name && row.size == ops_[i]->size;
      });
      const auto index = static_cast<std::size_t>(known - rows.begin());
      if (known == rows.end()) {
        rows.push_back({std::string(ops_[i]->name), ops_[i]->size, 0, kernels_[i]});
        samples.emplace_back();
      }
      samples[index].insert(samples[index].end(), samples_[i].begin(), samples_[i].end());
    }
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].seconds = figures_of(samples[i]).median;
    std::erase_if(rows, [](const OpRow& row) { return row.seconds <= 0; });
    return rows;
  }

 private:
  std::vector<const Operation*> ops_;
  std::vector<std::vector<double>> samples_;
  std::vector<double> kernels_;
};

/// On the CPU: an op's work is done when its call returns.
std::vector<OpRow> ops_on_cpu(BenchRig& rig, const OperationList& operations,
                              const BenchOptions& options) {
  for (int step = 1; step <= options.warmup; ++step) rig.run(BenchMode::step, step);
  const OpStopwatch watch(rig.trainer().context().recorder());
  for (int step = 1; step <= options.steps; ++step) {
    rig.run(BenchMode::step, options.warmup + step);
    (void)rig.trainer().inspection().times(options.warmup + step);
  }
  OpTable table(operations, watch);
  for (std::size_t i = 0; i < watch.seconds().size(); ++i) table.add(i, watch.seconds()[i], 1);
  return table.rows();
}

/// After so long under load a GPU runs at the clock that its power limit leaves.
constexpr double kWarmUpSeconds = 3;

/// On a GPU: kernels that an op launched, seen without graphs.
std::vector<OpRow> ops_on_gpu(comm::World& world, BenchRig& rig, const OperationList& operations,
                              const BenchOptions& options) {
  Context& ctx = rig.trainer().context();
  int step = 0;
  const auto run = [&] {
    rig.run(BenchMode::step, ++step);
    (void)rig.trainer().inspection().times(step);
  };
  const double begin = now_seconds();
  const auto is_warm = [&] { return now_seconds() - begin >= kWarmUpSeconds; };
  while (step < options.warmup || !world.all(is_warm())) run();
  synchronize(ctx);
  Profiler profiler(ctx.recorder(), Profiler::Watch::calls_and_kernels);
  const OpStopwatch watch(ctx.recorder());
  profiler.start();
  for (int measured = 0; measured < options.steps; ++measured) run();
  synchronize(ctx);
  profiler.stop();
  OpTable table(operations, watch);
  for (const auto& [number, time] : profiler.op_kernels()) {
    table.add(static_cast<std::size_t>(number), time.seconds, time.calls);
  }
  return table.rows();
}

/// The time of a step with graphs beyond its kernels, per kernel.
double launch_seconds(double step_seconds, const std::vector<OpRow>& rows,
                      const OperationList& operations) {
  double seconds = 0;
  double kernels = 0;
  for (const Operation* op : planned_ops(operations)) {
    const auto row = std::ranges::find_if(
        rows, [&](const OpRow& known) { return known.op == op->name && known.size == op->size; });
    if (row == rows.end()) continue;
    seconds += row->seconds;
    kernels += row->kernels;
  }
  return kernels > 0 ? std::max(0.0, (step_seconds - seconds) / kernels) : 0;
}

constexpr std::size_t kSmallestBytes = std::size_t{16} << 10;
constexpr std::size_t kLargestBytes = std::size_t{256} << 20;
constexpr std::size_t kLargestBytesOnCpu = std::size_t{32} << 20;

/// Times calls of one group's collectives over all ranks, in sizes that quadruple.
class CollectiveBench {
 public:
  CollectiveBench(comm::World& world, Device device)
      : world_(world),
        ctx_(device),
        largest_(device == Device::cuda ? kLargestBytes : kLargestBytesOnCpu),
        full_(device, largest_),
        shard_(device, largest_) {}

  std::vector<CollectiveRow> run(comm::GroupRole role) {
    rows_.clear();
    // A communicator of the world's role has other limits; a split of it has its role's limits.
    const auto whole = world_.communicator(ctx_.device(), comm::GroupRole::other);
    const auto group = whole->split(0, world_.rank(), role);
    for (std::size_t bytes = kSmallestBytes; bytes <= largest_; bytes *= 4) measure(*group, bytes);
    return std::move(rows_);
  }

 private:
  using Call = std::function<comm::Ticket(comm::Communicator&)>;

  void measure(comm::Communicator& group, std::size_t bytes) {
    const auto view = [&](Buffer& buffer, std::size_t size) {
      const auto count = static_cast<Dim>(size / sizeof(float));
      return View(buffer.data(), DType::f32, ctx_.device(), {count});
    };
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::size_t part = bytes / sizeof(float) / ranks * sizeof(float);
    const View full = view(full_, part * ranks);
    const View shard = view(shard_, part);
    if (group.role() == comm::GroupRole::pipeline) {
      const int next = (group.rank() + 1) % group.size();
      const int before = (group.rank() + group.size() - 1) % group.size();
      const View sent = view(full_, bytes);
      const View received = view(shard_, bytes);
      return time("send", group, bytes, [&, sent, received](comm::Communicator& to) {
        to.group_begin();
        to.send(ctx_, sent, next);
        to.recv(ctx_, received, before);
        return to.group_end(ctx_);
      });
    }
    if (group.role() == comm::GroupRole::context) {
      const View received(shard_.data(), DType::f32, ctx_.device(), full.shape());
      return time("all_to_all", group, part * ranks, [&, received](comm::Communicator& in) {
        return in.all_to_all(ctx_, full, received);
      });
    }
    time("all_reduce", group, part * ranks,
         [&](comm::Communicator& in) { return in.all_reduce(ctx_, full, comm::ReduceOp::sum); });
    time("reduce_scatter", group, part * ranks,
         [&](comm::Communicator& in) { return in.reduce_scatter(ctx_, full, shard); });
    time("all_gather", group, part * ranks,
         [&](comm::Communicator& in) { return in.all_gather(ctx_, shard, full); });
  }

  void time(const char* name, comm::Communicator& group, std::size_t bytes, const Call& call) {
    constexpr int kRounds = 5;
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      // Short ones are repeated, so that the clock and the launch from the host weigh little.
      const int calls = bytes <= (std::size_t{1} << 20) ? 10 : 2;
      world_.barrier();
      const double begin = now_seconds();
      for (int i = 0; i < calls; ++i) group.wait(ctx_, call(group));
      synchronize(ctx_);
      const double seconds = (now_seconds() - begin) / calls;
      rounds.push_back(1e-9 *
                       static_cast<double>(world_.max(static_cast<std::int64_t>(1e9 * seconds))));
    }
    rows_.push_back({std::string(group.name()), name, group.size(), static_cast<double>(bytes),
                     figures_of(rounds).median});
  }

  comm::World& world_;
  Context ctx_;
  std::size_t largest_;
  Buffer full_;
  Buffer shard_;
  std::vector<CollectiveRow> rows_;
};

/// The rate at which a rank writes while all others of its node do.
double storage_rate(comm::World& world) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::string path = fmt::format("hyperslab-storage-{}.tmp", world.rank());
  double seconds = 0;
  world.barrier();
  comm::agree(world, [&] {
    const std::string text(kBytes, 'x');
    const double begin = now_seconds();
    io::write_text_file(path, text);
    seconds = now_seconds() - begin;
    std::filesystem::remove(path);
  });
  const auto slowest = static_cast<double>(world.max(static_cast<std::int64_t>(1e9 * seconds)));
  return static_cast<double>(kBytes) / (1e-9 * slowest);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    return line.substr(std::min(line.size(), line.find(": ") + 2));
  }
  return "CPU";
}

/// Multiprocessors that a collective takes from computation, or the core that does both.
std::map<std::string, double> overlap_cost(Device device, const CtaBudgets& ctas) {
  const auto cost = [&](int blocks) {
    return device == Device::cuda ? static_cast<double>(blocks) / kReferenceMultiprocessors : 1.0;
  };
  return {{"data", cost(ctas.data)},
          {"pipeline", cost(ctas.pipeline)},
          {"tied", cost(ctas.tied)},
          // Ops were measured beside the collectives of their tensor group. Two expert ranks copy;
          // the cost of more was not measured.
          {"tensor", device == Device::cuda ? 0.0 : 1.0},
          {"expert", device == Device::cuda ? 0.0 : 1.0}};
}

std::vector<CollectiveRow> collective_rows(comm::World& world, Device device) {
  CollectiveBench bench(world, device);
  std::vector<CollectiveRow> all;
  for (const auto role : {comm::GroupRole::data, comm::GroupRole::tensor, comm::GroupRole::expert,
                          comm::GroupRole::pipeline, comm::GroupRole::context}) {
    std::ranges::move(bench.run(role), std::back_inserter(all));
  }
  return all;
}

}  // namespace

MachineFile measure_machine(comm::World& world, const train::Config& config,
                            const BenchOptions& options) {
  MachineFile machine;
  const std::string precision(name_of(config.precision.compute));
  const train::TrainerOptions on =
      train::trainer_options(config, world.local_rank(), /*training=*/true);
  const bool on_gpu = on.device == Device::cuda;
  machine.device = on_gpu ? "cuda" : "cpu";
  machine.name = on_gpu ? device_name() : cpu_name();
  machine.ranks_per_node = world.local_size();
  machine.memory_bytes = static_cast<double>(device_memory(on.device).total);
  if (!on_gpu) machine.memory_bytes /= world.local_size();
  if (const auto peak = on.machine.peak(config.precision.compute)) {
    machine.peak_flops[precision] = *peak;
  }
  machine.overlap_cost = overlap_cost(on.device, on.machine.ctas);
  machine.sources.push_back(fmt::format("{}, {} in {}, {} rank{} of {} threads", commit(),
                                        config.run.name, precision, world.size(),
                                        world.size() == 1 ? "" : "s", world.threads().threads));
  machine.storage_bytes_per_second = storage_rate(world);
  machine.host_bytes_per_second = host_link_rate(world, on.device);
  const bool alone = config.parallel.tensor == world.size();
  if (world.size() > 1) machine.collectives = collective_rows(world, on.device);
  if (!alone) return machine;
  const double step_seconds = on_gpu ? run_bench(world, config, options).median : 0;
  BenchOptions watched = options;
  watched.kernels = true;  // without graphs
  BenchRig rig(world, config, watched);
  constexpr int kListedSteps = 2;  // the second one has no first calls
  plan::Plan plan = plan::make_plan(config, rig.options(), world.rank(), kListedSteps);
  plan::leave_out_documents(plan, config, rig.key_shares());
  const OperationList& operations = plan.operations.back();
  std::vector<OpRow>& rows = machine.ops[precision];
  rows =
      on_gpu ? ops_on_gpu(world, rig, operations, options) : ops_on_cpu(rig, operations, options);
  if (on_gpu && world.size() == 1)
    machine.launch_seconds = launch_seconds(step_seconds, rows, operations);
  return machine;
}

}  // namespace hyperslab::bench
