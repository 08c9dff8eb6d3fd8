// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"

namespace hyperslab::comm {

/// Agreement of the ranks on threads beside those that use MPI. One background thread of every rank
/// calls all_gather(), the same calls in the same order; MPI itself is used by the main thread
/// alone, in progress(), so that MPI_THREAD_FUNNELED is enough. Made by World::background_peers().
class BackgroundPeers final : public Peers {
 public:
  /// Bytes for another rank, or room for its bytes; both sides give the same number.
  struct Parcel {
    int rank = 0;
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  /// The main thread's calls of MPI, which never block.
  class Transport {
   public:
    Transport() = default;
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;
    Transport(Transport&&) = delete;
    Transport& operator=(Transport&&) = delete;
    virtual ~Transport() = default;
    /// Gathers the texts of all ranks.
    virtual void start_gathering(const std::string& text) = 0;
    /// True if the gathering that was started is complete, with the texts in rank order.
    [[nodiscard]] virtual bool advance_gathering(std::vector<std::string>& texts) = 0;
    virtual void start_exchange(std::span<const Parcel> sends,
                                std::span<const Parcel> receives) = 0;
    [[nodiscard]] virtual bool advance_exchange() = 0;
  };

  BackgroundPeers(int rank, int size, std::string host, std::unique_ptr<Transport> transport);
  ~BackgroundPeers() override;
  BackgroundPeers(const BackgroundPeers&) = delete;
  BackgroundPeers& operator=(const BackgroundPeers&) = delete;
  BackgroundPeers(BackgroundPeers&&) = delete;
  BackgroundPeers& operator=(BackgroundPeers&&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] const std::string& host() const override { return host_; }

  /// The background thread: waits until the main threads of all ranks have moved the texts. Throws
  /// Error(internal) after close().
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override;

  /// The background thread: sends and receives parcels, at most one to and one from each rank, and
  /// returns when they are there. Throws as all_gather().
  void exchange(std::span<const Parcel> sends, std::span<const Parcel> receives);

  /// The main thread: moves the messages that the background thread asked for. Never blocks.
  void progress();
  /// The main thread, which will not call progress() any more: all_gather() throws.
  void close();

 private:
  enum class State : std::uint8_t { idle, asked, moving, done };
  void ask_and_wait(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool advance();
  int rank_;
  int size_;
  std::string host_;
  std::unique_ptr<Transport> transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  bool closed_ = false;
  bool exchanges_ = false;  ///< true if parcels were asked for; false: texts
  std::string text_;
  std::vector<std::string> texts_;
  std::span<const Parcel> sends_;
  std::span<const Parcel> receives_;
};

}  // namespace hyperslab::comm
