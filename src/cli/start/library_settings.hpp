// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::cli {

/// Starts the program again with variables that libraries read before main alone, and which the
/// user has not set: OPENBLAS_CORETYPE where OpenBLAS is older than the processor and took kernels
/// without AVX2 for it, which are several times as slow; GOMP_SPINCOUNT where there are several
/// threads, so that one which waits gives its core to the one that computes. To be called before
/// MPI starts.
void start_again_with_settings(char** words);

}  // namespace hyperslab::cli
