// SPDX-License-Identifier: Apache-2.0
// Work that every rank does; if it fails on one, every rank throws the same error.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace hyperslab::comm {

/// The ranks that agree: the part of a world that agreement needs. Tests replace ranks by threads.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  Peers(Peers&&) = delete;
  Peers& operator=(Peers&&) = delete;
  virtual ~Peers() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const std::string& host() const = 0;
  /// The texts of all ranks in rank order, on every rank.
  [[nodiscard]] virtual std::vector<std::string> all_gather(const std::string& text) = 0;
};

/// The reaction to work that fails on any rank.
struct OnFailure {
  std::function<void()> undo = {};  ///< rank 0 runs it before every rank throws; may be absent
  /// The message of the error that every rank throws, from the message of the lowest rank that
  /// failed; absent: that message after its rank and host, if they matter.
  std::function<std::string(int rank, const std::string& message)> message = {};
};

/// Runs `work`, which must not communicate, on every rank, and returns each rank's result, in
/// rank order. If it throws on any, every rank throws the error of the lowest such rank, marked as
/// thrown everywhere. Collective.
[[nodiscard]] std::vector<std::string> agree_and_gather(Peers& peers,
                                                        const std::function<std::string()>& work,
                                                        const OnFailure& on_failure = {});

/// agree for work without a result.
void agree(Peers& peers, const std::function<void()>& work, const OnFailure& on_failure = {});

}  // namespace hyperslab::comm
