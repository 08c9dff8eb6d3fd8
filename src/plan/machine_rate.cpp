// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_rate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::plan {
namespace {

/// TFLOP/s; 0: the GPU has no such products.
struct Peak {
  std::string_view gpu;  ///< as the driver prints it, without "NVIDIA "
  double half = 0;       ///< fp16
  bool has_bf16 = true;  ///< at the rate of fp16
  double tf32 = 0;
  double fp32 = 0;
};

constexpr std::array kPeaks = {
    Peak{"Tesla V100-SXM2-16GB", 125, false, 0, 15.7},
    Peak{"Tesla V100-SXM2-32GB", 125, false, 0, 15.7},
    Peak{"Tesla V100-PCIE-16GB", 112, false, 0, 14},
    Peak{"Tesla V100-PCIE-32GB", 112, false, 0, 14},
    Peak{"Tesla V100S-PCIE-32GB", 130, false, 0, 16.4},
    Peak{"Tesla T4", 65, false, 0, 8.1},
    Peak{"A100-SXM4-40GB", 312, true, 156, 19.5},
    Peak{"A100-SXM4-80GB", 312, true, 156, 19.5},
    Peak{"A100-PCIE-40GB", 312, true, 156, 19.5},
    Peak{"A100 80GB PCIe", 312, true, 156, 19.5},
    Peak{"A800-SXM4-80GB", 312, true, 156, 19.5},
    Peak{"A800 80GB PCIe", 312, true, 156, 19.5},
    Peak{"A40", 149.7, true, 74.8, 37.4},
    Peak{"A30", 165, true, 82, 10.3},
    Peak{"A10", 125, true, 62.5, 31.2},
    Peak{"L4", 121, true, 60, 30.3},
    Peak{"L40", 181.05, true, 90.5, 90.5},
    Peak{"L40S", 362.05, true, 183, 91.6},
    Peak{"GeForce RTX 3090", 71, true, 35.6, 35.6},
    Peak{"GeForce RTX 4090", 165.2, true, 82.6, 82.6},
    Peak{"GeForce RTX 5090", 209.5, true, 104.8, 104.8},
    Peak{"RTX A6000", 154.8, true, 77.4, 38.7},
    Peak{"RTX 6000 Ada Generation", 364.2, true, 182.1, 91.1},
    Peak{"H100 PCIe", 756, true, 378, 51},
    Peak{"H100 NVL", 835.5, true, 417.5, 60},
    Peak{"H100 80GB HBM3", 989, true, 494, 67},
    Peak{"H800", 989, true, 494, 67},
    Peak{"H800 PCIe", 756, true, 378, 51},
    Peak{"H20", 148, true, 74, 44},
    Peak{"H200", 989, true, 494, 67},
    Peak{"H200 NVL", 835.5, true, 417.5, 60},
    Peak{"GH200 120GB", 989, true, 494, 67},
    Peak{"GH200 480GB", 989, true, 494, 67},
    Peak{"GH200 144G HBM3e", 989, true, 494, 67},
    Peak{"B100", 1750, true, 900, 60},
    Peak{"B200", 2250, true, 1100, 75},
    Peak{"GB200", 2500, true, 1250, 80},
};

constexpr double kEnoughSeconds = 0.3;  // of measured rounds
constexpr double kRoundSeconds = 0.03;  // at least, that begin and end of a round cost nothing
constexpr Dim kLargest = 4096;

DType dtype_of(const std::string& precision) {
  if (precision == "bf16") return DType::bf16;
  return precision == "fp16" ? DType::f16 : DType::f32;
}

/// The longest of all ranks.
double slowest(comm::World& world, double seconds) {
  return 1e-9 * static_cast<double>(world.max(std::llround(1e9 * seconds)));
}

/// Products of all ranks at once.
struct Measuring {
  Dim n = 0;
  std::unique_ptr<MatmulProbe> probe;  ///< null: a rank has no memory for it
  double seconds = 0;                  ///< of one product on the slowest rank
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
  for (double spent = 0; spent < kEnoughSeconds;) {  // the same on all ranks: they stop together
    world.barrier();
    const double seconds = slowest(world, measuring.probe->run(products));
    best = std::min(best, seconds);
    spent += seconds;
  }
  return world.size() * products * measuring.probe->flops() / best;
}

std::string readable(double flops) {
  return flops < 1e12 ? fmt::format("{:.1f} GFLOP/s", 1e-9 * flops)
                      : fmt::format("{:.1f} TFLOP/s", 1e-12 * flops);
}

}  // namespace

std::optional<double> peak_flops(const std::string& gpu, const std::string& precision) {
  constexpr std::string_view kMaker = "NVIDIA ";
  const std::string_view name =
      gpu.starts_with(kMaker) ? std::string_view(gpu).substr(kMaker.size()) : std::string_view(gpu);
  const auto row = std::ranges::find(kPeaks, name, &Peak::gpu);
  if (row == kPeaks.end()) return std::nullopt;
  double peak = 0;
  if (precision == "fp16" || (precision == "bf16" && row->has_bf16)) peak = row->half;
  if (precision == "tf32") peak = row->tf32;
  if (precision == "fp32") peak = row->fp32;
  if (peak == 0) return std::nullopt;
  return 1e12 * peak;
}

MatmulProbe::MatmulProbe(Context& ctx, Dim n, DType dtype)
    : ctx_(ctx),
      n_(n),
      a_(ctx.device(), dtype, {n, n}),
      b_(ctx.device(), dtype, {n, n}),
      c_(ctx.device(), dtype, {n, n}) {
  // Numbers as in training: a GPU's clock depends on what it multiplies.
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
  return fmt::format("{}, {} of {} rank{} ({})", name, readable(flops), ranks,
                     ranks == 1 ? "" : "s", source);
}

/// On a context of its own: what it chooses, and its memory, are gone with it.
MachineRate measured_rate(comm::World& world, const Context& run, const std::string& precision,
                          Dim smallest) {
  Context ctx(run.device());
  ctx.set_tf32(run.tf32());
  Measuring measuring;
  measuring.n = ctx.device() == Device::cuda ? kLargest : smallest;
  prepare(world, ctx, dtype_of(precision), measuring);
  // Large products are the faster ones, but slow cores have no time for them.
  while (measuring.probe && measuring.seconds < kRoundSeconds && measuring.n < kLargest) {
    measuring.n *= 2;
    prepare(world, ctx, dtype_of(precision), measuring);
    if (measuring.probe) continue;
    measuring.n /= 2;  // for which there was memory
    prepare(world, ctx, dtype_of(precision), measuring);
    break;
  }
  MachineRate rate;
  rate.name = "the measured matrix rate";
  rate.source = fmt::format("{0}, {1} x {1} x {1}, all ranks at once", precision, measuring.n);
  rate.flops =
      measuring.probe ? best_round(world, measuring) : std::numeric_limits<double>::quiet_NaN();
  return rate;
}

MachineRate machine_rate(comm::World& world, const Context& ctx, const std::string& precision) {
  std::optional<double> peak;
  if (ctx.device() == Device::cuda) peak = peak_flops(device_name(), precision);
  if (!world.all(peak.has_value())) return measured_rate(world, ctx, precision);
  MachineRate rate;
  rate.flops = world.size() * *peak;
  rate.is_measured = false;
  rate.name = "the peak";
  rate.source =
      fmt::format("{} in {}, as NVIDIA states for dense products", device_name(), precision);
  return rate;
}

}  // namespace hyperslab::plan
