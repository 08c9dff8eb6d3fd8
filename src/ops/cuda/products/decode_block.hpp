// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/decode_block.hpp"

namespace hyperslab::ops::cuda {

/// True if decode_block takes these operands of decode_block_forward.
[[nodiscard]] bool suits_decode_block(const DecodeBlock& block, const DecodeStream& stream);
void decode_block(Context& ctx, const DecodeBlock& block, const DecodeStream& stream);

}  // namespace hyperslab::ops::cuda
