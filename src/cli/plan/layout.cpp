// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <fmt/format.h>

#include "../planned.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/pipeline/diagram.hpp"
#include "hyperslab/pipeline/validate.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

/// The residual stream between two layers, for one microbatch of a rank.
void print_residual_stream(const train::Config& config) {
  const DType dtype = planned_options(config).compute;
  const bool cut = config.parallel.sequence && config.parallel.tensor > 1;
  const Dim rows =
      config.model.context / config.parallel.context / (cut ? config.parallel.tensor : 1);
  const auto bytes = static_cast<double>(config.train.microbatch * rows * config.model.width *
                                         static_cast<Dim>(size_of(dtype)));
  fmt::print("stream        {} x {} x {} {} at each place between two layers: {:.3f} MiB\n",
             config.train.microbatch, rows, config.model.width, name_of(dtype), bytes / 1048576.0);
}

/// "4 3 2 1"; with several chunks "5+4 4+3 ..."
std::string slots_text(const pipeline::Program& program) {
  std::string text;
  for (const std::vector<int>& chunks : program.slots) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}", fmt::join(chunks, "+"));
  }
  return text;
}

}  // namespace

Unit byte_unit(double largest) {
  constexpr double kGiB = 1073741824.0;
  return largest >= kGiB ? Unit{"GiB", kGiB} : Unit{"MiB", 1048576.0};
}
Unit flop_unit(double largest) {
  if (largest >= 1e15) return {"PFLOP", 1e15};
  return largest >= 1e12 ? Unit{"TFLOP", 1e12} : Unit{"GFLOP", 1e9};
}
std::string in(const Unit& unit, double amount) {
  return fmt::format("{:.{}f}", amount / unit.size, unit.size > 1048576.0 ? 3 : 1);
}

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s"); }

void print_documents(const train::Config& config, const plan::DocumentKeys& documents) {
  if (config.data.documents == io::Documents::joined) return;
  if (documents.samples == 0) {
    fmt::print("documents     not known, samples are taken to be of one document: {}\n",
               documents.unknown);
    return;
  }
  const Dim window = config.model.scores.window;
  fmt::print(
      "documents     tokens see {:.1f} % of the keys of samples of one document{}, by {} "
      "samples\n",
      100 * documents.shares.all,
      window > 0
          ? fmt::format(", {:.1f} % in windows of {}", 100 * documents.shares.windowed, window)
          : "",
      documents.samples);
}

void print_layout(const train::Config& config, bool training, const plan::DocumentKeys& documents) {
  fmt::print("layout        {}, {}\n", mesh::describe(config.parallel),
             ranks_text(config.parallel.ranks()));
  fmt::print("device        {}, {}\n", name_of(planned_device(config)),
             name_of(config.precision.compute));
  fmt::print("step          {} samples: {} on each data rank, of {} samples x {} tokens\n",
             config.train.global_batch,
             config.microbatches() == 1 ? "1 microbatch"
                                        : fmt::format("{} microbatches", config.microbatches()),
             config.train.microbatch, config.model.context);
  const auto tokens = static_cast<double>(config.train.global_batch * config.model.context);
  const double flops = (training ? 1.0 : 1.0 / 3.0) * tokens *
                       train::flops_per_token(config, config.model.context, documents.shares);
  const double each = flops / config.parallel.ranks();
  fmt::print("model         {} {} a {} with causal attention, {} {} a rank\n",
             in(flop_unit(flops), flops), flop_unit(flops).name, training ? "step" : "forward pass",
             in(flop_unit(each), each), flop_unit(each).name);
  print_documents(config, documents);
  print_residual_stream(config);
}

void print_schedule(const pipeline::Program& program) {
  const double ideal = pipeline::ideal_idle_fraction(program.schedule, program.stages,
                                                     program.virtual_stages, program.microbatches);
  const double simulated = pipeline::simulate(program, {}).idle_fraction();
  fmt::print("schedule      {}, {} stages x {} chunks, {} microbatches\n",
             name_of(program.schedule), program.stages, program.virtual_stages,
             program.microbatches);
  fmt::print("idle          {:.2f} % of the busy time in theory, {:.2f} % simulated\n", 100 * ideal,
             100 * simulated);
  fmt::print("slots         {} (microbatches that a pipeline rank keeps, per chunk)\n\n",
             slots_text(program));
  fmt::print("{}\n", pipeline::diagram(program));
}

}  // namespace hyperslab::cli
