// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::interop {
namespace {

constexpr Dim kPartElements = 64 << 20;  // 256 MiB of f32
constexpr std::uint64_t kMostConfigBytes = 16 << 20;
constexpr const char* kHead = "lm_head.weight";

/// Buffers of GPT-2's masks and Llama's angles that older versions saved with the parameters.
bool is_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

/// The name of each tensor in a folder: models that were saved without their head leave out the
/// first word.
std::vector<std::string> find_names(const std::string& folder, const io::SafetensorsReader& reader,
                                    const std::vector<ExchangedTensor>& tensors, bool tied) {
  std::vector<std::string> names;
  std::vector<std::string> missing;
  std::set<std::string> unknown;
  for (const auto& [name, entry] : reader.tensors()) {
    if (!is_buffer(name) && !(tied && name == kHead)) unknown.insert(name);
  }
  for (const ExchangedTensor& tensor : tensors) {
    const std::string bare = tensor.name.substr(tensor.name.find('.') + 1);
    const bool full = reader.tensors().contains(tensor.name) || tensor.name == kHead;
    names.push_back(full ? tensor.name : bare);
    if (!reader.tensors().contains(names.back())) missing.push_back(tensor.name);
    unknown.erase(names.back());
  }
  if (missing.empty() && unknown.empty()) return names;
  const auto some = [](auto& list) {
    const std::vector<std::string> first(list.begin(),
                                         std::next(list.begin(), std::min<long>(5, list.size())));
    return fmt::format("{} ({}{})", list.size(), fmt::join(first, ", "),
                       list.size() > 5 ? ", ..." : "");
  };
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: config.json and tensors do not belong together: missing {}, unknown "
                          "{}",
                          folder, some(missing), some(unknown)));
}

void require_finite(const io::SafetensorsReader& reader, const std::string& name, CView values) {
  const auto all = values.span<float>();
  const auto is_not_finite = [](float value) { return !std::isfinite(value); };
  const auto count = std::ranges::count_if(all, is_not_finite);
  if (count == 0) return;
  const auto first = std::ranges::find_if(all, is_not_finite);
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: tensor {} holds {} of {} values that are not finite, the first ({}) "
                          "at element {}; the model is damaged",
                          reader.tensors().at(name).file, name, count, all.size(), *first,
                          first - all.begin()));
}

/// Tensors of a part of the checkpoint with their memory.
class Part {
 public:
  [[nodiscard]] bool is_full_with(const ExchangedTensor& tensor) const {
    return !memory_.empty() && elements_ + tensor.numel() > kPartElements;
  }
  [[nodiscard]] bool is_empty() const { return memory_.empty(); }
  /// Reads a tensor and splits it into our parameters.
  void read(const io::SafetensorsReader& reader, const std::string& name,
            const ExchangedTensor& tensor);
  /// Writes the parameters and, for each, two moments of zeros.
  void write(io::CheckpointParts& checkpoint) const;

 private:
  struct Param {
    NamedShape named;
    CView data;
  };
  std::vector<Tensor> memory_;
  std::vector<Param> params_;
  Dim elements_ = 0;
};

void Part::read(const io::SafetensorsReader& reader, const std::string& name,
                const ExchangedTensor& tensor) {
  Tensor memory(Device::cpu, DType::f32, tensor.shape);
  reader.read(name, memory.view());
  require_finite(reader, name, memory.view());
  if (tensor.transposed) {
    Tensor rows(Device::cpu, DType::f32, {tensor.shape[1], tensor.shape[0]});
    transpose(memory.view().data<float>(), tensor.shape[0], tensor.shape[1],
              rows.view().data<float>());
    memory = std::move(rows);
  }
  if (tensor.heads > 1) {
    Tensor apart(Device::cpu, DType::f32, tensor.shape);
    const auto parts = static_cast<Dim>(tensor.ours.size());
    reorder_heads(memory.view().data<float>(), tensor.heads, parts,
                  tensor.numel() / (tensor.heads * parts), HeadOrder::apart,
                  apart.view().data<float>());
    memory = std::move(apart);
  }
  for (float& value : memory.view().span<float>()) value += tensor.offset;
  Dim begin = 0;
  for (const NamedShape& ours : tensor.ours) {
    const View values = memory.view().flat().slice(begin, ours.shape.numel());
    params_.push_back({ours, values.reshaped(ours.shape)});
    begin += ours.shape.numel();
  }
  elements_ += tensor.numel();
  memory_.push_back(std::move(memory));
}

