// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <source_location>
#include <string_view>

namespace hyperslab::comm {

/// Throws Error(device) if `code` is not ncclSuccess: the communicator, the call, NCCL's texts and
/// the places to look at. `nccl` may be null.
void check_nccl(ncclResult_t code, std::string_view call, std::string_view communicator,
                ncclComm_t nccl, std::source_location where = std::source_location::current());

/// The check_cuda of core for a call that a communicator makes.
void check_cuda_call(cudaError_t status, std::string_view call, std::string_view communicator,
                     std::source_location where = std::source_location::current());

}  // namespace hyperslab::comm

/// HS_NCCL(name, nccl, ncclAllReduce(...)): the call, checked.
#define HS_NCCL(communicator, nccl, expression) \
  ::hyperslab::comm::check_nccl((expression), #expression, (communicator), (nccl))
/// HS_COMM_CUDA(name, cudaEventRecord(...)): the call, checked.
#define HS_COMM_CUDA(communicator, expression) \
  ::hyperslab::comm::check_cuda_call((expression), #expression, (communicator))
