// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/param.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::nn {
namespace {

constexpr Dim kPackAlignment = 32;       // elements: 64 bytes in the narrowest dtype
constexpr Dim kBucketGranule = 128 / 4;  // elements of f32 for each rank

Dim round_up(Dim value, Dim unit) { return (value + unit - 1) / unit * unit; }

template <class ViewType>
ViewType joined(const std::vector<Param*>& members, ViewType first) {
  if (!first) return {};
  std::array<Dim, kMaxRank> dims{};
  const Shape& shape = first.shape();
  std::copy(shape.dims().begin(), shape.dims().end(), dims.begin());
  dims[0] = 0;
  for (const Param* member : members) dims[0] += member->count[0];
  return ViewType(first.raw(), first.dtype(), first.device(),
                  Shape(std::span<const Dim>(dims.data(), shape.dims().size())));
}

}  // namespace

CView Pack::value() const { return joined<CView>(members, members.front()->value); }
View Pack::gradient() const { return joined<View>(members, members.front()->gradient); }

void ParamTable::begin_unit() { ++unit_; }

Pack ParamTable::declare(std::span<const ParamSpec> specs) {
  require(unit_ >= 0, "a parameter was declared before the first unit");
  runs_.push_back({params_.size(), specs.size(), unit_});
  Pack pack;
  for (const ParamSpec& spec : specs) {
    Param& param = params_.emplace_back();
    param.name = spec.name;
    param.global_shape = spec.shape;
    param.count = spec.shape;
    const std::array<Dim, kMaxRank> zeros{};
    param.offset = Shape(std::span<const Dim>(zeros.data(), spec.shape.dims().size()));
    param.kind = spec.kind;
    param.init = spec.init;
    param.init_std = spec.init_std;
    param.unit = unit_;
    pack.members.push_back(&param);
  }
  return pack;
}

Param& ParamTable::declare(const ParamSpec& spec) {
  return *declare(std::span<const ParamSpec>(&spec, 1)).members.front();
}

void ParamTable::lay_out(int ranks, std::size_t bucket_bytes, bool separate_first_unit) {
  std::vector<Dim> unit_size(static_cast<std::size_t>(unit_ + 1), 0);
  for (const Run& run : runs_) {
    Dim size = 0;
    for (std::size_t i = 0; i < run.count; ++i) size += params_[run.first + i].numel();
    unit_size[static_cast<std::size_t>(run.unit)] += round_up(size, kPackAlignment);
  }
  // Buckets close in the order in which backward finishes units: last unit first.
  std::vector<Bucket> reversed;
  Dim open_size = 0;
  int last = unit_;
  for (int unit = unit_; unit >= 0; --unit) {
    open_size += unit_size[static_cast<std::size_t>(unit)];
    const bool full = static_cast<std::size_t>(open_size) * 4 >= bucket_bytes;
    if (full || unit == 0 || (unit == 1 && separate_first_unit)) {
      reversed.push_back(
          {unit, last, 0, round_up(open_size, std::max<Dim>(ranks, 1) * kBucketGranule)});
      open_size = 0;
      last = unit - 1;
    }
  }
  buckets_.assign(reversed.rbegin(), reversed.rend());
  flat_size_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.begin = flat_size_;
    bucket.end = flat_size_ += bucket.end;
  }
  auto bucket = buckets_.begin();
  Dim next = 0;
  for (const Run& run : runs_) {
    while (run.unit > bucket->last_unit) next = (++bucket)->begin;
    for (std::size_t i = 0; i < run.count; ++i) {
      params_[run.first + i].flat_begin = next;
      next += params_[run.first + i].numel();
    }
    next = round_up(next, kPackAlignment);
  }
}

void ParamTable::bind(Arena& parameters, Arena* gradients, DType master, DType compute) {
  const bool own_value = compute != master;
  master_ = parameters.take(master, {flat_size_}, "masters");
  value_ = own_value ? parameters.take(compute, {flat_size_}, "values") : master_;
  if (gradients != nullptr) gradient_ = gradients->take(master, {flat_size_}, "gradients");
  for (Param& param : params_) {
    param.master = master_.slice(param.flat_begin, param.numel()).reshaped(param.count);
    param.value = value_.slice(param.flat_begin, param.numel()).reshaped(param.count);
    if (gradient_) {
      param.gradient = gradient_.slice(param.flat_begin, param.numel()).reshaped(param.count);
    }
  }
}

std::vector<Hyperslab> hyperslabs_of_range(const Shape& shape, Dim begin, Dim end) {
  std::vector<Hyperslab> out;
  if (begin >= end) return out;
  if (shape.rank() == 1) return {{{begin}, {end - begin}, begin}};
  require(shape.rank() == 2, "ranges are cut from tensors of one or two dimensions");
  const Dim width = shape[1];
  const auto add = [&](Dim row, Dim column, Dim rows, Dim columns) {
    if (rows > 0 && columns > 0) {
      out.push_back({{row, column}, {rows, columns}, row * width + column});
    }
  };
  const Dim first_row = begin / width;
  const Dim last_row = end / width;  // the row that is cut at the end
  if (first_row == last_row) {
    add(first_row, begin % width, 1, end - begin);
    return out;
  }
  const Dim first_whole = begin % width == 0 ? first_row : first_row + 1;
  if (first_whole > first_row) add(first_row, begin % width, 1, width - begin % width);
  add(first_whole, 0, last_row - first_whole, width);
  add(last_row, 0, 1, end % width);
  return out;
}

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
  const auto master = masters.slice(param.flat_begin, param.numel()).span<T>();
  switch (param.init) {
    case Init::zeros: std::ranges::fill(master, T(0)); break;
    case Init::ones: std::ranges::fill(master, T(1)); break;
    case Init::normal: fill_normal_hyperslab<T>(param, seed, master.data()); break;
  }
}

}  // namespace

void initialize(const ParamTable& table, std::uint64_t seed, View masters) {
  require(masters.device() == Device::cpu, "initial values are made on the CPU");
  std::memset(masters.raw(), 0, masters.bytes());
  for (const Param& param : table.params()) {
    if (masters.dtype() == DType::f64) {
      initialize_param<double>(param, seed, masters);
    } else {
      initialize_param<float>(param, seed, masters);
    }
  }
}

}  // namespace hyperslab::nn
