// SPDX-License-Identifier: Apache-2.0
#include "comm/pmpi_counter.hpp"

#include <mpi.h>

#include <array>

namespace hyperslab::test::pmpi {
namespace {

using Table = std::map<std::string, std::map<std::string, Count>>;

Table& table() {
  static Table counts;
  return counts;
}

std::int64_t members(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  return size;
}

void add(MPI_Comm comm, const char* function, std::int64_t elements, MPI_Datatype type) {
  std::array<char, MPI_MAX_OBJECT_NAME> name{};
  int length = 0;
  PMPI_Comm_get_name(comm, name.data(), &length);
  int bytes = 0;
  if (type != MPI_DATATYPE_NULL) PMPI_Type_size(type, &bytes);
  Count& count = table()[std::string(name.data(), static_cast<std::size_t>(length))][function];
  ++count.calls;
  count.bytes += elements * bytes;
}

comm::Call kind(const std::string& function) {
  static const std::map<std::string, comm::Call> kinds = {
      {"MPI_Allreduce", comm::Call::all_reduce},
      {"MPI_Iallreduce", comm::Call::all_reduce},
      {"MPI_Reduce_scatter_block", comm::Call::reduce_scatter},
      {"MPI_Ireduce_scatter_block", comm::Call::reduce_scatter},
      {"MPI_Ireduce", comm::Call::reduce_scatter},
      {"MPI_Allgather", comm::Call::all_gather},
      {"MPI_Allgatherv", comm::Call::all_gather},
      {"MPI_Iallgather", comm::Call::all_gather},
      {"MPI_Alltoall", comm::Call::all_to_all},
      {"MPI_Ialltoall", comm::Call::all_to_all},
      {"MPI_Bcast", comm::Call::broadcast},
      {"MPI_Ibcast", comm::Call::broadcast},
      {"MPI_Send", comm::Call::send},
      {"MPI_Isend", comm::Call::send},
      {"MPI_Recv", comm::Call::recv},
      {"MPI_Irecv", comm::Call::recv},
      {"MPI_Barrier", comm::Call::barrier},
      {"MPI_Ibarrier", comm::Call::barrier},
  };
  return kinds.at(function);
}

}  // namespace

std::map<std::string, Count> counts(const std::string& communicator) {
  const auto found = table().find(communicator);
  return found == table().end() ? std::map<std::string, Count>{} : found->second;
}

comm::Traffic traffic(const std::string& communicator) {
  comm::Traffic sum;
  for (const auto& [function, count] : counts(communicator)) {
    const auto i = static_cast<std::size_t>(kind(function));
    sum.calls[i] += count.calls;
    sum.bytes[i] += count.bytes;
  }
  return sum;
}

std::vector<std::string> communicators() {
  std::vector<std::string> names;
  for (const auto& entry : table()) names.push_back(entry.first);
  return names;
}

void clear() { table().clear(); }

}  // namespace hyperslab::test::pmpi

using hyperslab::test::pmpi::add;
using hyperslab::test::pmpi::members;

// MPI resolves its functions weakly, so these definitions win and call on by the PMPI names.
extern "C" {

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  add(comm, "MPI_Allreduce", count, type);
  return PMPI_Allreduce(from, to, count, type, op, comm);
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Iallreduce", count, type);
  return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

int MPI_Reduce_scatter_block(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm comm) {
  add(comm, "MPI_Reduce_scatter_block", count * members(comm), type);
  return PMPI_Reduce_scatter_block(from, to, count, type, op, comm);
}

int MPI_Ireduce_scatter_block(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Ireduce_scatter_block", count * members(comm), type);
  return PMPI_Ireduce_scatter_block(from, to, count, type, op, comm, request);
}

int MPI_Ireduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, int root,
                MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Ireduce", count, type);
  return PMPI_Ireduce(from, to, count, type, op, root, comm, request);
}

int MPI_Allgather(const void* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm) {
  add(comm, "MPI_Allgather", to_count * members(comm), to_type);
  return PMPI_Allgather(from, from_count, from_type, to, to_count, to_type, comm);
}

int MPI_Allgatherv(const void* from, int from_count, MPI_Datatype from_type, void* to,
                   const int* to_counts, const int* begins, MPI_Datatype to_type, MPI_Comm comm) {
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < members(comm); ++i) total += to_counts[i];
  add(comm, "MPI_Allgatherv", total, to_type);
  return PMPI_Allgatherv(from, from_count, from_type, to, to_counts, begins, to_type, comm);
}

int MPI_Iallgather(const void* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                   MPI_Datatype to_type, MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Iallgather", to_count * members(comm), to_type);
  return PMPI_Iallgather(from, from_count, from_type, to, to_count, to_type, comm, request);
}

int MPI_Alltoall(const void* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                 MPI_Datatype to_type, MPI_Comm comm) {
  add(comm, "MPI_Alltoall", from_count * members(comm), from_type);
  return PMPI_Alltoall(from, from_count, from_type, to, to_count, to_type, comm);
}

int MPI_Ialltoall(const void* from, int from_count, MPI_Datatype from_type, void* to, int to_count,
                  MPI_Datatype to_type, MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Ialltoall", from_count * members(comm), from_type);
  return PMPI_Ialltoall(from, from_count, from_type, to, to_count, to_type, comm, request);
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  add(comm, "MPI_Bcast", count, type);
  return PMPI_Bcast(buffer, count, type, root, comm);
}

int MPI_Ibcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  add(comm, "MPI_Ibcast", count, type);
  return PMPI_Ibcast(buffer, count, type, root, comm, request);
}

int MPI_Send(const void* buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
  add(comm, "MPI_Send", count, type);
  return PMPI_Send(buffer, count, type, peer, tag, comm);
}

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request) {
  add(comm, "MPI_Isend", count, type);
  return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
}

int MPI_Recv(void* buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
             MPI_Status* status) {
  add(comm, "MPI_Recv", count, type);
  return PMPI_Recv(buffer, count, type, peer, tag, comm, status);
}

int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request* request) {
  add(comm, "MPI_Irecv", count, type);
  return PMPI_Irecv(buffer, count, type, peer, tag, comm, request);
}

int MPI_Barrier(MPI_Comm comm) {
  add(comm, "MPI_Barrier", 0, MPI_DATATYPE_NULL);
  return PMPI_Barrier(comm);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  add(comm, "MPI_Ibarrier", 0, MPI_DATATYPE_NULL);
  return PMPI_Ibarrier(comm, request);
}
}
