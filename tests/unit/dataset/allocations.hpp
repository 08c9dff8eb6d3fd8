// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::test {

/// Calls of operator new so far, in a program that links allocations.cpp.
[[nodiscard]] long allocations();

}  // namespace hyperslab::test
