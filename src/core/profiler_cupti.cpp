// SPDX-License-Identifier: Apache-2.0
// CUPTI by its callbacks (calls of the host) and its activity records (kernels).
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "hyperslab/core/error.hpp"
#include "profiler_cuda.hpp"

namespace hyperslab::cupti {
namespace {

#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
#endif
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using FillRecord = CUpti_ActivityMemset4;

/// With kernels, as copies to other GPUs communicate.
constexpr std::array kCopies = {CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2};
constexpr CUpti_ActivityKind kFills = CUPTI_ACTIVITY_KIND_MEMSET;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kRecordAlignment = 8;

/// The functions of CUPTI that are used, found at run time.
struct Library {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) activity_enable = nullptr;
  decltype(&cuptiActivityDisable) activity_disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetStreamIdEx) stream_id = nullptr;
  std::string unavailable;  ///< why; empty if all is there
};

/// Tries the loader's own search (LD_LIBRARY_PATH, the system), then the folder of the toolkit of
/// this build.
void* open_library(std::string& why) {
  const std::string name =
      "libcupti.so." + std::to_string(CUPTI_API_VERSION / 10000);  // its major version is CUDA's
  for (const std::string& path : {name, std::string(HYPERSLAB_CUPTI_LIBRARY)}) {
    if (path.empty()) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (why.empty()) why = dlerror();
  }
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* from, Library& to) {
  return find(from, "cuptiGetVersion", to.get_version) &&
         find(from, "cuptiGetResultString", to.get_result_string) &&
         find(from, "cuptiSubscribe", to.subscribe) &&
         find(from, "cuptiUnsubscribe", to.unsubscribe) &&
         find(from, "cuptiEnableDomain", to.enable_domain) &&
         find(from, "cuptiActivityRegisterCallbacks", to.register_callbacks) &&
         find(from, "cuptiActivityEnable", to.activity_enable) &&
         find(from, "cuptiActivityDisable", to.activity_disable) &&
         find(from, "cuptiActivityFlushAll", to.flush_all) &&
         find(from, "cuptiActivityGetNextRecord", to.next_record) &&
         find(from, "cuptiActivityGetNumDroppedRecords", to.dropped_records) &&
         find(from, "cuptiGetTimestamp", to.timestamp) &&
         find(from, "cuptiGetStreamIdEx", to.stream_id);
}

Library open() {
  Library out;
  std::string why;
  void* library = open_library(why);
  if (library == nullptr) {
    out.unavailable = "CUPTI cannot be opened (" + why +
                      "); install it (cuda-cupti of the toolkit, or pip install nvidia-cuda-cupti) "
                      "and let LD_LIBRARY_PATH name its folder";
    return out;
  }
  std::uint32_t version = 0;
  if (!find_all(library, out) || out.get_version(&version) != CUPTI_SUCCESS ||
      version / 10000 != CUPTI_API_VERSION / 10000) {
    out.unavailable = "the CUPTI that was found has version " + std::to_string(version) +
                      ", and this program was built for " + std::to_string(CUPTI_API_VERSION) +
                      "; let LD_LIBRARY_PATH name the folder of that one";
  }
  return out;
}

const Library& library() {
  static const Library opened = open();
  return opened;
}

void check(CUptiResult status, const char* call) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  (void)library().get_result_string(status, &text);
  throw Error(ExitCode::device, std::string("CUPTI: ") + call + ": " + (text ? text : "?") +
                                    "; another profiler may hold it, or the machine may forbid "
                                    "profiling");
}

std::string copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy on device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy between devices";
    default: return "copy";
  }
}

/// One moment on two clocks.
struct Moment {
  std::uint64_t cupti_ns = 0;
  double monotonic_seconds = 0;
};

/// The clocks are read one after the other; of several readings the one that took least counts.
Moment now_on_both_clocks() {
  constexpr int kReadings = 9;
  Moment moment;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kReadings; ++i) {
    std::uint64_t nanoseconds = 0;
    const double before = now_seconds();
    check(library().timestamp(&nanoseconds), "cuptiGetTimestamp");
    const double after = now_seconds();
    if (after - before >= least) continue;
    least = after - before;
    moment = {nanoseconds, 0.5 * (before + after)};
  }
  return moment;
}

double monotonic_seconds(std::uint64_t cupti_ns, const Moment& moment) {
  const auto since = static_cast<std::int64_t>(cupti_ns - moment.cupti_ns);
  return moment.monotonic_seconds + 1e-9 * static_cast<double>(since);
}

