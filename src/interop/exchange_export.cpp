// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "exchange_vit.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "preprocessing.hpp"

namespace hyperslab::interop {
namespace {

namespace fs = std::filesystem;

/// Files of a vocabulary's folder, and their names among transformers' own.
constexpr std::array<std::pair<const char*, const char*>, 10> kTokenizerFiles = {{
    {"tokenizer.json", "tokenizer.json"},
    {"tokenizer_config.json", "tokenizer_config.json"},
    {"vocab.json", "vocab.json"},
    {"merges.txt", "merges.txt"},
    {"gpt2_vocab.json", "vocab.json"},
    {"gpt2_merges.txt", "merges.txt"},
    {"vocab.txt", "vocab.txt"},
    {"special_tokens_map.json", "special_tokens_map.json"},
    {"added_tokens.json", "added_tokens.json"},
    {"chat_template.jinja", "chat_template.jinja"},
}};

constexpr const char* kBytes = "bytes";  // the vocabulary without files
constexpr const char* kEndOfText = "<|endoftext|>";

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The vocabulary that is exported with the model, and the ids that begin and end texts.
struct Vocabulary {
  std::string path;    ///< as given; empty: none
  std::string folder;  ///< the folder of its files; empty: it has none
  SpecialIds ids;
  std::vector<std::int64_t> generation_ends;  ///< eos_token_id of generation_config.json
  std::string bos_text;                       ///< empty: not known
  std::string eos_text;
};

/// Ids that the deck names, else the vocabulary's. GPT-2's <|endoftext|> also begins texts.
SpecialIds special_ids(const model::ModelSpec& spec, const std::vector<std::int64_t>& ends,
                       const std::string& end_text) {
  SpecialIds ids = {spec.bos_token, spec.eos_tokens};
  if (!ids.eos.empty() || ends.empty()) return ids;
  ids.eos = ends;
  if (ids.bos < 0 && end_text == kEndOfText) ids.bos = ends.front();
  return ids;
}

/// The ids that generation_config.json came with; if `eos` has ids that its config.json did not
/// have, also these, which end texts now.
std::vector<std::int64_t> generation_ends(const std::vector<std::int64_t>& eos,
                                          const io::TextEnds& ends) {
  if (ends.of_generation.empty()) return eos;
  std::vector<std::int64_t> all = ends.of_generation;
  if (eos == ends.of_config) return all;
  std::ranges::copy_if(eos, std::back_inserter(all), [&](std::int64_t id) {
    return std::ranges::find(ends.of_generation, id) == ends.of_generation.end();
  });
  return all;
}

Vocabulary find_vocabulary(const model::ModelSpec& model, const ExportOptions& options) {
  const std::string& path = options.vocabulary;
  constexpr Dim kGpt2Vocabulary = 50257;
  Vocabulary found;
  std::vector<std::int64_t> ends;
  if (model.vocabulary == kGpt2Vocabulary) ends.push_back(kGpt2Vocabulary - 1);
  found.ids = special_ids(model, ends, kEndOfText);
  found.generation_ends = found.ids.eos;
  found.path = path;
  if (path.empty()) return found;
  if (path != kBytes) found.folder = is_file(path) ? fs::path(path).parent_path().string() : path;
  std::unique_ptr<io::Tokenizer> tokenizer;
  try {
    tokenizer = io::open_tokenizer(path);
  } catch (const Error& error) {
    log::debug(error.what());  // a tokenizer of another kind may still be copied
    return found;
  }
  io::require_fits_model(*tokenizer, path, model.vocabulary);
  const auto text_of = [&](std::int64_t wide) -> std::string {  // empty for tokens without a name
    const auto id = static_cast<std::int32_t>(wide);
    if (id < 0 || !tokenizer->is_special(id)) return "";
    return path == kBytes ? kEndOfText : tokenizer->decode(id);
  };
  const io::TextEnds of_vocabulary = tokenizer->text_ends();
  ends.assign(of_vocabulary.ids.begin(), of_vocabulary.ids.end());
  found.ids = special_ids(model, ends, text_of(of_vocabulary.separator));
  found.generation_ends = generation_ends(found.ids.eos, of_vocabulary);
  found.bos_text = text_of(found.ids.bos);
  if (!found.ids.eos.empty()) found.eos_text = text_of(found.ids.eos.front());
  return found;
}

std::string tokenizer_config_json(const Vocabulary& vocabulary, bool whole, Dim context) {
  nlohmann::ordered_json config;
  config["tokenizer_class"] = whole ? "PreTrainedTokenizerFast" : "GPT2Tokenizer";
  config["model_max_length"] = context;
  config["clean_up_tokenization_spaces"] = false;
  if (!vocabulary.bos_text.empty()) config["bos_token"] = vocabulary.bos_text;
  if (!vocabulary.eos_text.empty()) config["eos_token"] = vocabulary.eos_text;
  return config.dump(2) + "\n";
}

/// Copies the files that a tokenizer of transformers reads, or writes them.
void add_tokenizer(const Vocabulary& vocabulary, bool asked, Dim context, io::ModelFolder& folder) {
  if (vocabulary.path == kBytes) {
    folder.write_text("tokenizer.json", io::byte_tokenizer_json());
    folder.write_text("tokenizer_config.json", tokenizer_config_json(vocabulary, true, context));
  }
  if (vocabulary.folder.empty()) return;
  std::set<std::string> there;
  for (const auto& [from, to] : kTokenizerFiles) {
    const std::string path = vocabulary.folder + "/" + from;
    if (is_file(path) && there.insert(to).second) folder.copy_file(path, to);
  }
  if (there.empty()) {
    const std::string text = fmt::format(
        "{}: there are no tokenizer files (tokenizer.json, or vocab.json and merges.txt)",
        vocabulary.folder);
    if (asked) throw Error(ExitCode::data, text);
    return log::warn(text + "; the folder is made without them, --vocab names another");
  }
  const bool whole = there.contains("tokenizer.json");
  if (there.contains("tokenizer_config.json") || !(whole || there.contains("vocab.json"))) return;
  folder.write_text("tokenizer_config.json", tokenizer_config_json(vocabulary, whole, context));
}

/// Reads our parameters that `tensor` holds into `out`, one after the other.
void read_ours(const io::CheckpointReader& reader, const ExchangedTensor& tensor, View out) {
  std::vector<io::SlabTarget> targets;
  Dim begin = 0;
  for (const NamedShape& ours : tensor.ours) {
    const View values = out.flat().slice(begin, ours.shape.numel()).reshaped(ours.shape);
    targets.push_back({ours.name, ours.shape, Hyperslab::whole(ours.shape), values});
    begin += ours.shape.numel();
  }
  reader.read(targets);
}

/// Reads our parameters into `out`, interleaved head by head.
void read_interleaved(const io::CheckpointReader& reader, const ExchangedTensor& tensor, View out) {
  Tensor apart(Device::cpu, DType::f32, tensor.shape);
  read_ours(reader, tensor, apart.view());
  const auto parts = static_cast<Dim>(tensor.ours.size());
  reorder_heads(apart.view().data<float>(), tensor.heads, parts,
                tensor.numel() / (tensor.heads * parts), HeadOrder::interleaved, out.data<float>());
}

/// Adds a language model's tokenizer and configurations.
void add_language(const model::ModelSpec& model, const ExportOptions& options,
                  io::ModelFolder& folder) {
  const Vocabulary vocabulary = find_vocabulary(model, options);
  add_tokenizer(vocabulary, options.requires_vocabulary, model.context, folder);
  folder.write_text("config.json", config_json(model, options.dtype, vocabulary.ids));
  folder.write_text("generation_config.json",
                    generation_config_json(vocabulary.ids, vocabulary.generation_ends));
}

void add_images(const model::ModelSpec& model, const ExportOptions& options,
                io::ModelFolder& folder) {
  if (options.library == Library::timm) {
    return folder.write_text("config.json", timm_config_json(model, options.preprocessing));
  }
  folder.write_text("config.json", config_json(model, options.dtype, {}));
  folder.write_text("preprocessor_config.json", preprocessor_json(model, options.preprocessing));
}

}  // namespace

void export_huggingface(const model::ModelSpec& model, const io::CheckpointReader& reader,
                        const ExportOptions& options) {
  require_counterpart(model, options.library);
  const std::vector<ExchangedTensor> tensors = exchanged_tensors(model, options.library);
  std::vector<io::SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const ExchangedTensor& tensor : tensors) specs.push_back({tensor.name, tensor.shape});
  io::ModelFolder folder(options.output);
  if (model.is_of_images()) {
    add_images(model, options, folder);
  } else {
    add_language(model, options, folder);
  }
  const auto fill = [&](std::size_t index, View out) {
    const ExchangedTensor& tensor = tensors[index];
    if (tensor.heads > 1) return read_interleaved(reader, tensor, out);
    if (!tensor.transposed) {
      read_ours(reader, tensor, out);
      for (float& value : out.span<float>()) value = tensor.scale * value - tensor.offset;
      return;
    }
    Tensor rows(Device::cpu, DType::f32, {tensor.shape[1], tensor.shape[0]});
    read_ours(reader, tensor, rows.view());
    transpose(rows.view().data<float>(), tensor.shape[1], tensor.shape[0], out.data<float>());
  };
  folder.write_tensors(specs, options.dtype, fill, options.shard_bytes);
  folder.commit();
  if (const double factor = model.parametrization().logit_factor(); factor != 1) {
    log::info(fmt::format(
        "{}: the final norm holds the factor {:.6g} of logits that follows from "
        "model.mup_base_width; what trains this folder has to find learning rates of its own",
        options.output, factor));
  }
}

}  // namespace hyperslab::interop
