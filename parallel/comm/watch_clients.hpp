// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "watch_session.hpp"

namespace hyperslab::comm {

/// The connections that came in at a monitor, of ranks and of strangers. A rank calls all addresses
/// of the monitor at once and keeps the first that proves itself, so it may hold several
/// connections for a moment, and it is lost only when it has none left.
class Clients {
 public:
  /// Handles frames that arrive.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_arrival(int rank) = 0;  ///< it has proven itself
    /// May close the rank's connection by returning false.
    [[nodiscard]] virtual bool on_frame(int rank, const Frame& frame) = 0;
    virtual void on_loss(int rank) = 0;  ///< its last connection closed by itself
  };

  /// `ranks`: of the job. If there are more than kMostStrangers strangers, the oldest connection
  /// is closed, so that ranks, which prove themselves at once, come through.
  explicit Clients(std::size_t ranks) : ranks_(ranks) {}

  void add(Session session);
  /// Reads the bytes that have arrived on all of them.
  void receive(Owner& owner);
  void send(const Frame& frame);
  void send_to(int rank, const Frame& frame);
  void close(int rank);
  void close_strangers();
  [[nodiscard]] bool has(int rank) const;  ///< an open connection of that rank
  [[nodiscard]] std::vector<Session>& sessions() { return sessions_; }
  [[nodiscard]] const std::vector<Session>& sessions() const { return sessions_; }

  static constexpr std::size_t kMostStrangers = 16;

 private:
  void read(Session& session, Owner& owner);

  std::size_t ranks_;
  std::vector<Session> sessions_;
};

}  // namespace hyperslab::comm
