// SPDX-License-Identifier: Apache-2.0
// The way between memory of a GPU and checkpoints, which are read and written from the host's.
#pragma once

#include <span>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::train {

/// Puts copies on the host in place of the slabs' data that are not copies yet; the slabs own them
/// together. The copy stream copies after all work enqueued on the compute stream so far; on return
/// the copies are complete.
void copy_to_host(Context& ctx, std::vector<io::Slab>& slabs);

/// Puts f32 copies on the host in place of slabs in 16 bits, as frozen parameters may be; the
/// others stay as they are.
void widen(Context& ctx, std::vector<io::Slab>& slabs);
[[nodiscard]] bool is_narrow(DType dtype);  ///< 16 bits

/// reader.read(targets) for targets on any device and, besides f32, in 16 bits, through one buffer
/// of the host: whole tensors at a time, of together at most `staging_bytes` or else one.
void read_staged(Context& ctx, const io::CheckpointReader& reader,
                 std::span<const io::SlabTarget> targets, std::size_t staging_bytes);

/// Fills the frozen matrices that are stored quantized: from the checkpoint's codes and scales,
/// or rounded from its f32.
void read_quantized(Context& ctx, const io::CheckpointReader& reader,
                    const param::ParamStore& params, DType first);

}  // namespace hyperslab::train
