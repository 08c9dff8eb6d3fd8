// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::ops::cuda {

/// True if kernels of warpgroups (warpgroup.cuh) run: this was built for them, and the GPU in use
/// has compute capability 9.0.
[[nodiscard]] bool has_warpgroups();
/// The capability that rows of kernel tables are asked with: 0 if this was not built for the GPU's
/// warpgroups.
[[nodiscard]] inline int capability_of_kernels() { return has_warpgroups() ? 90 : 0; }

}  // namespace hyperslab::ops::cuda
