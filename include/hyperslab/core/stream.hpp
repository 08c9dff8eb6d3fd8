// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "hyperslab/core/device.hpp"

struct CUevent_st;  // with CUstream_st all that public headers know of CUDA
struct CUstream_st;

namespace hyperslab {

struct Operation;
class HostEvent;
class HostQueue;

/// A position in the work of a stream: complete once everything that was enqueued there before it
/// is done. Copies mean the same event, which may outlive its stream. A default event is complete.
class Event {
 public:
  Event() = default;
  /// Blocks the host until the event is complete. Throws the exception of host work that failed
  /// before it on its stream.
  void wait() const;
  /// Never blocks; also true if host work failed.
  [[nodiscard]] bool is_complete() const;

 private:
  friend class Stream;
  explicit Event(std::shared_ptr<HostEvent> host) : host_(std::move(host)) {}
  explicit Event(std::shared_ptr<CUevent_st> cuda) : cuda_(std::move(cuda)) {}
  explicit Event(std::uint64_t link_ticket) : link_ticket_(link_ticket) {}
  std::shared_ptr<HostEvent> host_;
  std::shared_ptr<CUevent_st> cuda_;
  std::uint64_t link_ticket_ = 0;  ///< on `meta`: of the newest transfer before it; 0: none
};

/// The group of transfers between the host and its device in lists of operations.
inline constexpr std::string_view kHostLink = "host link";

/// Who does the work of a stream on the CPU.
enum class HostWork : std::uint8_t {
  by_caller,  ///< it is done when the call that enqueues it returns
  by_thread,  ///< a thread of the stream does it, which starts with the first work
};

/// Work that is done in the order in which it is enqueued. Work of two streams runs beside each
/// other, unless one waits for an event of the other. On CUDA it is a stream of the GPU in use that
/// does not wait for the default stream; on `meta` nothing is done.
class Stream {
 public:
  explicit Stream(Device device, HostWork host_work = HostWork::by_caller);
  /// On the CPU the enqueued work is done first; on CUDA it may go on.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;

  [[nodiscard]] Device device() const { return device_; }
  /// Null on other devices.
  [[nodiscard]] CUstream_st* cuda() const { return cuda_.get(); }

  /// An event of all work enqueued so far. Creates a CUDA event or a host event each time; on
  /// `meta` and if the caller does the work, the event is complete at once.
  [[nodiscard]] Event record();
  /// Makes work that is enqueued here after this call start after the event. The host does not
  /// block, with two exceptions: on a stream whose work the caller does, and if a CUDA stream waits
  /// for an event of the host. A failure before the event is a failure of this stream too.
  void wait(const Event& event);
  /// Enqueues work of the host; streams of the CPU only. After an exception of work that a thread
  /// does, the stream does no further work, and its later events throw that exception.
  void run(std::function<void()> work);
  /// True if run() returns before the work is done.
  [[nodiscard]] bool has_thread() const { return queue_ != nullptr; }

  /// On `meta`: from now on operations enqueued here are added to `list`, which outlives the
  /// stream's use; null: they are forgotten.
  void record_to(std::vector<Operation>* list) { operations_ = list; }
  /// On `meta`: lists a transfer from the host to the device that starts now, on `link`, whose
  /// events from now on are of its end.
  void list_transfer(Stream& link, std::size_t bytes);
  /// On `meta`: until the next call, with `beside`, what is enqueued here stands for work on
  /// another stream, whose waits hold its own events alone.
  void set_beside(bool beside);
  /// Null unless operations are recorded.
  [[nodiscard]] std::vector<Operation>* operations() const { return operations_; }

 private:
  void wait_on_meta(std::uint64_t link_ticket);

  Device device_;
  std::shared_ptr<CUstream_st> cuda_;
  std::unique_ptr<HostQueue> queue_;  ///< null unless a thread does the work
  std::vector<Operation>* operations_ = nullptr;
  // On `meta`:
  std::uint64_t transfers_ = 0;    ///< listed so far
  std::uint64_t link_ticket_ = 0;  ///< newest transfer that its events are after; 0: none
  bool is_beside_ = false;
};

}  // namespace hyperslab
