// SPDX-License-Identifier: Apache-2.0
// Initial values: a function of (seed, name, global element index).
#include <algorithm>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/nn/param.hpp"

namespace hyperslab::nn {
namespace {

/// Normals of a hyperslab: every contiguous run of it is a run of global indices.
template <class T>
void fill_normal_hyperslab(const Param& param, std::uint64_t seed, T* master) {
  const std::uint64_t stream = name_hash(param.name);
  const bool matrix = param.global_shape.rank() == 2;
  const Dim width = matrix ? param.global_shape[1] : param.global_shape[0];
  const Dim rows = matrix ? param.count[0] : 1;
  const Dim columns = param.count.back();
  const bool whole_rows = columns == width;
  const Dim runs = whole_rows ? 1 : rows;
  const Dim length = whole_rows ? rows * columns : columns;
  std::vector<float> normals(static_cast<std::size_t>(length));
  for (Dim run = 0; run < runs; ++run) {
    const Dim row = matrix ? param.offset[0] + run : 0;
    const auto first = static_cast<std::uint64_t>(row * width + param.offset.back());
    fill_normal(normals.data(), first, normals.size(), seed, stream, param.init_std);
    std::copy(normals.begin(), normals.end(), master + run * length);
  }
}

template <class T>
void initialize_param(const Param& param, std::uint64_t seed, View masters) {
  const auto master = masters.span<T>();
  switch (param.init) {
    case Init::zeros: std::ranges::fill(master, T(0)); break;
    case Init::ones: std::ranges::fill(master, T(1)); break;
    case Init::normal: fill_normal_hyperslab<T>(param, seed, master.data()); break;
  }
}

}  // namespace

void initialize(const ParamTable& table, const Bucket& bucket, std::uint64_t seed, View masters) {
  require(masters.device() == Device::cpu, "initial values are made on the CPU");
  std::memset(masters.raw(), 0, masters.bytes());
  for (const Param& param : table.params()) {
    if (param.flat_begin < bucket.begin || param.flat_begin >= bucket.end) continue;
    const View own = masters.slice(param.flat_begin - bucket.begin, param.numel());
    if (masters.dtype() == DType::f64) {
      initialize_param<double>(param, seed, own);
    } else {
      initialize_param<float>(param, seed, own);
    }
  }
}

}  // namespace hyperslab::nn
