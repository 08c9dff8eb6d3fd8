// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/exchange.hpp"

namespace hyperslab::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTokenizerFiles = {
    "tokenizer.json", "tokenizer_config.json",   "vocab.json",       "merges.txt",
    "vocab.txt",      "special_tokens_map.json", "added_tokens.json"};

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Copies what a tokenizer of transformers reads; false where there is nothing.
bool copy_tokenizer(const std::string& vocabulary, io::ModelFolder& folder) {
  bool any = false;
  for (const char* name : kTokenizerFiles) {
    const std::string path = vocabulary + "/" + name;
    if (!is_file(path)) continue;
    folder.copy_file(path, name);
    any = true;
  }
  if (is_file(vocabulary + "/vocab.json") && !is_file(vocabulary + "/tokenizer_config.json")) {
    folder.write_text("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}\n");
  }
  return any;
}

void add_tokenizer(const Config& config, const ExportOptions& options, io::ModelFolder& folder) {
  const bool asked = !options.vocabulary.empty();
  const std::string& vocabulary = asked ? options.vocabulary : config.data.vocabulary;
  if (vocabulary.empty() || vocabulary == "bytes") return;
  if (copy_tokenizer(vocabulary, folder)) return;
  const std::string text =
      fmt::format("{}: there are no tokenizer files (tokenizer.json, or vocab.json and merges.txt)",
                  vocabulary);
  if (asked) throw Error(ExitCode::data, text);
  log::warn(text + "; the folder is made without them, --vocab names another");
}

/// The id that ends a document, or -1.
std::int64_t end_of_text(const Config& config, const ExportOptions& options) {
  const std::string& vocabulary =
      options.vocabulary.empty() ? config.data.vocabulary : options.vocabulary;
  constexpr Dim kGpt2Vocabulary = 50257;
  std::int64_t id = config.model.vocabulary == kGpt2Vocabulary ? kGpt2Vocabulary - 1 : -1;
  if (!vocabulary.empty()) {
    try {
      id = io::open_tokenizer(vocabulary)->end_of_text();
    } catch (const Error& error) {
      log::debug(error.what());  // a tokenizer of another kind may still be copied
    }
  }
  return id < config.model.vocabulary ? id : -1;
}

/// The tensors of ours that `tensor` holds, one below the other in `out`.
void read_ours(const io::CheckpointReader& reader, const ExchangedTensor& tensor, View out) {
  std::vector<io::SlabTarget> targets;
  Dim begin = 0;
  for (const NamedShape& ours : tensor.ours) {
    const View place = out.flat().slice(begin, ours.shape.numel()).reshaped(ours.shape);
    const Shape origin = ours.shape.rank() == 1 ? Shape{0} : Shape{0, 0};
    targets.push_back({ours.name, ours.shape, origin, ours.shape, place});
    begin += ours.shape.numel();
  }
  reader.read(targets);
}

}  // namespace

void export_huggingface(const Config& config, const io::CheckpointReader& reader,
                        const ExportOptions& options) {
  require_counterpart(config.model);
  const std::vector<ExchangedTensor> tensors = exchanged_tensors(config.model);
  std::vector<io::SafetensorsSpec> specs;
  for (const ExchangedTensor& tensor : tensors) specs.push_back({tensor.name, tensor.shape});
  io::ModelFolder folder(options.output);
  add_tokenizer(config, options, folder);
  const std::int64_t end = end_of_text(config, options);
  folder.write_text("config.json", config_json(config.model, options.dtype, end));
  folder.write_text("generation_config.json", generation_config_json(end));
  const auto fill = [&](std::size_t index, View out) {
    const ExchangedTensor& tensor = tensors[index];
    if (!tensor.transposed) return read_ours(reader, tensor, out);
    Tensor rows(Device::cpu, DType::f32, {tensor.shape[1], tensor.shape[0]});
    read_ours(reader, tensor, rows.view());
    transpose(rows.view().data<float>(), tensor.shape[1], tensor.shape[0], out.data<float>());
  };
  folder.write_tensors(specs, options.dtype, fill, options.shard_bytes);
  folder.commit();
}

}  // namespace hyperslab::train
