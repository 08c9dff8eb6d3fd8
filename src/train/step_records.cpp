// SPDX-License-Identifier: Apache-2.0
#include "step_records.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::train {
namespace {

/// Notes for the watchdog, which alone sets a deadline, that the host waits for a step.
class Awaiting {
 public:
  Awaiting(Activity* activity, std::int64_t step) : activity_(activity) {
    if (activity_ != nullptr) activity_->awaited_step.store(step, std::memory_order_relaxed);
  }
  ~Awaiting() {
    if (activity_ == nullptr) return;
    activity_->awaited_step.store(0, std::memory_order_relaxed);
    activity_->beat();
  }
  Awaiting(const Awaiting&) = delete;
  Awaiting& operator=(const Awaiting&) = delete;
  Awaiting(Awaiting&&) = delete;
  Awaiting& operator=(Awaiting&&) = delete;

 private:
  Activity* activity_;
};

/// Waits until the device has written `step` to `record`.
void wait_for(const std::int64_t& record, std::int64_t step, Activity* activity,
              const std::function<void()>& idle_work) {
  const Awaiting note(activity, step);
  const volatile std::int64_t& written = record;
  // Read once a round: the device may write between two reads.
  for (std::int64_t seen = written; seen != step; seen = written) {
    require(seen < step, "the record of that step is gone");
    if (idle_work) idle_work();
    sched_yield();
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

/// The device's counters for its gradient reductions, see Communicator::device_nanoseconds.
std::array<const std::uint64_t*, ops::DeviceClock::kCounters> reduction_counters(
    const mesh::Mesh& mesh) {
  const comm::Communicator* tied = mesh.tied_group();
  return {mesh.group(mesh::kShards).device_nanoseconds(),
          tied == nullptr ? nullptr : tied->device_nanoseconds()};
}

Shape shape_of_loads(const model::ModelSpec& model) {
  return {model.experts.layers_of(model.layers), model.experts.count};
}

View loads_in(const View& sums, const Shape& loads) {
  if (loads.numel() == 0) return {};
  return sums.slice(ops::kSumCount, loads.numel()).reshaped(loads);
}

View bytes_of(void* memory, std::size_t size, Device device) {
  return {memory, DType::u8, device, {static_cast<Dim>(size)}};
}

}  // namespace

StepRecords::StepRecords(Context& ctx, Arena& scratch, DType dtype, const mesh::Mesh& mesh,
                         const model::ModelSpec& model)
    : ctx_(ctx),
      all_sums_(scratch.take(dtype, {ops::kSumCount + shape_of_loads(model).numel()}, "sums")),
      loads_(loads_in(all_sums_, shape_of_loads(model))),
      state_memory_(
          scratch.take(DType::u8, {static_cast<Dim>(sizeof(ops::StepState))}, "step state")),
      update_state_memory_(
          scratch.take(DType::u8, state_memory_.shape(), "step state of the update")),
      clock_memory_(
          scratch.take(DType::u8, {static_cast<Dim>(sizeof(ops::DeviceClock))}, "device clock")),
      results_(ctx.device(), sizeof(ops::StepResult) * ops::kResultRing),
      readings_(ctx.device(), sizeof(ops::ClockReading) * ops::kResultRing),
      kept_loads_(ctx.device(), loads_.bytes() * ops::kResultRing) {
  if (ctx.device() == Device::meta) return;
  state_ = static_cast<ops::StepState*>(state_memory_.raw());
  write_state({});
  ops::DeviceClock cleared;
  cleared.counters = reduction_counters(mesh);
  copy(ctx_, bytes_of(&cleared, sizeof cleared, Device::cpu), clock_memory_);
  synchronize(ctx_);
}

View StepRecords::loads_slot(std::int64_t step) const {
  auto* first = static_cast<std::byte*>(kept_loads_.data());
  return {first + static_cast<std::size_t>(step % ops::kResultRing) * loads_.bytes(),
          loads_.dtype(), Device::cpu, loads_.shape()};
}

void StepRecords::begin(const ops::StepInput& input) const {
  ops::begin_step(ctx_, input, state_, sums());
  if (loads_) ops::fill(ctx_, 0, loads_);
}

void StepRecords::publish_loads() const {
  if (!loads_) return;
  const Shape ring = {ops::kResultRing, loads_.numel()};
  ops::publish_loads(ctx_, loads_, state_,
                     {kept_loads_.device_data(), loads_.dtype(), ctx_.device(), ring});
}

std::vector<double> StepRecords::loads(std::int64_t step) const {
  if (!loads_) return {};
  (void)result(step);  // which the device writes after the loads
  const View kept = loads_slot(step);
  std::vector<double> out(static_cast<std::size_t>(kept.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = kept.dtype() == DType::f64 ? kept.data<double>()[i]
                                        : static_cast<double>(kept.data<float>()[i]);
  }
  return out;
}

void StepRecords::keep_state_of_update() const { copy(ctx_, state_memory_, update_state_memory_); }

ops::StepState StepRecords::read_state() const {
  ops::StepState state;
  copy(ctx_, state_memory_, bytes_of(&state, sizeof state, Device::cpu));
  synchronize(ctx_);
  return state;
}

void StepRecords::write_state(const ops::StepState& state) const {
  ops::StepState kept = state;
  copy(ctx_, bytes_of(&kept, sizeof kept, Device::cpu), state_memory_);
  synchronize(ctx_);
}

std::array<double, ops::kSumCount> StepRecords::read_sums() const {
  std::array<double, ops::kSumCount> out{};
  if (all_sums_.dtype() == DType::f64) {
    copy(ctx_, sums(), View(out.data(), DType::f64, Device::cpu, sums().shape()));
    synchronize(ctx_);
    return out;
  }
  std::array<float, ops::kSumCount> narrow{};
  copy(ctx_, sums(), View(narrow.data(), DType::f32, Device::cpu, sums().shape()));
  synchronize(ctx_);
  std::ranges::copy(narrow, out.begin());
  return out;
}

ops::StepResult StepRecords::read_result() const {
  const std::array<double, ops::kSumCount> sums = read_sums();
  const ops::StepState now = read_state();
  const double norm_squared = sums[ops::kSumNormSquared];
  const bool finite = sums[ops::kSumNonFinite] == 0 && std::isfinite(norm_squared) &&
                      std::isfinite(sums[ops::kSumLoss]);
  return {.step = now.input.step,
          .loss_sum = sums[ops::kSumLoss],
          .tokens = sums[ops::kSumTokens],
          .correct = sums[ops::kSumCorrect],
          .correct5 = sums[ops::kSumCorrect5],
          .z_loss_sum = sums[ops::kSumZLoss],
          .balance_sum = sums[ops::kSumBalance],
          .router_z_sum = sums[ops::kSumRouterZ],
          .router_entropy_sum = sums[ops::kSumRouterEntropy],
          .rows_beyond = sums[ops::kSumRowsBeyond],
          .weights = sums[ops::kSumWeights],
          .kl_sum = sums[ops::kSumKl],
          .marked = sums[ops::kSumMarked],
          .gradient_norm = std::sqrt(norm_squared) / static_cast<double>(now.loss_scale),
          .learning_rate = now.input.learning_rate,
          .loss_scale = now.loss_scale,
          .skipped_steps = now.skipped_steps,
          .skipped = finite ? 0 : 1,
          .stop = sums[ops::kSumStop] > 0 ? 1 : 0};
}

void StepRecords::leave_out() const {
  const ops::StepResult found = read_result();
  static_cast<ops::StepResult*>(results_.data())[found.step % ops::kResultRing] = found;
}

void StepRecords::forget_results() const {
  if (ctx_.device() == Device::meta) return;
  synchronize(ctx_);
  std::memset(results_.data(), 0, results_.bytes());
  std::memset(readings_.data(), 0, readings_.bytes());
}

void StepRecords::start_clock(bool components) {
  if (ctx_.device() != Device::cuda) return;
  clock_ = static_cast<ops::DeviceClock*>(clock_memory_.raw());
  ctx_.recorder().use_timer(this, components);
  restart_clock();
}

void StepRecords::charge(int slot) { ops::mark_clock(ctx_, clock_, slot); }

void StepRecords::restart_clock() {
  if (clock_ != nullptr) ops::mark_clock(ctx_, clock_, -1);
}

void StepRecords::publish_times() {
  if (clock_ == nullptr) return;
  ops::publish_clock(ctx_, clock_, state_,
                     static_cast<ops::ClockReading*>(readings_.device_data()));
}

const ops::StepResult& StepRecords::result(std::int64_t step) const {
  const auto* all = static_cast<const ops::StepResult*>(results_.data());
  const ops::StepResult& found = all[step % ops::kResultRing];
  Activity* activity = ctx_.recorder().activity();
  wait_for(found.step, step, activity, idle_work_);
  if (activity != nullptr) activity->ended_step.store(step, std::memory_order_relaxed);
  return found;
}

StepTimes StepRecords::times(std::int64_t step, const StepTimes& host) const {
  if (clock_ == nullptr) return host;
  const auto* all = static_cast<const ops::ClockReading*>(readings_.data());
  const ops::ClockReading& reading = all[step % ops::kResultRing];
  wait_for(reading.step, step, ctx_.recorder().activity(), idle_work_);
  StepTimes times = host;
  for (std::size_t i = 0; i < kPhases; ++i) {
    times.phase_seconds[i] = 1e-9 * static_cast<double>(reading.ns[i]);
  }
  for (std::size_t i = 0; i < kMaxComponents; ++i) {
    times.component_seconds[i] = 1e-9 * static_cast<double>(reading.ns[kPhases + i]);
  }
  times.reduce_seconds = 1e-9 * static_cast<double>(reading.counters_ns);
  times.reduce_busy_seconds = times.reduce_seconds;  // one after the other on the group's stream
  times.bound_exposed();
  times.step_seconds = std::accumulate(times.phase_seconds.begin(), times.phase_seconds.end(), 0.0);
  return times;
}

}  // namespace hyperslab::train
