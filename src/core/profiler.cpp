// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/profiler.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "profiler_cuda.hpp"

namespace hyperslab {
namespace {

std::size_t pages(int name) {
  return static_cast<std::size_t>(sysconf(name)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// MemAvailable of Linux: what can be taken without swapping, cached files counted. Elsewhere the
/// free pages.
std::size_t available_on_host() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  for (std::size_t kibibytes = 0; file >> name >> kibibytes && std::getline(file, unit);) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return pages(_SC_AVPHYS_PAGES);
}

}  // namespace

std::string Profiler::unavailable() {
  if constexpr (kHasCuda) return cupti::unavailable();
  return "CUPTI watches GPUs, and this program was built without CUDA (-DHYPERSLAB_CUDA=ON)";
}

Profiler::Profiler(const Recorder& recorder, Watch watch, IsCommunication communicates) {
  const std::string reason = unavailable();
  if (!reason.empty()) throw Error(ExitCode::device, reason);
  if constexpr (kHasCuda) backend_ = cupti::make_backend(recorder, watch, communicates);
}

Profiler::~Profiler() = default;
void Profiler::start() { backend_->start(); }
void Profiler::stop() { backend_->stop(); }
std::vector<CallCount> Profiler::calls() const { return backend_->calls(); }
std::vector<KernelTime> Profiler::kernels() const { return backend_->kernels(); }
CommunicationTime Profiler::communication() const { return backend_->communication(); }
std::map<std::int64_t, Profiler::OpKernels> Profiler::op_kernels() const {
  return backend_->op_kernels();
}
void Profiler::name_stream(const Stream& stream, std::string name) {
  backend_->name_stream(stream.cuda(), std::move(name));
}
std::vector<DeviceEvent> Profiler::events() const { return backend_->events(); }

CommunicationTime communication_time(std::vector<KernelSpan> spans) {
  std::ranges::sort(spans, {}, &KernelSpan::begin_ns);
  std::uint64_t busy = 0;
  std::uint64_t hidden = 0;
  // Ends of communication and of everything else until now; time before them is counted.
  std::uint64_t communicates_until = 0;
  std::uint64_t computes_until = 0;
  for (const KernelSpan& span : spans) {
    std::uint64_t& mine = span.communicates ? communicates_until : computes_until;
    const std::uint64_t others = span.communicates ? computes_until : communicates_until;
    std::uint64_t begin = std::max(span.begin_ns, mine);
    const std::uint64_t idle_since = std::max(communicates_until, computes_until);
    // Nothing ran until here: a kernel that communicates has waited for another member.
    if (span.communicates && idle_since != 0) begin = std::min(begin, idle_since);
    if (span.end_ns <= begin) continue;
    if (span.communicates) busy += span.end_ns - begin;
    if (others > begin) hidden += std::min(others, span.end_ns) - begin;
    mine = span.end_ns;
  }
  return {1e-9 * static_cast<double>(busy), 1e-9 * static_cast<double>(busy - hidden)};
}

std::uint64_t OwnTime::begin_ns(std::uint32_t stream, std::uint64_t begin_ns,
                                std::uint64_t end_ns) {
  std::uint64_t& before = ended_ns_[stream];
  if (before > end_ns) return begin_ns;
  return std::max(begin_ns, std::exchange(before, end_ns));
}

OpProfiler::OpProfiler(Recorder& recorder) : recorder_(recorder) {
  require(recorder.op_observer() == nullptr, "two observers of ops at a time");
  recorder.set_op_observer(this);
}

OpProfiler::~OpProfiler() { recorder_.set_op_observer(nullptr); }

void OpProfiler::begin(std::string_view op) {
  op_ = op;
  began_ = now_seconds();
}

void OpProfiler::end() {
  const std::string_view op = std::exchange(op_, {});
  if (op.empty() || !running_) return;
  const double seconds = now_seconds() - began_;
  KernelTime& time = times_[{op, recorder_.phase()}];
  time.name = op;
  time.phase = recorder_.phase();
  ++time.calls;
  time.seconds += seconds;
  time.call_seconds.push_back(seconds);
}

std::vector<KernelTime> OpProfiler::ops() const {
  std::vector<KernelTime> all;
  all.reserve(times_.size());
  for (const auto& [key, time] : times_) all.push_back(time);
  std::ranges::stable_sort(all, std::greater<>(), &KernelTime::seconds);
  return all;
}

EventTimer::EventTimer(Context& ctx, int intervals)
    : ctx_(ctx), capacity_(2 * static_cast<std::size_t>(intervals)) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) {
      for (std::size_t i = 0; i < capacity_; ++i) events_.push_back(cuda_runtime::make_event());
      return;
    }
  }
  times_.resize(capacity_);
}

void EventTimer::mark() {
  require(marks_ < capacity_, "more intervals than the timer has room for");
  if constexpr (kHasCuda) {
    if (!events_.empty()) {
      cuda_runtime::record_event(events_[marks_++].get(), ctx_.stream().cuda());
      return;
    }
  }
  times_[marks_++] = now_seconds();
}

void EventTimer::begin() {
  require(marks_ % 2 == 0, "an interval begins inside another");
  mark();
}

void EventTimer::end() {
  require(marks_ % 2 == 1, "an interval ends that did not begin");
  mark();
}

std::vector<double> EventTimer::seconds() const {
  synchronize(ctx_);
  std::vector<double> out;
  for (std::size_t i = 0; i + 1 < marks_; i += 2) {
    if constexpr (kHasCuda) {
      if (!events_.empty()) {
        out.push_back(cuda_runtime::seconds_between(events_[i].get(), events_[i + 1].get()));
        continue;
      }
    }
    out.push_back(times_[i + 1] - times_[i]);
  }
  return out;
}

DeviceMemory device_memory(Device device) {
  if constexpr (kHasCuda) {
    if (device == Device::cuda) return cuda_runtime::memory_info();
  }
  require(device == Device::cpu, "no memory is there on that device");
  return {available_on_host(), pages(_SC_PHYS_PAGES)};
}

void start_capture_range() {
  if constexpr (kHasCuda) {
    if (cuda_device_count() > 0) cuda_runtime::start_profiler();
  }
}

void stop_capture_range() {
  if constexpr (kHasCuda) {
    if (cuda_device_count() > 0) cuda_runtime::stop_profiler();
  }
}

}  // namespace hyperslab
