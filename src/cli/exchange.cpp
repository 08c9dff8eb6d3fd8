// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <sstream>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/exchange.hpp"

namespace hyperslab::cli {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(ExitCode::usage, text); }

std::string only_folder(const Arguments& args) {
  const std::vector<std::string> folders = args.list("DIR");
  if (folders.size() > 1) refuse("checkpoint: export and import take one folder at a time");
  return folders.front();
}

std::string output_of(const Arguments& args) {
  if (!args.has("output")) refuse("checkpoint: export and import need --output DIR");
  return args.get<std::string>("output");
}

DType dtype_of_name(const std::string& name) {
  if (name == "fp32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  refuse("--dtype must be fp32, bf16 or fp16, found " + name);
}

/// For decks that nothing is trained with here.
deck::Surroundings anywhere() {
  deck::Surroundings surroundings;
  surroundings.ranks = 0;
  surroundings.for_training = false;
  surroundings.has_cuda_device = cuda_device_count() > 0;
  return surroundings;
}

/// The folder's own tokenizer where this program can read it, else nothing.
std::string vocabulary_of(const std::string& folder, Dim model_vocabulary) {
  const auto has = [&](const char* name) { return std::filesystem::exists(folder + name); };
  if (!has("/tokenizer.json") && !has("/vocab.json")) return "";
  try {
    const std::string path = std::filesystem::absolute(folder).string();
    const bool fits = io::open_tokenizer(path)->vocabulary() <= model_vocabulary;
    return fits ? path : "";
  } catch (const Error& error) {
    log::warn(fmt::format("{}; generate will need --vocab", error.what()));
    return "";
  }
}

train::Config config_for(const model::ModelSpec& spec, const std::string& folder) {
  train::Config config;
  config.run.name = "imported";
  config.model = spec;
  config.data.vocabulary = vocabulary_of(folder, spec.vocabulary);
  config.train.global_batch = 1;
  config.train.microbatch = 1;
  // Read again, so that sizes that do not fit each other are refused as in any deck.
  return deck::read_deck(deck::to_yaml(config), folder + "/config.json (as a deck)", {},
                         anywhere());
}

/// The deck must mean the folder's model. What decides no result stays the deck's: dropout,
/// kernels, initial values, and a shorter context where positions have no table.
void require_same_model(const train::Config& config, const model::ModelSpec& spec,
                        const std::string& deck_path) {
  train::Config wanted = config;
  wanted.model = spec;
  wanted.model.family = config.model.family;
  wanted.model.dropout = config.model.dropout;
  wanted.model.attention = config.model.attention;
  wanted.model.init_std = config.model.init_std;
  wanted.model.scale_residual_init = config.model.scale_residual_init;
  if (spec.position == model::Position::rope && config.model.context < spec.context) {
    wanted.model.context = config.model.context;
  }
  if (wanted.model == config.model) return;
  std::istringstream ours(deck::to_yaml(config));
  std::istringstream theirs(deck::to_yaml(wanted));
  std::vector<std::string> differences;
  for (std::string a, b; std::getline(ours, a) && std::getline(theirs, b);) {
    if (a != b) differences.push_back(fmt::format("'{}' must be '{}'", a.substr(2), b.substr(2)));
  }
  refuse(fmt::format("{}: section model is not the model of the folder: {}", deck_path,
                     fmt::join(differences, ", ")));
}

}  // namespace

void add_exchange_options(Arguments& args) {
  args.add()("output", po::value<std::string>(), "export, import: the folder to make")(
      "format", po::value<std::string>()->default_value("huggingface"),
      "export: of the folder; there is only huggingface")(
      "dtype", po::value<std::string>()->default_value("fp32"), "export: fp32, bf16 or fp16")(
      "vocab", po::value<std::string>(),
      "export: folder whose tokenizer files go along (default: data.vocabulary of the deck)")(
      "deck", po::value<std::string>(),
      "import: deck to go on with; its model must be the folder's");
}

void export_checkpoint(const Arguments& args) {
  if (args.get<std::string>("format") != "huggingface") {
    refuse("--format must be huggingface, found " + args.get<std::string>("format"));
  }
  train::ExportOptions options;
  options.output = output_of(args);
  options.dtype = dtype_of_name(args.get<std::string>("dtype"));
  if (args.has("vocab")) options.vocabulary = args.get<std::string>("vocab");
  const io::CheckpointReader reader(only_folder(args));
  const train::Config config =
      deck::read_deck(reader.meta().deck, reader.folder() + " (its deck)", {}, anywhere());
  train::export_huggingface(config, reader, options);
  fmt::print("{}: step {} of {}, {} parameters in {}\n", options.output, reader.meta().step,
             reader.folder(), model::parameter_count(config.model), args.get<std::string>("dtype"));
}

void import_checkpoint(comm::World& world, const Arguments& args) {
  const std::string folder = only_folder(args);
  const std::string output = output_of(args);
  const model::ModelSpec spec = train::huggingface_model(folder);
  train::Config config = config_for(spec, folder);
  if (args.has("deck")) {
    const auto path = args.get<std::string>("deck");
    config = read_config(world, {path, {}, false, true});
    require_same_model(config, spec, path);
  }
  const std::string yaml = deck::to_yaml(config);
  io::CheckpointMeta meta;
  meta.deck = yaml;
  meta.model = model::identity(config.model);
  train::import_huggingface(folder, spec, output, meta);
  io::write_text_file(output + "/deck.yaml", yaml);
  fmt::print(
      "{}: {} parameters; try: hyperslab eval {}/deck.yaml --checkpoint {} --set "
      "data.validation=[TOKENS]\n",
      output, model::parameter_count(spec), output, output);
}

}  // namespace hyperslab::cli
