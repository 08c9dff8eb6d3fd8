// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hdf5/handles.hpp"

namespace hyperslab::io::hdf5 {

/// Adds a scalar attribute to a file, group or dataset. Throws Error(storage) naming it.
void set_attribute(const Handle& object, const char* name, std::int64_t value);
void set_attribute(const Handle& object, const char* name, const std::string& value);

}  // namespace hyperslab::io::hdf5
