// SPDX-License-Identifier: Apache-2.0
#include "mpi_check.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {
namespace {

bool is_wrong_argument(int error_class) {
  switch (error_class) {
    case MPI_ERR_BUFFER:
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_COMM:
    case MPI_ERR_RANK:
    case MPI_ERR_REQUEST:
    case MPI_ERR_ROOT:
    case MPI_ERR_GROUP:
    case MPI_ERR_OP:
    case MPI_ERR_ARG:
    case MPI_ERR_TRUNCATE: return true;
    default: return false;
  }
}

}  // namespace

void check_mpi(int code, std::string_view call, std::string_view communicator,
               std::source_location where) {
  if (code == MPI_SUCCESS) return;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  const std::string message =
      fmt::format("communicator {}: {} failed: {}", communicator, call.substr(0, call.find('(')),
                  std::string_view(text.data(), static_cast<std::size_t>(length)));
  if (is_wrong_argument(error_class)) throw Error(ExitCode::internal, message, where);
  throw Error(ExitCode::device, message + "; look at the network and at the other ranks' logs",
              where);
}

bool may_free_mpi_handles() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0 && std::uncaught_exceptions() == 0;
}

int rank_in(MPI_Comm comm, std::string_view communicator) {
  int rank = 0;
  HS_MPI(communicator, MPI_Comm_rank(comm, &rank));
  return rank;
}

int size_of_group(MPI_Comm comm, std::string_view communicator) {
  int size = 0;
  HS_MPI(communicator, MPI_Comm_size(comm, &size));
  return size;
}

int leader_of(MPI_Comm comm, std::string_view communicator) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  HS_MPI(communicator, MPI_Comm_group(comm, &group));
  HS_MPI(communicator, MPI_Comm_group(MPI_COMM_WORLD, &world));
  const int first = 0;
  int leader = 0;
  HS_MPI(communicator, MPI_Group_translate_ranks(group, 1, &first, world, &leader));
  HS_MPI(communicator, MPI_Group_free(&group));
  HS_MPI(communicator, MPI_Group_free(&world));
  return leader;
}

}  // namespace hyperslab::comm
