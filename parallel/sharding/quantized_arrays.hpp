// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::sharding {

/// "blocks.0.attn.q.weight and 2 more"
[[nodiscard]] std::string label_of(const param::QuantizedWeight& weight);

/// Gives the memory of an array, which has the name ".codes", ".scales" or ".block_scales".
using TakeArray = std::function<View(DType, const Shape&, const char*)>;
/// The arrays of a matrix that rests quantized, as `take` gives them, in one order.
[[nodiscard]] ops::QuantizedMatrix quantized_arrays(const param::QuantizedWeight& weight,
                                                    const TakeArray& take);
/// Takes them from an arena.
[[nodiscard]] ops::QuantizedMatrix quantized_arrays(const param::QuantizedWeight& weight,
                                                    Arena& arena);

}  // namespace hyperslab::sharding
