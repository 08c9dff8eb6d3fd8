// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hyperslab {

/// For the life of the object this thread is in a call on a file or folder, such as "writing" of
/// "run/metrics.jsonl", so that another thread can say what hangs. `what` must outlive it.
class StorageCall {
 public:
  StorageCall(const char* what, const std::string& path) noexcept;
  ~StorageCall();
  StorageCall(const StorageCall&) = delete;
  StorageCall& operator=(const StorageCall&) = delete;
  StorageCall(StorageCall&&) = delete;
  StorageCall& operator=(StorageCall&&) = delete;

 private:
  std::size_t slot_;
};

/// "writing run/metrics.jsonl for 12 s": of this process's calls in progress the one that began
/// first; empty if there is none. A long path keeps its end.
[[nodiscard]] std::string oldest_storage_call();

/// For the life of the object this rank waits for the files that all ranks' threads write, so
/// that another thread can say that it is not stuck itself. One at a time.
class StorageWait {
 public:
  StorageWait() noexcept;
  ~StorageWait();
  StorageWait(const StorageWait&) = delete;
  StorageWait& operator=(const StorageWait&) = delete;
  StorageWait(StorageWait&&) = delete;
  StorageWait& operator=(StorageWait&&) = delete;
};
[[nodiscard]] bool waits_for_storage() noexcept;

/// Calls of this process that have ended and took half a second or longer: each is progress.
[[nodiscard]] std::uint64_t slow_storage_calls() noexcept;

}  // namespace hyperslab
