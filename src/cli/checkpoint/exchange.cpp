// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>
#include <sstream>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/interop/peft.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/initial.hpp"
#include "peft.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

/// For decks that nothing is trained with here.
deck::Surroundings anywhere() {
  deck::Surroundings surroundings;
  surroundings.ranks = 0;
  surroundings.for_training = false;
  surroundings.has_cuda_device = cuda_device_count() > 0;
  surroundings.unused = {"run.device"};  // nothing is computed
  return surroundings;
}

/// Says why the folder's tokenizer is not used.
void warn_of_tokenizer(const std::string& text) {
  log::warn(text + "; the deck names no data.vocabulary, generate will need --vocab");
}

/// The folder's own tokenizer if this program can read it and the model has its ids, else nothing.
std::string vocabulary_of(const std::string& folder, Dim model_vocabulary) {
  const auto has = [&](const char* name) { return std::filesystem::exists(folder + name); };
  if (!has("/tokenizer.json") && !has("/vocab.json")) {
    warn_of_tokenizer(folder + (has("/tokenizer.model")
                                    ? ": tokenizer.model (SentencePiece's own format) is not "
                                      "read, expected tokenizer.json or vocab.json and merges.txt; "
                                      "transformers writes a tokenizer.json: "
                                      "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
                                    : ": there is no tokenizer.json or vocab.json"));
    return "";
  }
  try {
    std::string path = std::filesystem::absolute(folder).string();
    io::require_fits_model(*io::open_tokenizer(path), path, model_vocabulary);
    return path;
  } catch (const Error& error) {
    warn_of_tokenizer(error.what());
    return "";
  }
}

/// A deck for the import in `output`, with a run directory that no other import has.
train::Config config_for(const model::ModelSpec& spec, const std::string& folder,
                         const std::string& output, const std::vector<std::string>& ignored_keys) {
  train::Config config;
  config.run.name = last_name(output);
  config.run.directory = (std::filesystem::absolute(output) / "run").lexically_normal().string();
  config.model = spec;
  if (spec.is_of_images()) {
    config.augment = interop::image_preprocessing(folder, ignored_keys);
  } else {
    config.data.vocabulary = vocabulary_of(folder, spec.vocabulary);
  }
  config.train.global_batch = 1;
  config.train.microbatch = 1;
  // Read again, so that sizes that do not fit each other are refused as in any deck.
  return deck::read_deck(deck::to_yaml(config), folder + "/config.json (as a deck)", {},
                         anywhere());
}

/// The deck must mean the folder's model. Keys that decide no result stay the deck's: dropout,
/// kernels, initial values, ids for exports, and a shorter context if positions have no table.
void require_same_model(const train::Config& config, const model::ModelSpec& spec,
                        const std::string& deck_path) {
  train::Config expected = config;
  expected.model = spec;
  expected.model.family = config.model.family;
  expected.model.dropout = config.model.dropout;
  expected.model.drop_path = config.model.drop_path;
  expected.model.drop_path_rule = config.model.drop_path_rule;
  expected.model.label_smoothing = config.model.label_smoothing;
  expected.model.attention = config.model.attention;
  expected.model.init = config.model.init;
  expected.model.init_std = config.model.init_std;
  expected.model.position_std = config.model.position_std;
  expected.model.scale_residual_init = config.model.scale_residual_init;
  expected.model.bos_token = config.model.bos_token;
  expected.model.eos_tokens = config.model.eos_tokens;
  expected.model.experts.balance = config.model.experts.balance;
  expected.model.experts.balance_samples = config.model.experts.balance_samples;
  expected.model.experts.balance_weight = config.model.experts.balance_weight;
  expected.model.experts.z_weight = config.model.experts.z_weight;
  if (spec.experts.layers_of(spec.layers) == spec.layers) {  // no layer has another network
    expected.model.ffn_width = config.model.ffn_width;
  }
  if (spec.position == model::Position::rope && config.model.context < spec.context) {
    expected.model.context = config.model.context;
  }
  if (expected.model == config.model) return;
  std::istringstream ours(deck::to_yaml(config));
  std::istringstream theirs(deck::to_yaml(expected));
  std::vector<std::string> differences;
  for (std::string a, b; std::getline(ours, a) && std::getline(theirs, b);) {
    if (a != b) differences.push_back(fmt::format("'{}' must be '{}'", a.substr(2), b.substr(2)));
  }
  refuse(fmt::format("{}: section model is not the model of the folder: {}", deck_path,
                     fmt::join(differences, ", ")));
}

