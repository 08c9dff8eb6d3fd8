// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::ops {

/// Makes OpenBLAS take its memory for products on `threads` threads now, if address space is
/// limited (RLIMIT_AS). Later, when the arenas have the rest, it would wait for it without end.
/// Throws Error(device) if that much is not left.
void reserve_gemm_buffers(int threads);

}  // namespace hyperslab::ops
