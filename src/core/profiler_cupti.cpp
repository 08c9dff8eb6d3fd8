// SPDX-License-Identifier: Apache-2.0
// CUPTI by its callbacks (calls of the host) and its activity records (kernels).
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
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
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

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
  std::string unavailable;  ///< why; empty if all is there
};

/// What is tried: the loader's own search (LD_LIBRARY_PATH, the system), then the folder of the
/// toolkit of this build.
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
         find(from, "cuptiActivityGetNumDroppedRecords", to.dropped_records);
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

 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                               const void* data);
  static void CUPTIAPI on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* records);
  static void CUPTIAPI on_complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                   std::size_t size, std::size_t valid_bytes);
  void set_domains(bool on) const;
  void enter(const CUpti_CallbackData& call, bool outermost);
  void add(const KernelRecord& record);

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
    std::int64_t op = -1;
  };
  std::unordered_map<std::uint32_t, Launch> launches_;  // by correlation
  std::map<std::int64_t, Profiler::OpKernels> op_kernels_;
  struct Row {
    KernelTime time;
    bool communicates = false;
  };
  std::map<std::pair<std::string, Phase>, Row> kernels_;  // by name in the record
  std::vector<KernelSpan> spans_;
};

Watcher::Watcher(const Recorder& recorder, Profiler::Watch watch,
                 Profiler::IsCommunication communicates)
    : recorder_(recorder), watch_(watch), communicates_(communicates) {
  Watcher* none = nullptr;
  require(current.compare_exchange_strong(none, this), "two profilers at a time");
  try {
    check(library().subscribe(&subscriber_, &Watcher::on_call, this), "cuptiSubscribe");
    if (watch == Profiler::Watch::calls_and_kernels) {
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
    if (watch_ == Profiler::Watch::calls_and_kernels) {
      (void)library().activity_disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
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
  }
  running_ = true;
  if (watch_ == Profiler::Watch::calls_and_kernels) {
    check(library().activity_enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityEnable");
  }
  set_domains(true);
}

void Watcher::stop() {
  set_domains(false);
  if (watch_ == Profiler::Watch::calls_and_kernels) {
    check(library().flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    check(library().activity_disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
          "cuptiActivityDisable");
    std::size_t dropped = 0;
    check(library().dropped_records(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    if (dropped > 0) {
      throw Error(ExitCode::device, "CUPTI lost " + std::to_string(dropped) +
                                        " records of kernels; measure fewer steps");
    }
  }
  running_ = false;
}

/// The driver's functions inside those of the runtime, and the runtime's inside each other, are no
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
  if (watch_ != Profiler::Watch::calls_and_kernels) return;
  if (std::this_thread::get_id() != launcher_) return;
  if (kind_of_call(call.functionName) == CallKind::launch) {
    const OpObserver* observer = recorder_.op_observer();
    launches_[call.correlationId] = {recorder_.phase(),
                                     observer == nullptr ? -1 : observer->number()};
  }
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
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ||
        record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
      watcher->add(*reinterpret_cast<const KernelRecord*>(record));
    }
  }
  std::free(buffer);
}

void Watcher::add(const KernelRecord& record) {
  const std::scoped_lock lock(mutex_);
  const auto found = launches_.find(record.correlationId);
  const Launch launch = found == launches_.end() ? Launch() : found->second;
  const Phase phase = launch.phase;
  const std::string name = record.name == nullptr ? "?" : record.name;
  const auto [entry, is_new] = kernels_.try_emplace({name, phase});
  auto& [time, communicates] = entry->second;
  if (is_new) {
    time.name = readable_kernel(name);
    time.phase = phase;
    communicates = communicates_ != nullptr && communicates_(time.name);
  }
  const double seconds = 1e-9 * static_cast<double>(record.end - record.start);
  ++time.calls;
  time.seconds += seconds;
  time.call_seconds.push_back(seconds);
  spans_.push_back({record.start, record.end, communicates});
  if (launch.op < 0) return;
  Profiler::OpKernels& of_op = op_kernels_[launch.op];
  ++of_op.calls;
  of_op.seconds += seconds;
}

std::vector<CallCount> Watcher::calls() const {
  const std::scoped_lock lock(mutex_);
  std::map<std::string, std::int64_t> sums;
  for (const auto& [name, count] : calls_) {
    // The runtime asks for the name of a launched kernel only to tell it to our callback.
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

}  // namespace

std::string unavailable() { return library().unavailable; }

std::unique_ptr<Profiler::Backend> make_backend(const Recorder& recorder, Profiler::Watch watch,
                                                Profiler::IsCommunication communicates) {
  return std::make_unique<Watcher>(recorder, watch, communicates);
}

}  // namespace hyperslab::cupti
