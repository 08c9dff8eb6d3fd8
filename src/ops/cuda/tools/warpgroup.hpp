// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::ops::cuda {

/// True if kernels of warpgroups (warpgroup.cuh) run: this was built for them, and the GPU in use
/// has compute capability 9.0.
[[nodiscard]] bool has_warpgroups();

}  // namespace hyperslab::ops::cuda
