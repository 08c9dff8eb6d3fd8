// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab {

/// On a GPU, blocks of kernels on the streams that this thread makes from now on start before those
/// that other streams have waiting: for short work beside long work that must not wait for it.
void prefer_streams_of_this_thread() noexcept;

}  // namespace hyperslab
