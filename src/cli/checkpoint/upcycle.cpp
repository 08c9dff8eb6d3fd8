// SPDX-License-Identifier: Apache-2.0
// A dense model becomes a mixture of experts that computes the same (Komatsuzaki et al. 2023,
// "Sparse upcycling"): every expert is a copy, and a token's weights have the sum 1.
#include "upcycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "exchange.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/initial.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::string_view kModelPrefix = "model/";
constexpr std::string_view kMlp = ".mlp.";
constexpr std::string_view kMlpNorm = ".mlp_norm.";  // normalizes its output

struct Upcycling {
  io::CheckpointReader dense;
  train::Config config;  ///< deck of the model with experts
  std::string output;
};

/// Throws unless the model has feed-forward networks that experts can be.
void require_dense(const io::CheckpointReader& reader, const train::Config& config) {
  const model::ModelSpec& spec = config.model;
  train::require_whole_model(reader);
  const char* problem = spec.experts          ? "its layers have experts already"
                        : spec.is_of_images() ? "models of images have no experts"
                        : spec.bias ? "its feed-forward networks have biases (model.bias), and "
                                      "experts have none"
                                    : nullptr;
  if (problem == nullptr) return;
  throw Error(ExitCode::usage, fmt::format("{}: {}", reader.folder(), problem));
}

/// The dense model's deck with experts of its networks' width in all layers, and a run that starts
/// from them.
train::Config config_of(const Arguments& args, const StoredDeck& stored, const train::Config& dense,
                        const std::string& output) {
  train::Config config = dense;
  config.model.experts = nn::ExpertsConfig();
  config.model.experts.width = config.model.ffn_width;
  config.run.name = last_name(output);
  const std::filesystem::path folder = std::filesystem::absolute(output).lexically_normal();
  config.run.directory = (folder / "run").string();
  config.checkpoint.directory.clear();
  config.checkpoint.initial = folder.string();
  config.memory.mlp_rows = 0;                    // refused with experts
  config.run.device = train::DeviceChoice::cpu;  // likewise GPUs
  std::vector<std::string> overrides(kNoFp8.begin(), kNoFp8.end());
  const std::int64_t count = args.get<std::int64_t>("experts");
  overrides.push_back(fmt::format("experts.count={}", count));
  overrides.push_back(fmt::format("experts.active={}", args.has("active")
                                                           ? args.get<std::int64_t>("active")
                                                           : std::min<std::int64_t>(2, count)));
  return as_stored({deck::to_yaml(config), stored.folder, stored.started_in}, overrides);
}

io::CheckpointMeta meta_of(const Upcycling& work) {
  io::CheckpointMeta meta;
  meta.model = model::identity(work.config.model);
  meta.layout = "upcycled from " + work.dense.folder();
  meta.deck = deck::to_yaml(work.config);
  meta.started_in = work.dense.meta().started_in;
  meta.version = version() + " (" + commit() + ")";
  const std::string vocabulary = work.dense.vocabulary_path();
  if (!vocabulary.empty()) meta.vocabulary = io::read_vocabulary_files(vocabulary);
  return meta;
}

/// The names of the tensors that a dense model's tensor becomes.
std::vector<std::string> names_from(const std::string& name, Dim experts) {
  if (const std::size_t norm = name.find(kMlpNorm); norm != std::string::npos) {
    return {name.substr(0, norm) + ".experts_norm." + name.substr(norm + kMlpNorm.size())};
  }
  const std::size_t network = name.find(kMlp);
  if (network == std::string::npos) return {name};
  std::vector<std::string> names;
  for (Dim expert = 0; expert < experts; ++expert) {
    names.push_back(fmt::format("{}.experts.{}.{}", name.substr(0, network), expert,
                                name.substr(network + kMlp.size())));
  }
  return names;
}