struct Import {
  model::ModelSpec spec;  ///< the model of the folder
  train::Config config;   ///< the user's deck, which must mean the same model, or one made for it
};

Import describe_import(comm::World& world, const Arguments& args, const std::string& folder) {
  interop::ImportOptions options;
  options.ignored_keys = args.list("ignore-config-key");
  if (!args.has("deck")) {
    if (args.has("dropout")) options.dropout = args.get<double>("dropout");
    if (options.dropout && !(*options.dropout >= 0 && *options.dropout < 1)) {
      refuse(fmt::format("--dropout must be at least 0 and below 1, found {}", *options.dropout));
    }
    const model::ModelSpec spec = interop::huggingface_model(folder, options);
    return {spec, config_for(spec, folder, output_of(args), options.ignored_keys)};
  }
  if (args.has("dropout")) refuse("--dropout does not go with --deck, whose model.dropout counts");
  const auto path = args.get<std::string>("deck");
  train::Config config = read_config(world, {path, {}, false, true});
  options.dropout = config.model.dropout;
  const model::ModelSpec spec = interop::huggingface_model(folder, options);
  require_same_model(config, spec, path);
  if (config.model.bos_token < 0) config.model.bos_token = spec.bos_token;
  if (config.model.eos_tokens.empty()) config.model.eos_tokens = spec.eos_tokens;
  return {spec, config};
}

}  // namespace

std::string only_folder(const Arguments& args) {
  const std::vector<std::string> folders = args.list("DIR");
  if (folders.size() > 1)
    refuse(
        "checkpoint: export, import, merge, prune, quantize and upcycle take one folder at a time");
  return folders.front();
}

std::string output_of(const Arguments& args) {
  if (!args.has("output"))
    refuse("checkpoint: export, import, merge, quantize and upcycle need --output DIR");
  return args.get<std::string>("output");
}

void require_new(const std::string& output) {
  std::error_code error;
  const bool is_empty =
      std::filesystem::is_directory(output, error) && std::filesystem::is_empty(output, error);
  if (!std::filesystem::exists(output, error) || is_empty) return;
  throw Error(ExitCode::storage, output + ": it exists already; choose another directory");
}

DType dtype_of_name(const std::string& name) {
  if (name == "fp32") return DType::f32;
  if (name == "bf16") return DType::bf16;
  if (name == "fp16") return DType::f16;
  refuse("--dtype must be fp32, bf16 or fp16, found " + name);
}

std::string last_name(const std::string& path) {
  std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string name = whole.filename().string();
  return name.empty() ? "imported" : name;
}

ImportLocks::ImportLocks(const std::string& output, const std::string& host) {
  const std::filesystem::path run =
      (std::filesystem::absolute(output) / "").lexically_normal().parent_path().parent_path();
  if (last_name(output) == "checkpoints" && std::filesystem::exists(run / "lock")) {
    run_.emplace(run.string(), host, "--output");
  }
  output_.emplace(output, host, "--output");
}

io::CheckpointReader trained_weights(const Arguments& args, const std::string& folder) {
  io::CheckpointReader reader(folder);
  if (args.has("ema")) reader.use_averages();
  return reader;
}

