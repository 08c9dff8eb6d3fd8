// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/quantize/quantize.hpp"

#include <algorithm>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/nn/adapter_config.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::quantize {
namespace {

constexpr std::string_view kModel = "model/";
constexpr std::string_view kWeight = ".weight";
constexpr const char* kTokens = "model/embedding.token.weight";
constexpr const char* kHead = "model/head.weight";
constexpr std::size_t kPartBytes = std::size_t{256} << 20;

/// Tensors that wait for being written, with their memory.
class Part {
 public:
  explicit Part(io::CheckpointParts& checkpoint) : checkpoint_(checkpoint) {}
  void add(const std::string& name, Tensor values) {
    const auto memory = std::make_shared<Tensor>(std::move(values));
    const CView view = memory->view();
    slabs_.push_back({name, view.shape(), Hyperslab::whole(view.shape()), view, memory});
    bytes_ += view.bytes();
    if (bytes_ >= kPartBytes) write();
  }
  void write() {
    if (slabs_.empty()) return;
    checkpoint_.add(slabs_);
    slabs_.clear();
    bytes_ = 0;
  }

 private:
  io::CheckpointParts& checkpoint_;
  std::vector<io::Slab> slabs_;
  std::size_t bytes_ = 0;
};

Tensor read(const io::CheckpointReader& reader, const std::string& name) {
  const Shape& shape = reader.tensors().at(name).global_shape;
  Tensor values(Device::cpu, DType::f32, shape);
  const io::SlabTarget target = {name, shape, Hyperslab::whole(shape), values.view()};
  reader.read({&target, 1});
  return values;
}

double sum_of_squares(CView values, CView subtracted = {}) {
  double sum = 0;
  const auto a = values.span<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = subtracted ? a[i] - subtracted.span<float>()[i] : a[i];
    sum += difference * difference;
  }
  return sum;
}

/// A quantized matrix with its memory.
struct Quantized {
  Quantized(const param::QuantizationSpec& spec, const Shape& shape)
      : codes(Device::cpu, DType::u8,
              {shape[0], spec.format == ops::WeightFormat::int8 ? shape[1] : shape[1] / 2}),
        scales(Device::cpu, spec.format == ops::WeightFormat::int8 ? DType::f32 : DType::f16,
               spec.format == ops::WeightFormat::int8
                   ? Shape{shape[0]}
                   : Shape{shape[0], shape[1] / spec.group_of(shape[1])}),
        matrix{spec.format, spec.group_of(shape[1]), shape, codes.view(), scales.view()} {}
  Tensor codes;
  Tensor scales;
  ops::QuantizedMatrix matrix;
};

class Writer {
 public:
  Writer(const io::CheckpointReader& reader, const Rounding& rounding)
      : reader_(reader), rounding_(rounding) {}

  Sizes write(const io::CheckpointMeta& meta, const std::string& output) {
    std::uint64_t bytes = 0;
    for (const auto& [name, entry] : reader_.tensors()) {
      if (name.starts_with(kModel))
        bytes += static_cast<std::uint64_t>(entry.global_shape.numel()) * 4;
    }
    io::CheckpointParts checkpoint(output, meta, bytes);
    Part part(checkpoint);
    for (const auto& [name, entry] : reader_.tensors()) {
      if (!name.starts_with(kModel)) continue;
      sizes_.all_elements += entry.global_shape.numel();
      if (is_matrix(name) || is_rounded_table(name)) {
        add_quantized(part, name);
      } else {
        sizes_.kept_elements += entry.global_shape.numel();
        part.add(name, read(reader_, name));
      }
    }
    part.write();
    checkpoint.commit();
    return sizes_;
  }

 private:
  /// A checkpoint without a head of its own has a tied table.
  [[nodiscard]] bool is_rounded_table(const std::string& name) const {
    const bool tied = !reader_.tensors().contains(kHead);
    if (name == kTokens) return rounding_.embeddings || (tied && rounding_.head);
    return name == kHead && rounding_.head;
  }

  void add_quantized(Part& part, const std::string& name) {
    Tensor values = read(reader_, name);
    const Shape shape = values.view().shape();
    if (rounding_.first != DType::f32) {
      Tensor narrow(Device::cpu, rounding_.first, shape);
      ops::cast(ctx_, values.view(), narrow.view());
      ops::cast(ctx_, narrow.view(), values.view());
    }
    Quantized out(rounding_.spec, shape);
    if (rounding_.calibration == nullptr || !rounding_.calibration->has(name)) {
      ops::quantize(ctx_, values.view(), out.matrix);
    } else {
      Tensor used(Device::cpu, DType::f32, shape);
      ops::cast(ctx_, values.view(), used.view());
      round_compensating(rounding_.calibration->errors_of(name), used.view(), out.matrix);
    }
    const std::uint64_t bytes = out.codes.view().bytes() + out.scales.view().bytes();
    sizes_.few_bytes += bytes;
    if (is_matrix(name)) add_errors(values.view(), out.matrix, bytes);
    part.add(name + ".codes", std::move(out.codes));
    part.add(name + ".scales", std::move(out.scales));
  }

  void add_errors(CView values, const ops::QuantizedMatrix& matrix, std::uint64_t bytes) {
    Tensor widened(Device::cpu, DType::f32, values.shape());
    ops::dequantize(ctx_, ops::as_const(matrix), widened.view());
    sizes_.elements += values.numel();
    sizes_.bytes += bytes;
    sizes_.squared_error += sum_of_squares(values, widened.view());
    sizes_.squared_weights += sum_of_squares(values);
  }

  Context ctx_{Device::cpu};
  const io::CheckpointReader& reader_;
  Rounding rounding_;
  Sizes sizes_;
};

}  // namespace

bool is_matrix(const std::string& tensor) {
  if (!tensor.ends_with(kWeight)) return false;
  const std::string_view layer = std::string_view(tensor).substr(0, tensor.size() - kWeight.size());
  return std::ranges::any_of(
      nn::kAdapterTargets, [&](nn::AdapterTarget target) { return nn::is_target(layer, target); });
}

Sizes write_quantized(const io::CheckpointReader& reader, const io::CheckpointMeta& meta,
                      const Rounding& rounding, const std::string& output) {
  return Writer(reader, rounding).write(meta, output);
}

}  // namespace hyperslab::quantize