/// Adds the tensors that one of the dense model becomes.
void add_copies(const Upcycling& work, const std::string& name, io::CheckpointParts& checkpoint) {
  const Shape& shape = work.dense.tensors().at(name).global_shape;
  Tensor values(Device::cpu, DType::f32, shape);
  const io::SlabTarget target = {name, shape, Hyperslab::whole(shape), values.view()};
  work.dense.read({&target, 1});
  std::vector<io::Slab> slabs;
  for (const std::string& copy : names_from(name, work.config.model.experts.count)) {
    slabs.push_back({copy, shape, Hyperslab::whole(shape), values.view()});
  }
  checkpoint.add(slabs);
}

/// Adds the routers, with the initial values of a model that begins with `seed`.
void add_routers(const model::ModelSpec& spec, std::uint64_t seed,
                 io::CheckpointParts& checkpoint) {
  const Shape shape = {spec.experts.count, spec.width};
  const double factor = spec.parametrization().init_factor(param::Role::router);
  const auto deviation = static_cast<float>(
      factor * static_cast<double>(spec.matrix_init().std_of(spec.width, spec.experts.count)));
  std::vector<Tensor> memory;
  std::vector<io::Slab> slabs;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    const std::string name = fmt::format("blocks.{}.experts.router.weight", layer);
    memory.emplace_back(Device::cpu, DType::f32, shape);
    const View values = memory.back().view();
    fill_normal(values.data<float>(), 0, static_cast<std::uint64_t>(shape.numel()), seed,
                name_hash(name), deviation);
    slabs.push_back({std::string(kModelPrefix) + name, shape, Hyperslab::whole(shape), values});
  }
  checkpoint.add(slabs);
}

void write_experts(const Upcycling& work, std::uint64_t seed) {
  const auto parameters = static_cast<std::uint64_t>(model::parameter_count(work.config.model));
  io::CheckpointParts checkpoint(work.output, meta_of(work), sizeof(float) * parameters);
  for (const auto& [name, entry] : work.dense.tensors()) {
    if (name.starts_with(kModelPrefix)) add_copies(work, name, checkpoint);
  }
  add_routers(work.config.model, seed, checkpoint);
  checkpoint.commit();
}

}  // namespace

void add_upcycle_options(Arguments& args) {
  args.add()("experts", po::value<std::int64_t>(),
             "upcycle: experts of a layer, each a copy of its feed-forward network")(
      "active", po::value<std::int64_t>(), "upcycle: experts that a token passes through (2)")(
      "seed", po::value<std::uint64_t>(),
      "upcycle: of the routers' random weights (default: run.seed of the checkpoint's deck)");
}

void upcycle_checkpoint(comm::World& world, const Arguments& args) {
  const std::string output = output_of(args);
  if (!args.has("experts")) refuse("checkpoint upcycle needs --experts N");
  require_new(output);
  io::CheckpointReader reader = trained_weights(args, only_folder(args));
  const StoredDeck stored = stored_deck(reader);
  const train::Config dense = as_stored(stored);
  require_dense(reader, dense);
  const Upcycling work = {std::move(reader), config_of(args, stored, dense, output), output};
  const ImportLocks locks(output, world.host());
  const auto seed = args.has("seed") ? args.get<std::uint64_t>("seed")
                                     : static_cast<std::uint64_t>(dense.run.seed);
  write_experts(work, seed);
  io::write_text_file(output + "/deck.yaml", deck::to_yaml(work.config));
  const nn::ExpertsConfig& experts = work.config.model.experts;
  const int ranks = work.config.parallel.ranks();
  fmt::print(
      "{0}: step {1} of {2} with {3} experts a layer, of which a token passes {4}: {5} parameters, "
      "{6} before; try: {7}hyperslab train {0}/deck.yaml\n",
      output, work.dense.meta().step, work.dense.folder(), experts.count, experts.active,
      model::parameter_count(work.config.model), model::parameter_count(dense.model),
      ranks > 1 ? fmt::format("mpirun -np {} ", ranks) : "");
}

}  // namespace hyperslab::cli