void add_exchange_options(Arguments& args) {
  args.add()("ema",
             "export, merge, quantize, upcycle: take the exponential moving average of the trained "
             "weights "
             "(optimizer.ema_decay)");
  args.add()("output", po::value<std::string>(),
             "export, import, merge, quantize, upcycle: the folder to make")(
      "format", po::value<std::string>()->default_value("huggingface"),
      "export: of the folder: huggingface, or timm for vision transformers")(
      "base", po::value<std::string>(),
      "import, merge: checkpoint of the model that adapters are added to (default of merge: "
      "checkpoint.initial of the deck that the checkpoint holds)")(
      "base-name", po::value<std::string>(),
      "export of adapters: base_model_name_or_path, the folder or name that PEFT finds the base "
      "by (default: null)")("dtype", po::value<std::string>()->default_value("fp32"),
                            "export: fp32, bf16 or fp16")(
      "vocab", po::value<std::string>(),
      "export: folder whose tokenizer files go along (default: the vocabulary that the checkpoint "
      "keeps, else that of its deck)")(
      "deck", po::value<std::string>(),
      "import: deck to go on with; its model must be the folder's")(
      "dropout", po::value<double>(),
      "import: model.dropout in place of the dropouts of config.json, which are refused if one "
      "probability cannot stand for them; they matter only to training")(
      "ignore-config-key", po::value<std::vector<std::string>>()->composing(),
      "import: a key of config.json or preprocessor_config.json that is not known here and decides "
      "nothing that the model computes; may be repeated");
}

void export_checkpoint(const Arguments& args) {
  const auto format = args.get<std::string>("format");
  if (format != "huggingface" && format != "timm") {
    refuse("--format must be huggingface or timm, found " + format);
  }
  const io::CheckpointReader reader = trained_weights(args, only_folder(args));
  if (reader.meta().base_fingerprint) {
    if (format == "timm") refuse("--format timm is of whole models, and these are adapters");
    return export_adapters(args, reader);
  }
  train::require_whole_model(reader);
  if (args.has("base-name")) refuse("--base-name goes with adapters, and this is a whole model");
  interop::ExportOptions options;
  options.output = output_of(args);
  if (format == "timm") options.library = interop::Library::timm;
  options.dtype = dtype_of_name(args.get<std::string>("dtype"));
  if (args.has("vocab")) options.vocabulary = args.get<std::string>("vocab");
  std::vector<std::string> notes;
  const train::Config config = read_stored_deck(stored_deck(reader), {}, 0, notes);
  options.requires_vocabulary = !options.vocabulary.empty();
  if (config.model.is_of_images() && options.requires_vocabulary) {
    refuse("--vocab goes with models of a language, and this is one of images");
  }
  options.preprocessing = config.augment;
  if (!options.requires_vocabulary) options.vocabulary = stored_vocabulary_path(reader, config);
  interop::export_huggingface(config.model, reader, options);
  fmt::print("{}: step {} of {}, {} parameters in {}\n", options.output, reader.meta().step,
             reader.folder(), model::parameter_count(config.model), args.get<std::string>("dtype"));
}

void import_checkpoint(comm::World& world, const Arguments& args) {
  if (args.has("ema"))
    refuse("--ema is of checkpoints, and import takes a folder of weights alone");
  const std::string folder = only_folder(args);
  if (interop::is_peft_folder(folder)) return import_adapters(world, args);
  if (args.has("base")) refuse("--base goes with a folder of adapters (adapter_config.json)");
  const std::string output = output_of(args);
  auto [spec, config] = describe_import(world, args, folder);
  config.checkpoint.initial = std::filesystem::absolute(output).lexically_normal().string();
  const std::string yaml = deck::to_yaml(config);
  io::CheckpointMeta meta;
  meta.deck = yaml;
  meta.started_in = std::filesystem::current_path().string();
  meta.model = model::identity(config.model);
  if (!config.data.vocabulary.empty()) {
    meta.vocabulary = io::read_vocabulary_files(config.data.vocabulary);
  }
  const ImportLocks locks(output, world.host());
  interop::import_huggingface(folder, spec, output, meta);
  io::write_text_file(output + "/deck.yaml", yaml);
  fmt::print(
      "{0}: {1} parameters; try: hyperslab eval {0}/deck.yaml --checkpoint {0} --set "
      "data.validation=[{2}], or train it: hyperslab train {0}/deck.yaml --set "
      "data.train=[{2}] --set train.steps=N\n",
      output, model::parameter_count(spec), spec.is_of_images() ? "IMAGES" : "TOKENS");
}

}  // namespace hyperslab::cli
