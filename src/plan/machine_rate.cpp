// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/plan/units.hpp"

namespace hyperslab::plan {
namespace {

constexpr double kEnoughSeconds = 0.3;  // measured rounds in all
constexpr double kRoundSeconds = 0.03;  // at least, that begin and end of a round cost nothing
constexpr Dim kLargest = 4096;
constexpr const char* kVariable = "HYPERSLAB_MATRIX_GFLOPS";

/// The longest of all ranks.
double slowest(comm::World& world, double seconds) {
  return 1e-9 * static_cast<double>(world.max(std::llround(1e9 * seconds)));
}

/// Products of all ranks at once.
struct Measuring {
  Dim n = 0;
  std::unique_ptr<MatmulProbe> probe;  ///< null: a rank has no memory for it
  double seconds = 0;                  ///< seconds of one product on the slowest rank
};

/// Collective. `measuring.n`: of the product.
void prepare(comm::World& world, Context& ctx, DType dtype, Measuring& measuring) {
  measuring.probe.reset();
  try {
    measuring.probe = std::make_unique<MatmulProbe>(ctx, measuring.n, dtype);
  } catch (const OutOfMemory&) {  // the arenas have taken it
  }
  if (!world.all(measuring.probe != nullptr)) return measuring.probe.reset();
  world.barrier();
  measuring.seconds = slowest(world, measuring.probe->run());
}

/// FLOP/s of all ranks together in the best round.
double best_round(comm::World& world, const Measuring& measuring) {
  const int products =
      static_cast<int>(std::clamp(std::ceil(kRoundSeconds / measuring.seconds), 1.0, 1000.0));
  double best = products * measuring.seconds;
  for (double spent = 0; spent < kEnoughSeconds;) {  // ranks have equal times and stop together
    world.barrier();
    const double seconds = slowest(world, measuring.probe->run(products));
    best = std::min(best, seconds);
    spent += seconds;
  }
  return world.size() * products * measuring.probe->flops() / best;
}

/// FLOP/s of a rank that the user states, 0 if there is no such statement. Launchers may keep the
/// variable from ranks on other hosts, so rank 0's counts. Collective.
double stated_flops(comm::World& world) {
  double flops = 0;
  comm::agree(world, [&] {
    const char* const text = world.rank() == 0 ? std::getenv(kVariable) : nullptr;
    if (text == nullptr || *text == '\0') return;
    constexpr double kMost = 1e9;
    double giga_flops = 0;
    const char* const end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, giga_flops);
    if (error != std::errc() || rest != end || !(giga_flops > 0 && giga_flops <= kMost)) {
      throw Error(
          ExitCode::usage,
          fmt::format("{} is '{}', expected a number of GFLOP/s of one rank, above 0 and at "
                      "most {}",
                      kVariable, text, kMost));
    }
    flops = 1e9 * giga_flops;
  });
  return world.sum(flops);
}

}  // namespace

MatmulProbe::MatmulProbe(Context& ctx, Dim n, DType dtype)
    : ctx_(ctx),
      n_(n),
      a_(ctx.device(), dtype, {n, n}),
      b_(ctx.device(), dtype, {n, n}),
      c_(ctx.device(), dtype, {n, n}) {
  // Numbers as in training: a GPU's clock depends on the numbers that it multiplies.
  Tensor normals(ctx.device(), DType::f32, {n, n});
  ops::fill_normal(ctx, {}, 0, static_cast<std::uint64_t>(n), normals.view());
  ops::cast(ctx, normals.view(), a_.view());
  ops::cast(ctx, normals.view(), b_.view());
  run();  // before the normals are freed
}

double MatmulProbe::run(int products) {
  const double start = now_seconds();
  for (int i = 0; i < products; ++i) {
    ops::matmul(ctx_, a_.view(), ops::Trans::no, b_.view(), ops::Trans::yes, ops::Accumulate::no,
                c_.view());
  }
  synchronize(ctx_);
  return now_seconds() - start;
}

double MatmulProbe::flops() const {
  const auto size = static_cast<double>(n_);
  return 2.0 * size * size * size;
}

std::string MachineRate::describe(int ranks) const {
  if (std::isnan(flops)) return "no known rate of the GPU, which has no memory left to measure it";
  return fmt::format("{}, {} of {} rank{} ({})", name, rate_text(flops), ranks,
                     ranks == 1 ? "" : "s", source);
}

/// On a context of its own: its choices and its memory are gone with it.
MachineRate measured_rate(comm::World& world, const Context& run, Precision precision,
                          Dim smallest) {
  Context ctx(run.device());
  ctx.set_tf32(run.tf32());
  Measuring measuring;
  measuring.n = ctx.device() == Device::cuda ? kLargest : smallest;
  prepare(world, ctx, storage_of(precision), measuring);
  // Large products are the faster ones, but slow cores have no time for them.
  while (measuring.probe && measuring.seconds < kRoundSeconds && measuring.n < kLargest) {
    measuring.n *= 2;
    prepare(world, ctx, storage_of(precision), measuring);
    if (measuring.probe) continue;
    measuring.n /= 2;  // for which there was memory
    prepare(world, ctx, storage_of(precision), measuring);
    break;
  }
  MachineRate rate;
  rate.name = "the measured matrix rate";
  rate.source =
      fmt::format("{0}, {1} x {1} x {1}, all ranks at once", name_of(precision), measuring.n);
  rate.flops =
      measuring.probe ? best_round(world, measuring) : std::numeric_limits<double>::quiet_NaN();
  return rate;
}

MachineRate machine_rate(comm::World& world, const Context& ctx, Precision precision) {
  MachineRate rate;
  rate.is_measured = false;
  if (ctx.device() == Device::cpu) {
    rate.flops = world.size() * stated_flops(world);
    rate.name = "the stated matrix rate";
    rate.source = kVariable;
    return rate.flops > 0 ? rate : measured_rate(world, ctx, precision);
  }
  const std::optional<double> peak = ctx.machine().peak(precision);
  if (!world.all(peak.has_value()) || !peak) return measured_rate(world, ctx, precision);
  rate.flops = world.size() * *peak;
  rate.name = "the peak";
  rate.source = fmt::format("{} in {}, as NVIDIA states for dense products", device_name(),
                            name_of(precision));
  return rate;
}

}  // namespace hyperslab::plan
