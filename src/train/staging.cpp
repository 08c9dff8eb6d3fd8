// SPDX-License-Identifier: Apache-2.0
#include "staging.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::train {
namespace {

using Targets = std::span<const io::SlabTarget>;

Dim elements(Targets targets) {
  Dim sum = 0;
  for (const io::SlabTarget& target : targets) sum += target.data.numel();
  return sum;
}

/// Targets of one tensor stay together, so that no block of a file is read twice.
std::vector<Targets> batches_of(Targets targets, std::size_t bytes) {
  std::vector<Targets> batches;
  std::size_t first = 0;
  for (std::size_t begin = 0; begin < targets.size();) {
    std::size_t end = begin + 1;
    while (end < targets.size() && targets[end].tensor == targets[begin].tensor) ++end;
    const Targets with = targets.subspan(first, end - first);
    if (begin > first && static_cast<std::size_t>(elements(with)) * sizeof(float) > bytes) {
      batches.push_back(targets.subspan(first, begin - first));
      first = begin;
    }
    begin = end;
  }
  if (first < targets.size()) batches.push_back(targets.subspan(first));
  return batches;
}

/// from -> to, in another dtype and perhaps from the host to the device. Returns when it is done.
void copy_cast(Context& ctx, CView from, View to) {
  Context host(Device::cpu);
  if (to.device() == Device::cpu) return ops::cast(host, from, to);
  Tensor converted(Device::cpu, to.dtype(), to.shape());
  ops::cast(host, from, converted.view());
  copy(ctx, converted.view(), to);
  synchronize(ctx);
}

void read_batch(Context& ctx, const io::CheckpointReader& reader, Targets batch, View staging) {
  std::vector<io::SlabTarget> on_host(batch.begin(), batch.end());
  Dim begin = 0;
  for (io::SlabTarget& target : on_host) {
    const Dim size = target.data.numel();
    target.data = staging.slice(begin, size).reshaped(target.part.count);
    begin += size;
  }
  reader.read(on_host);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (is_narrow(batch[i].data.dtype())) {
      copy_cast(ctx, on_host[i].data, batch[i].data);
    } else {
      copy(ctx, on_host[i].data, batch[i].data);
    }
  }
  synchronize(ctx);  // before the next batch takes the buffer
}

/// Targets for the values from which `rows`, from row `first` of a matrix on, are rounded.
std::vector<io::SlabTarget> targets_of(const param::QuantizedWeight& matrix, Dim first, View rows) {
  std::vector<io::SlabTarget> targets;
  for (const auto& [member, part, at] : matrix.members_in(first, rows.shape()[0])) {
    targets.push_back(
        {"model/" + member->name, member->global_shape, part, rows.slice(at, part.count[0])});
  }
  return targets;
}

}  // namespace

