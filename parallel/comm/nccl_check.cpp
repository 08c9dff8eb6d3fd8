// SPDX-License-Identifier: Apache-2.0
#include "nccl_check.hpp"

#include <fmt/format.h>

#include <string>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {
namespace {

std::string_view hint(ncclResult_t code) {
  switch (code) {
    case ncclUnhandledCudaError:
      return "an earlier operation of this GPU may be the cause, or too little of its memory is "
             "free; see the other ranks' logs and NCCL_DEBUG=WARN";
    case ncclSystemError:
      return "look at the space in /dev/shm, at the network and at NCCL_SOCKET_IFNAME; "
             "NCCL_DEBUG=WARN says more";
    case ncclInvalidUsage:
    case ncclInvalidArgument:
      return "NCCL_* variables may differ between ranks or ask for what this machine has not; "
             "NCCL_DEBUG=WARN says more";
    case ncclRemoteError: return "another rank or the network failed first; see its log";
    default: return "NCCL_DEBUG=WARN says more";
  }
}

/// NCCL's last message in one line.
std::string last_message(ncclComm_t nccl) {
  const char* text = ncclGetLastError(nccl);
  std::string line = text == nullptr ? "" : text;
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string_view name_of_call(std::string_view expression) {
  return expression.substr(0, expression.find('('));
}

}  // namespace

void check_nccl(ncclResult_t code, std::string_view call, std::string_view communicator,
                ncclComm_t nccl, std::source_location where) {
  if (code == ncclSuccess) return;
  const std::string last = last_message(nccl);
  throw Error(
      ExitCode::device,
      fmt::format("communicator {}: {} failed: {}{}{}; {}", communicator, name_of_call(call),
                  ncclGetErrorString(code), last.empty() ? "" : ": ", last, hint(code)),
      where);
}

void check_cuda_call(cudaError_t status, std::string_view call, std::string_view communicator,
                     std::source_location where) {
  if (status == cudaSuccess) return;
  check_cuda(status, fmt::format("communicator {}", communicator), name_of_call(call), where);
}

}  // namespace hyperslab::comm
