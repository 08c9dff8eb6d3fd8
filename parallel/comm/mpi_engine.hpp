// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flight_recorder.hpp"
#include "mpi_types.hpp"

namespace hyperslab::comm {

/// Memory that an operation borrows while it is in progress.
struct Scratch {
  Buffer buffer;
  bool used = false;
};

/// An operation in progress; its address must not change while it has pending requests.
struct Operation {
  const std::string* communicator = nullptr;  ///< its name, for errors
  int pending = 0;                            ///< requests not yet seen complete
  double end_seconds = 0;                     ///< when the last one was
  Scratch* scratch = nullptr;                 ///< holds the result until it is copied to `target`
  View target;
};

/// All open requests of a rank, over all of its communicators, so that waiting for one operation
/// sees the end of every other one. Allocates nothing once it has seen a step's most requests.
class MpiEngine {
 public:
  explicit MpiEngine(
      std::shared_ptr<FlightRecorders> recorders = std::make_shared<FlightRecorders>());

  [[nodiscard]] const MpiTypes& types() const { return types_; }
  /// The flight recorders of the communicators on this engine.
  [[nodiscard]] FlightRecorders& flight_recorders() { return *flight_recorders_; }
  /// Takes over the request. `recv_bytes`: the bytes that a receive must bring, -1 for other calls.
  void add(MPI_Request request, Operation& operation, std::int64_t recv_bytes = -1);
  /// The operation's result goes to scratch memory first and to `target` when it is complete.
  View redirect(Operation& operation, View target);
  /// One MPI_Testsome; never blocks. Throws if an operation failed.
  void progress();
  /// Blocks, with progress, until the operation is complete; gives the core to others in between.
  void finish(const Operation& operation);
  /// Forgets the requests of operations that will be destroyed before their end.
  void drop(std::span<const Operation> operations);

 private:
  struct Pending {
    Operation* operation = nullptr;
    std::int64_t recv_bytes = -1;
  };
  void complete(const Pending& pending, const MPI_Status& status, double now);
  void remove_completed();

  std::shared_ptr<FlightRecorders> flight_recorders_;
  MpiTypes types_;
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;  ///< beside requests_
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
};

}  // namespace hyperslab::comm