bool is_narrow(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

void widen(Context& ctx, std::vector<io::Slab>& slabs) {
  Context host(Device::cpu);
  for (io::Slab& slab : slabs) {
    if (!is_narrow(slab.data.dtype())) continue;
    Tensor narrow(Device::cpu, slab.data.dtype(), slab.part.count);
    copy(ctx, slab.data, narrow.view());
    synchronize(ctx);
    const auto wide = std::make_shared<Tensor>(Device::cpu, DType::f32, slab.part.count);
    ops::cast(host, narrow.view(), wide->view());
    slab.data = wide->view();
    slab.owner = wide;
  }
}

void copy_to_host(Context& ctx, std::vector<io::Slab>& slabs) {
  Dim sum = 0;
  for (const io::Slab& slab : slabs) sum += slab.owner == nullptr ? slab.data.numel() : 0;
  const auto memory = std::make_shared<Tensor>(Device::cpu, DType::f32, Shape{sum});
  Stream& stream = ctx.copy_stream();
  stream.wait(ctx.stream().record());
  Dim offset = 0;
  for (io::Slab& slab : slabs) {
    if (slab.owner != nullptr) continue;  // a copy already
    const View copied = memory->view().slice(offset, slab.data.numel()).reshaped(slab.part.count);
    copy(stream, slab.data, copied);
    offset += slab.data.numel();
    slab.data = copied;
    slab.owner = memory;
  }
  stream.record().wait();
}

void read_staged(Context& ctx, const io::CheckpointReader& reader, Targets targets,
                 std::size_t staging_bytes) {
  reader.check(targets);
  const std::vector<Targets> batches = batches_of(targets, staging_bytes);
  Dim largest = 0;
  for (const Targets& batch : batches) largest = std::max(largest, elements(batch));
  Tensor staging(Device::cpu, DType::f32, {largest});
  for (const Targets& batch : batches) read_batch(ctx, reader, batch, staging.view());
}

namespace {

/// True if the checkpoint holds the matrix quantized itself.
bool holds_codes(const io::CheckpointReader& reader, const param::QuantizedWeight& matrix) {
  return reader.tensors().contains("model/" + matrix.members.front()->name + ".codes");
}

/// The part of an array with `columns` entries for a row of the matrix, or one if it is 0.
io::SlabTarget array_target(const param::Param& member, const std::string& suffix, Dim columns,
                            View rows) {
  const Shape& global = member.global_shape;
  const Hyperslab& part = member.part;
  const auto scaled = [&](Dim element) { return element * columns / global[1]; };
  const std::string name = "model/" + member.name + suffix;
  if (columns == 0) return {name, {global[0]}, {{part.offset[0]}, {part.count[0]}}, rows};
  return {name,
          {global[0], columns},
          {{part.offset[0], scaled(part.offset[1])}, {part.count[0], scaled(part.count[1])}},
          rows};
}

/// Codes and scales of the members, one after the other in host memory. Padding has scales of zero.
struct StoredMatrix {
  explicit StoredMatrix(const param::QuantizedWeight& matrix)
      : codes(Device::cpu, DType::u8, matrix.matrix.codes.shape()),
        scales(Device::cpu, matrix.matrix.scales.dtype(), matrix.matrix.scales.shape()) {
    std::memset(codes.view().raw(), 0, codes.view().bytes());
    std::memset(scales.view().raw(), 0, scales.view().bytes());
    const bool is_int8 = matrix.spec.format == ops::WeightFormat::int8;
    Dim begin = 0;
    for (const param::Param* member : matrix.members) {
      const Dim count = member->part.count[0];
      if (count == 0) continue;  // padding alone
      const Dim K = member->global_shape[1];
      const Dim groups = is_int8 ? 0 : K / matrix.matrix.group;
      targets.push_back(
          array_target(*member, ".codes", is_int8 ? K : K / 2, codes.view().slice(begin, count)));
      targets.push_back(
          array_target(*member, ".scales", groups, scales.view().slice(begin, count)));
      begin += member->stored_rows;
    }
  }
  Tensor codes;
  Tensor scales;
  std::vector<io::SlabTarget> targets;
};

void read_codes(Context& ctx, const io::CheckpointReader& reader,
                const param::QuantizedWeight& matrix) {
  const StoredMatrix stored(matrix);
  reader.read(stored.targets);
  copy(ctx, stored.codes.view(), matrix.matrix.codes);
  copy(ctx, stored.scales.view(), matrix.matrix.scales);
  synchronize(ctx);  // before the host's memory goes
}

/// Some rows at a time, so that a large table takes little memory beside itself. first_dtype: the
/// values are rounded to it before.
void read_and_round(Context& ctx, const io::CheckpointReader& reader,
                    const param::QuantizedWeight& matrix, DType first_dtype) {
  Context host(Device::cpu);
  matrix.for_rounded_rows([&](Dim first, Dim count) {
    const Shape shape = {count, matrix.rounded_shape()[1]};
    Tensor on_host(Device::cpu, DType::f32, shape);
    ops::fill(host, 0, on_host.view());  // padding
    reader.read(targets_of(matrix, first, on_host.view()));
    if (is_narrow(first_dtype)) {
      Tensor narrow(Device::cpu, first_dtype, shape);
      ops::cast(host, on_host.view(), narrow.view());
      ops::cast(host, narrow.view(), on_host.view());
    }
    Tensor values(ctx.device(), DType::f32, shape);
    copy(ctx, on_host.view(), values.view());
    matrix.round(ctx, values.view(), first);
    synchronize(ctx);  // before the values go
  });
}

}  // namespace

void read_quantized(Context& ctx, const io::CheckpointReader& reader,
                    const param::ParamStore& params, DType first) {
  std::vector<io::SlabTarget> rounded;
  for (const param::QuantizedWeight& matrix : params.quantized_weights()) {
    if (!matrix.frozen || holds_codes(reader, matrix)) continue;
    const View none(nullptr, DType::f32, Device::cpu, matrix.rounded_shape());
    for (const io::SlabTarget& target : targets_of(matrix, 0, none)) rounded.push_back(target);
  }
  reader.check(rounded);  // which lists everything that is missing at once
  for (const param::QuantizedWeight& matrix : params.quantized_weights()) {
    if (!matrix.frozen) continue;
    holds_codes(reader, matrix) ? read_codes(ctx, reader, matrix)
                                : read_and_round(ctx, reader, matrix, first);
    matrix.filled(ctx);
  }
}

}  // namespace hyperslab::train
