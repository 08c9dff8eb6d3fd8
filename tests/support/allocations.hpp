// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::test {

/// Calls so far of operator new (objects and containers) and of aligned_alloc (buffers), in a
/// program that links hyperslab_test_allocations. Plain malloc is not counted: OpenBLAS and MPI
/// take and return memory of their own.
[[nodiscard]] long allocations();

}  // namespace hyperslab::test
