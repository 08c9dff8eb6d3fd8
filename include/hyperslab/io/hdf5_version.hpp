// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab::io {

/// Version of the library that is loaded, such as "HDF5 1.10.8".
[[nodiscard]] std::string hdf5_version();

}  // namespace hyperslab::io
