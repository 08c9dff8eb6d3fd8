// SPDX-License-Identifier: Apache-2.0
#include "quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "exchange.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/quantize/quantize.hpp"
#include "hyperslab/train/initial.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

/// The section `quantization` that the command line asks for, as overrides of the stored deck; keys
/// not given are the deck's.
std::vector<std::string> overrides_of(const Arguments& args) {
  // One rank: the training layout says nothing about the checkpoint. Quantized weights have
  // products of their own instead of the products in 8-bit floats.
  std::vector<std::string> overrides = plain_layout(1, 1, 1);
  std::ranges::copy(kNoFp8, std::back_inserter(overrides));
  for (const char* key : {"weights", "group", "activations"}) {
    if (!args.has(key)) continue;
    overrides.push_back(fmt::format("quantization.{}={}", key, args.get<std::string>(key)));
  }
  for (const char* key : {"embeddings", "head"}) {
    if (args.has(key)) overrides.push_back(fmt::format("quantization.{}=true", key));
  }
  return overrides;
}

void require_usable(const io::CheckpointReader& reader) {
  if (io::is_quantized(reader)) {
    throw Error(ExitCode::checkpoint,
                reader.folder() +
                    ": its matrices are quantized already; quantize the checkpoint that it was "
                    "made of");
  }
  train::require_whole_model(reader);
}

io::CheckpointMeta meta_of(const io::CheckpointReader& reader, train::Config config) {
  io::CheckpointMeta meta = reader.meta();
  config.checkpoint.initial.clear();
  config.quantization.after = 0;
  meta.layout = "quantized from " + reader.folder();
  meta.deck = deck::to_yaml(config);
  meta.version = version() + " (" + commit() + ")";
  meta.algorithms.clear();
  meta.adam_step = 0;
  const std::string vocabulary = reader.vocabulary_path();
  if (!vocabulary.empty()) meta.vocabulary = io::read_vocabulary_files(vocabulary);
  return meta;
}

/// --set, which takes keys of section data alone: the texts of --calibrate.
std::vector<std::string> data_overrides(const Arguments& args) {
  std::vector<std::string> overrides = args.list("set");
  if (!overrides.empty() && !args.has("calibrate")) {
    refuse("--set of checkpoint quantize says what --calibrate reads, which is not given");
  }
  for (const std::string& override : overrides) {
    if (override.starts_with("data.")) continue;
    refuse(
        fmt::format("--set of checkpoint quantize takes keys of section data, found {}", override));
  }
  return overrides;
}

/// The model as it was trained, for calibration here.
train::Config calibration_config(const StoredDeck& stored,
                                 const std::vector<std::string>& of_data) {
  std::vector<std::string> notes;
  std::vector<std::string> overrides = {"quantization.weights=none",
                                        "quantization.activations=none",
                                        "quantization.embeddings=false", "quantization.head=false"};
  std::ranges::copy(kNoFp8, std::back_inserter(overrides));
  std::ranges::copy(of_data, std::back_inserter(overrides));
  train::Config config = read_stored_deck(stored, overrides, 0, notes, true);
  config.parallel = mesh::ParallelConfig();  // one rank sees all
  config.train.microbatch = 1;               // a rest would be filled with tokens that are none
  for (const std::string& note : notes) log::info(note);
  config.data.validation.clear();
  if (config.model.is_of_images()) {
    refuse("--calibrate reads text, and the checkpoint is of a vision transformer; leave it out");
  }
  if (config.data.train.empty()) {
    refuse(
        "--calibrate reads training texts, and the checkpoint's deck names none, as that of an "
        "imported model; add --set data.train=[FILE]");
  }
  const bool are_given = std::ranges::any_of(
      of_data, [](const std::string& one) { return one.starts_with("data.train="); });
  if (!are_given) {
    find_paths("data.train", config.data.train, stored, config,
               "start the command there, or add --set data.train=[FILE]");
  }
  return config;
}