void Part::write(io::CheckpointParts& checkpoint) const {
  Dim largest = 0;
  for (const Param& param : params_) largest = std::max(largest, param.data.numel());
  const std::vector<float> zeros(static_cast<std::size_t>(largest), 0.0F);
  std::vector<io::Slab> slabs;
  for (const Param& param : params_) {
    const Shape& shape = param.named.shape;
    const CView cleared(zeros.data(), DType::f32, Device::cpu, shape);
    const std::string name = param.named.name.substr(param.named.name.find('/') + 1);
    slabs.push_back({"model/" + name, shape, Hyperslab::whole(shape), param.data});
    slabs.push_back({"optimizer/exp_avg/" + name, shape, Hyperslab::whole(shape), cleared});
    slabs.push_back({"optimizer/exp_avg_sq/" + name, shape, Hyperslab::whole(shape), cleared});
  }
  checkpoint.add(slabs);
}

/// True if a folder whose config.json ties the head to the token embedding has a head of its own.
/// transformers 5 loads such a model untied.
bool has_another_head(const std::string& folder, const model::ModelSpec& spec) {
  const io::SafetensorsReader reader(folder);
  if (!reader.tensors().contains(kHead)) return false;
  const std::string table = exchanged_tensors(spec).front().name;
  const std::string bare = table.substr(table.find('.') + 1);
  const std::string& name = reader.tensors().contains(table) ? table : bare;
  // Without a table the import says what is missing.
  return reader.tensors().contains(name) && !reader.are_equal(kHead, name);
}

}  // namespace

model::ModelSpec huggingface_model(const std::string& folder, const ImportOptions& options) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  std::string text;
  try {
    text = io::read_text_file(path, kMostConfigBytes);
  } catch (const Error& error) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}; expected a folder that save_pretrained made", error.what()));
  }
  ForeignConfig found = read_foreign_config(text, path, options);
  if (found.spec.tie_embeddings && has_another_head(folder, found.spec)) {
    found.spec.tie_embeddings = false;
    found.warnings.push_back(path +
                             ": tie_word_embeddings is true, but lm_head.weight differs from the "
                             "token embedding: imported untied (model.tie_embeddings: false)");
  }
  for (const std::string& warning : found.warnings) log::warn(warning);
  return found.spec;
}

void import_huggingface(const std::string& folder, const model::ModelSpec& spec,
                        const std::string& directory, io::CheckpointMeta meta) {
  if (!io::list_checkpoints(directory).empty()) {
    throw Error(ExitCode::storage,
                directory + ": there are checkpoints already; choose another directory");
  }
  const io::SafetensorsReader reader(folder);
  const std::vector<ExchangedTensor> tensors = tensors_of_folder(spec, reader);
  const std::vector<std::string> names = find_names(folder, reader, tensors, spec.tie_embeddings);
  meta.layout = "imported from " + folder;
  meta.version = version() + " (" + commit() + ")";
  const auto bytes = 3 * sizeof(float) * static_cast<std::uint64_t>(model::parameter_count(spec));
  io::CheckpointParts checkpoint(directory, meta, bytes);
  Part part;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (part.is_full_with(tensors[i])) {
      part.write(checkpoint);
      part = Part();
    }
    part.read(reader, names[i], tensors[i]);
  }
  if (!part.is_empty()) part.write(checkpoint);
  checkpoint.commit();
}

}  // namespace hyperslab::interop