class Watcher;
std::atomic<Watcher*> current{nullptr};  // CUPTI's callbacks for buffers say not for whom they are

class Watcher final : public Profiler::Backend {
 public:
  Watcher(const Recorder& recorder, Profiler::Watch watch, Profiler::IsCommunication communicates);
  ~Watcher() override;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  Watcher(Watcher&&) = delete;
  Watcher& operator=(Watcher&&) = delete;

  void start() override;
  void stop() override;
  [[nodiscard]] std::vector<CallCount> calls() const override;
  [[nodiscard]] std::vector<KernelTime> kernels() const override;
  [[nodiscard]] CommunicationTime communication() const override;
  [[nodiscard]] std::map<std::int64_t, Profiler::OpKernels> op_kernels() const override;
  void name_stream(CUstream_st* stream, std::string name) override;
  [[nodiscard]] std::vector<DeviceEvent> events() const override;

 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                               const void* data);
  static void CUPTIAPI on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records);
  static void CUPTIAPI on_complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                   std::size_t size, std::size_t valid_bytes);
  void set_domains(bool on) const;
  void enter(const CUpti_CallbackData& call, bool outermost);
  [[nodiscard]] bool sees_kernels() const { return watch_ != Profiler::Watch::calls; }
  [[nodiscard]] bool keeps_events() const { return watch_ == Profiler::Watch::timeline; }
  void add(const KernelRecord& record);
  template <class Record>
  void add_copy(const Record& record);
  void add(const FillRecord& record);
  template <class Record>
  void keep_event(const Record& record, std::uint64_t begin_ns, std::string name,
                  std::int64_t bytes, bool communicates);

  const Recorder& recorder_;
  Profiler::Watch watch_;
  Profiler::IsCommunication communicates_;
  std::thread::id launcher_ = std::this_thread::get_id();
  CUpti_SubscriberHandle subscriber_ = nullptr;
  bool running_ = false;
  mutable std::mutex mutex_;
  std::unordered_map<const char*, std::int64_t> calls_;  // names are constants of CUPTI
  struct Launch {
    Phase phase = Phase::other;
    std::string_view component = "other";
    int microbatch = -1;
    std::int64_t op = -1;
    std::int64_t operation = -1;  ///< newest group operation that was called
  };
  [[nodiscard]] Launch launch_of(std::uint32_t correlation) const;
  std::unordered_map<std::uint32_t, Launch> launches_;  // by correlation
  std::map<std::int64_t, Profiler::OpKernels> op_kernels_;
  struct Row {
    KernelTime time;
    bool communicates = false;
  };
  std::map<std::pair<std::string, Phase>, Row> kernels_;  // by name in the record
  std::vector<KernelSpan> spans_;
  OwnTime own_time_;
  struct Event {
    DeviceEvent event;  ///< without stream and times
    std::uint32_t stream = 0;
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
  };
  std::vector<Event> events_;
  std::map<std::uint32_t, std::string> streams_;  ///< names
  double started_seconds_ = 0;
  Moment stopped_;
};

Watcher::Watcher(const Recorder& recorder, Profiler::Watch watch,
                 Profiler::IsCommunication communicates)
    : recorder_(recorder), watch_(watch), communicates_(communicates) {
  Watcher* none = nullptr;
  require(current.compare_exchange_strong(none, this), "two profilers at a time");
  try {
    check(library().subscribe(&subscriber_, &Watcher::on_call, this), "cuptiSubscribe");
    if (sees_kernels()) {
      check(library().register_callbacks(&Watcher::on_request, &Watcher::on_complete),
            "cuptiActivityRegisterCallbacks");
    }
  } catch (...) {
    if (subscriber_ != nullptr) (void)library().unsubscribe(subscriber_);
    current = nullptr;
    throw;
  }
}

