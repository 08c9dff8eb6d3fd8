// SPDX-License-Identifier: Apache-2.0
// For builds with CUDA without CUPTI's headers.
#include "hyperslab/core/error.hpp"
#include "profiler_cuda.hpp"

namespace hyperslab::cupti {

std::string unavailable() {
  return "this program was built without the headers of CUPTI; install them (cuda-cupti-dev) and "
         "configure again";
}

std::unique_ptr<Profiler::Backend> make_backend(const Recorder& /*recorder*/,
                                                Profiler::Watch /*watch*/,
                                                Profiler::IsCommunication /*communicates*/) {
  throw Error(ExitCode::device, unavailable());
}

}  // namespace hyperslab::cupti
