// SPDX-License-Identifier: Apache-2.0
#include "mpi_engine.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cstring>
#include <functional>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kUsualRequests = 256;

}  // namespace

MpiEngine::MpiEngine(std::shared_ptr<FlightRecorders> recorders)
    : flight_recorders_(std::move(recorders)) {
  requests_.reserve(kUsualRequests);
  pending_.reserve(kUsualRequests);
  indices_.reserve(kUsualRequests);
  statuses_.reserve(kUsualRequests);
}

void MpiEngine::add(MPI_Request request, Operation& operation, std::int64_t recv_bytes) {
  requests_.push_back(request);
  pending_.push_back({&operation, recv_bytes});
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  ++operation.pending;
}

View MpiEngine::redirect(Operation& operation, View target) {
  Scratch* found = nullptr;
  for (const auto& scratch : scratch_) {
    if (scratch->used || scratch->buffer.bytes() < target.bytes()) continue;
    if (found == nullptr || scratch->buffer.bytes() < found->buffer.bytes()) found = scratch.get();
  }
  if (found == nullptr) {
    scratch_.push_back(std::make_unique<Scratch>(Buffer(Device::cpu, target.bytes())));
    found = scratch_.back().get();
  }
  found->used = true;
  operation.scratch = found;
  operation.target = target;
  return {found->buffer.data(), target.dtype(), target.device(), target.shape()};
}

void MpiEngine::progress() {
  if (requests_.empty()) return;
  int completed = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed,
                                indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome", "world");
  if (completed == 0 || completed == MPI_UNDEFINED) return;
  const double now = now_seconds();
  for (int i = 0; i < completed; ++i) {
    const Pending& pending =
        pending_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    if (code == MPI_ERR_IN_STATUS) {
      check_mpi(status.MPI_ERROR, "MPI_Testsome", *pending.operation->communicator);
    }
    complete(pending, status, now);
  }
  remove_completed();
}

void MpiEngine::complete(const Pending& pending, const MPI_Status& status, double now) {
  Operation& operation = *pending.operation;
  if (pending.recv_bytes >= 0) {
    MPI_Count bytes = 0;
    HS_MPI(*operation.communicator, MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
    if (bytes != pending.recv_bytes) {
      throw Error(
          ExitCode::internal,
          fmt::format("communicator {}: recv: member {} sent {} bytes, expected {}",
                      *operation.communicator, status.MPI_SOURCE, bytes, pending.recv_bytes));
    }
  }
  if (--operation.pending > 0) return;
  operation.end_seconds = now;
  if (operation.scratch == nullptr) return;
  std::memcpy(operation.target.raw(), operation.scratch->buffer.data(), operation.target.bytes());
  operation.scratch->used = false;
  operation.scratch = nullptr;
}

void MpiEngine::remove_completed() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    pending_[kept] = pending_[i];
    ++kept;
  }
  requests_.resize(kept);
  pending_.resize(kept);
}

void MpiEngine::finish(const Operation& operation) {
  progress();
  while (operation.pending > 0) {
    sched_yield();
    progress();
  }
}

void MpiEngine::drop(std::span<const Operation> operations) {
  const std::less<> before;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Operation* operation = pending_[i].operation;
    const bool inside = !before(operation, operations.data()) &&
                        before(operation, operations.data() + operations.size());
    if (inside) requests_[i] = MPI_REQUEST_NULL;
  }
  remove_completed();
}

}  // namespace hyperslab::comm