Watcher::~Watcher() {
  if (running_) {
    (void)library().enable_domain(0, subscriber_, CUPTI_CB_DOMAIN_RUNTIME_API);
    (void)library().enable_domain(0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API);
    if (sees_kernels()) {
      (void)library().activity_disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
      for (const CUpti_ActivityKind kind : kCopies) (void)library().activity_disable(kind);
      (void)library().activity_disable(kFills);
      (void)library().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
  }
  (void)library().unsubscribe(subscriber_);
  current = nullptr;
}

void Watcher::set_domains(bool on) const {
  check(library().enable_domain(on ? 1 : 0, subscriber_, CUPTI_CB_DOMAIN_RUNTIME_API),
        "cuptiEnableDomain");
  check(library().enable_domain(on ? 1 : 0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API),
        "cuptiEnableDomain");
}

void Watcher::start() {
  {
    const std::scoped_lock lock(mutex_);
    calls_.clear();
    launches_.clear();
    op_kernels_.clear();
    kernels_.clear();
    spans_.clear();
    own_time_ = {};
    events_.clear();
  }
  running_ = true;
  started_seconds_ = now_seconds();
  if (sees_kernels()) {
    check(library().activity_enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityEnable");
    for (const CUpti_ActivityKind kind : kCopies) {
      check(library().activity_enable(kind), "cuptiActivityEnable");
    }
  }
  if (keeps_events()) check(library().activity_enable(kFills), "cuptiActivityEnable");
  set_domains(true);
}

void Watcher::stop() {
  set_domains(false);
  if (sees_kernels()) {
    check(library().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    check(library().activity_disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
          "cuptiActivityDisable");
    for (const CUpti_ActivityKind kind : kCopies) {
      check(library().activity_disable(kind), "cuptiActivityDisable");
    }
    if (keeps_events()) {
      check(library().activity_disable(kFills), "cuptiActivityDisable");
      stopped_ = now_on_both_clocks();
    }
    std::size_t dropped = 0;
    check(library().dropped_records(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    if (dropped > 0) {
      throw Error(ExitCode::device, "CUPTI lost " + std::to_string(dropped) +
                                        " records of kernels: its buffers were full");
    }
  }
  running_ = false;
}

/// The driver's functions inside the runtime's, and the runtime's inside each other, are no
/// calls of ours.
void CUPTIAPI Watcher::on_call(void* self, CUpti_CallbackDomain /*domain*/, CUpti_CallbackId /*id*/,
                               const void* data) {
  thread_local int depth = 0;
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (call.callbackSite == CUPTI_API_ENTER) {
    static_cast<Watcher*>(self)->enter(call, depth++ == 0);
  } else {
    depth = std::max(0, depth - 1);  // the first exit may be of a call before start()
  }
}

void Watcher::enter(const CUpti_CallbackData& call, bool outermost) {
  const std::scoped_lock lock(mutex_);
  if (outermost) ++calls_[call.functionName];
  if (!sees_kernels() || std::this_thread::get_id() != launcher_) return;
  // A copy is no launch, but is on the device, too.
  if (!keeps_events() && kind_of_call(call.functionName) != CallKind::launch) return;
  const OpObserver* observer = recorder_.op_observer();
  const bool knows_operation = recorder_.traced() && recorder_.lost() == 0;
  launches_[call.correlationId] = {recorder_.phase(), recorder_.component().name,
                                   recorder_.microbatch(),
                                   observer == nullptr ? -1 : observer->number(),
                                   knows_operation ? std::ssize(recorder_.operations()) - 1 : -1};
}

void CUPTIAPI Watcher::on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kRecordAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records = 0;  // as many as fit
}

void CUPTIAPI Watcher::on_complete(CUcontext /*context*/, std::uint32_t /*stream*/,
                                   std::uint8_t* buffer, std::size_t /*size*/,
                                   std::size_t valid_bytes) {
  Watcher* watcher = current;
  CUpti_Activity* record = nullptr;
  while (watcher != nullptr &&
         library().next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL:
        watcher->add(*reinterpret_cast<const KernelRecord*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        watcher->add_copy(*reinterpret_cast<const CopyRecord*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMCPY2:
        watcher->add_copy(*reinterpret_cast<const PeerCopyRecord*>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        watcher->add(*reinterpret_cast<const FillRecord*>(record));
        break;
      default: break;
    }
  }
  std::free(buffer);
}

Watcher::Launch Watcher::launch_of(std::uint32_t correlation) const {
  const auto found = launches_.find(correlation);
  return found == launches_.end() ? Launch() : found->second;
}

/// With the mutex held.
template <class Record>
void Watcher::keep_event(const Record& record, std::uint64_t begin_ns, std::string name,
                         std::int64_t bytes, bool communicates) {
  if (!keeps_events()) return;
  const Launch launch = launch_of(record.correlationId);
  Event& added = events_.emplace_back();
  added.event.name = std::move(name);
  added.event.phase = launch.phase;
  added.event.component = launch.component;
  added.event.microbatch = launch.microbatch;
  added.event.bytes = bytes;
  if (communicates) added.event.operation = launch.operation;
  added.stream = record.streamId;
  added.begin_ns = begin_ns;
  added.end_ns = record.end;
}

/// CUPTI reports copies between devices in two kinds of records: some in the records of all copies.
/// The kind of a copy tells them apart.
template <class Record>
void Watcher::add_copy(const Record& record) {
  if (record.end < record.start) return;  // it has not ended
  const std::scoped_lock lock(mutex_);
  const bool communicates = record.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  if (communicates) spans_.push_back({record.start, record.end, true});
  keep_event(record, record.start, copy_name(record.copyKind),
             static_cast<std::int64_t>(record.bytes), communicates);
}

void Watcher::add(const FillRecord& record) {
  const std::scoped_lock lock(mutex_);
  keep_event(record, record.start, "fill", static_cast<std::int64_t>(record.bytes), false);
}

void Watcher::add(const KernelRecord& record) {
  if (record.end < record.start) return;  // it has not ended
  const std::scoped_lock lock(mutex_);
  const Launch launch = launch_of(record.correlationId);
  const Phase phase = launch.phase;
  const std::string name = record.name == nullptr ? "?" : record.name;
  const auto [entry, is_new] = kernels_.try_emplace({name, phase});
  auto& [time, communicates] = entry->second;
  if (is_new) {
    time.name = readable_kernel(name);
    time.phase = phase;
    communicates = communicates_ != nullptr && communicates_(time.name);
  }
  const std::uint64_t begin = own_time_.begin_ns(record.streamId, record.start, record.end);
  const double seconds = 1e-9 * static_cast<double>(record.end - begin);
  ++time.calls;
  time.seconds += seconds;
  time.call_seconds.push_back(seconds);
  spans_.push_back({begin, record.end, communicates});
  keep_event(record, begin, time.name, 0, communicates);
  if (launch.op < 0) return;
  Profiler::OpKernels& of_op = op_kernels_[launch.op];
  ++of_op.calls;
  of_op.seconds += seconds;
}

std::vector<CallCount> Watcher::calls() const {
  const std::scoped_lock lock(mutex_);
  std::map<std::string, std::int64_t> sums;
  for (const auto& [name, count] : calls_) {
    // The runtime asks for the name of a launched kernel only to report it to our callback.
    if (!std::string_view(name).starts_with("cuKernelGetName")) sums[name] += count;
  }
  std::vector<CallCount> out;
  for (const auto& [name, count] : sums) out.push_back({name, kind_of_call(name), count});
  return out;
}

std::vector<KernelTime> Watcher::kernels() const {
  const std::scoped_lock lock(mutex_);
  std::vector<KernelTime> out;
  for (const auto& [key, row] : kernels_) out.push_back(row.time);
  std::ranges::sort(out, std::greater<>(), &KernelTime::seconds);
  return out;
}

CommunicationTime Watcher::communication() const {
  const std::scoped_lock lock(mutex_);
  return communication_time(spans_);
}

std::map<std::int64_t, Profiler::OpKernels> Watcher::op_kernels() const {
  const std::scoped_lock lock(mutex_);
  return op_kernels_;
}

void Watcher::name_stream(CUstream_st* stream, std::string name) {
  std::uint32_t id = 0;
  check(library().stream_id(nullptr, stream, 0, &id), "cuptiGetStreamIdEx");
  streams_[id] = std::move(name);
}

std::vector<DeviceEvent> Watcher::events() const {
  const std::scoped_lock lock(mutex_);
  std::map<std::uint32_t, std::string> names = streams_;
  for (const Event& each : events_) {
    if (each.event.operation < 0) continue;
    const auto index = static_cast<std::size_t>(each.event.operation);
    names[each.stream] = recorder_.operations().at(index).group;
  }
  std::vector<DeviceEvent> out;
  out.reserve(events_.size());
  for (const Event& each : events_) {
    const double begin = monotonic_seconds(each.begin_ns, stopped_);
    if (begin < started_seconds_ || each.end_ns < each.begin_ns) continue;  // or it is in progress
    DeviceEvent& event = out.emplace_back(each.event);
    const auto named = names.find(each.stream);
    event.stream = named == names.end() ? "stream " + std::to_string(each.stream) : named->second;
    event.begin_seconds = begin;
    event.end_seconds = monotonic_seconds(each.end_ns, stopped_);
  }
  std::ranges::sort(out, {}, &DeviceEvent::begin_seconds);
  return out;
}

}  // namespace

std::string unavailable() { return library().unavailable; }

std::unique_ptr<Profiler::Backend> make_backend(const Recorder& recorder, Profiler::Watch watch,
                                                Profiler::IsCommunication communicates) {
  return std::make_unique<Watcher>(recorder, watch, communicates);
}

}  // namespace hyperslab::cupti