/// "the blocks' matrices and the head".
std::string rounded_text(const train::Config& config) {
  const auto& [embeddings, head] = train::rounded_tables(config);
  if (embeddings && head) return "the blocks' matrices, embeddings and head";
  return embeddings ? "the blocks' matrices and embeddings"
         : head     ? "the blocks' matrices and the head"
                    : "the blocks' matrices";
}

void print(const std::string& output, const io::CheckpointReader& reader,
           const train::Config& config, const quantize::Sizes& sizes) {
  const auto elements = static_cast<double>(sizes.elements);
  fmt::print(
      "{}: step {} of {} with the blocks' matrices in {}: {:.4f} bytes an element, {:.3f} of bf16; "
      "relative error of the weights {:.5f}\n",
      output, reader.meta().step, reader.folder(), name_of(config.quantization.spec().format),
      static_cast<double>(sizes.bytes) / elements,
      static_cast<double>(sizes.bytes) / (2 * elements),
      std::sqrt(sizes.squared_error / sizes.squared_weights));
  const std::uint64_t bytes = sizes.few_bytes + 2 * static_cast<std::uint64_t>(sizes.kept_elements);
  fmt::print(
      "{}: {} quantized; all parameters take {} bytes with the others in bf16, {:.3f} of "
      "bf16\n",
      output, rounded_text(config), bytes,
      static_cast<double>(bytes) / (2 * static_cast<double>(sizes.all_elements)));
}

}  // namespace

void add_quantize_options(Arguments& args) {
  args.add()("weights", po::value<std::string>(),
             "quantize: int8 (a scale a row) or int4 (a scale a group) for the blocks' matrices; "
             "norms and biases stay (default: the deck's quantization.weights)")(
      "group", po::value<std::string>(), "quantize: columns that share a scale, with int4 (64)")(
      "activations", po::value<std::string>(),
      "quantize: none, or dynamic-int8 to round the inputs of products, too, with int8")(
      "embeddings", "quantize: round the table of tokens, too; a tied one is also the head")(
      "head", "quantize: round the head, too; a tied one is also the table of tokens")(
      "calibrate", po::value<std::int64_t>(),
      "quantize: so many samples of the deck's training data say which errors matter (GPTQ); "
      "default: every weight is rounded to the nearest")(
      "set", po::value<std::vector<std::string>>()->composing(),
      "quantize with --calibrate: override a key of the checkpoint's deck in section data, such as "
      "data.train=[FILE], as often as needed");
}

void quantize_checkpoint(comm::World& world, const Arguments& args) {
  const std::string output = output_of(args);
  require_new(output);
  const io::CheckpointReader reader = trained_weights(args, only_folder(args));
  require_usable(reader);
  const StoredDeck stored = stored_deck(reader);
  const train::Config was = as_stored(stored);
  const train::Config config = as_stored(stored, overrides_of(args));
  if (!config.quantization) refuse("checkpoint quantize needs --weights int8 or int4");
  const std::vector<std::string> of_data = data_overrides(args);
  std::optional<quantize::Calibration> calibration;
  if (args.has("calibrate")) {
    const auto samples = args.get<std::int64_t>("calibrate");
    if (samples < 1) refuse("--calibrate must be 1 or more");
    const train::Config model = calibration_config(stored, of_data);
    calibration.emplace(world, model, reader, samples, legal_changes(model));
    log::info(fmt::format("calibrated with {} tokens", calibration->tokens()));
    if (calibration->unseen() > 0) {
      log::warn(fmt::format(
          "{} matrices of experts are rounded to the nearest, as none of these tokens took the "
          "expert; give --calibrate more samples",
          calibration->unseen()));
    }
  }
  // Operands of the run's products have the compute dtype, with and without fake quantization.
  const quantize::Rounding rounding = {.spec = config.quantization.spec(),
                                       .embeddings = config.quantization.embeddings,
                                       .head = config.quantization.head,
                                       .first = storage_of(was.precision.compute),
                                       .calibration = calibration ? &*calibration : nullptr};
  const quantize::Sizes sizes =
      quantize::write_quantized(reader, meta_of(reader, config), rounding, output);
  print(output, reader, config, sizes);
}

}  // namespace hyperslab::cli
