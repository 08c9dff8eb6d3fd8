// SPDX-License-Identifier: Apache-2.0
#include "warpgroup.hpp"

#include "handles.hpp"

namespace hyperslab::ops::cuda {

bool has_warpgroups() {
#if defined(HYPERSLAB_HAS_WARPGROUPS)
  return compute_capability() == 90;
#else
  return false;
#endif
}

}  // namespace hyperslab::ops::cuda
