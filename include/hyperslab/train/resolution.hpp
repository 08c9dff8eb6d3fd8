// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::train {

/// A table of positions (first + from^2, C) f32 on the CPU, a grid's patches after `first` other
/// positions, resampled to (first + to^2, C): bicubic, antialiased where the grid shrinks
/// (Keys 1981, a = -0.5; torch.nn.functional.interpolate(mode="bicubic", antialias=True), as timm
/// does it).
[[nodiscard]] Tensor resampled_positions(CView table, Dim first, Dim from, Dim to);

/// If the checkpoint holds the vision transformer of `spec` at another resolution, makes it fit:
/// learned positions are resampled, other parameters do not know the resolution. Returns rows and
/// columns of pixels that the checkpoint is of; 0 if it needs nothing, or is of another model.
Dim fit_resolution(io::CheckpointReader& reader, const model::ModelSpec& spec);

}  // namespace hyperslab::train
