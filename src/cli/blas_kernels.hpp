// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::cli {

/// Starts the program again with OPENBLAS_CORETYPE where OpenBLAS is older than the processor and
/// took kernels without AVX2 for it, which are several times as slow; OpenBLAS reads the variable
/// before main alone. Does nothing if the variable is set. To be called before MPI starts.
void use_kernels_of_processor(char** words);

}  // namespace hyperslab::cli
