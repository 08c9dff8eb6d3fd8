// SPDX-License-Identifier: Apache-2.0
#include "token_scores.hpp"

#include <fmt/format.h>

#include "hyperslab/core/log.hpp"
#include "hyperslab/eval/token_scores.hpp"
#include "hyperslab/io/npy_file.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::cli {
namespace {

[[noreturn]] void refuse_scores(const std::string& why) {
  throw Error(ExitCode::usage, "--log-probabilities " + why).on_all_ranks();
}

std::string file_of(const Arguments& args, const EvalSource& source, const train::Config& config) {
  for (const char* option : {"stride", "words", "predictions", "logits", "json"}) {
    if (args.has(option)) refuse_scores(fmt::format("does not go with --{}", option));
  }
  if (config.model.is_of_images()) refuse_scores("is for text, and the model is of images");
  if (source.checkpoints.size() != 1) {
    refuse_scores(fmt::format("is of one checkpoint, found {}", source.checkpoints.size()));
  }
  const auto files =
      args.has("data") ? args.get<std::vector<std::string>>("data") : std::vector<std::string>();
  if (files.size() != 1)
    refuse_scores("needs --data with the one token file whose tokens are scored");
  return files.front();
}

}  // namespace

void add_token_score_options(Arguments& args) {
  args.add()(
      "log-probabilities", po::value<std::string>(),
      "of one checkpoint and the one token file of --data: write the log-probability of each "
      "of its tokens, in nats, to this .npy, f32 (tokens,), in place of a loss. Documents are "
      "read each alone, as with data.packing; first tokens have 0 (docs/losses.md)");
}

void run_token_scores(comm::World& world, const Arguments& args, const EvalSource& source) {
  const EvalGroup group = eval_groups(world, source).front();
  const std::string file = file_of(args, source, group.deck.config);
  const comm::Watchdog watchdog = train::watch(world, group.deck.config);
  train::report_threads(world);
  const eval::TokenScores scores =
      eval::token_scores(world, group.deck, file, source.checkpoints.front());
  const auto output = args.get<std::string>("log-probabilities");
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    io::NpyFile npy(output, std::ssize(scores.values));
    npy.append(scores.values);
    npy.finish();
    if (scores.cut > 0) {
      log::warn(
          fmt::format("{} of {} documents are longer than model.context {}: their later pieces "
                      "are read without the earlier ones",
                      scores.cut, scores.documents, group.deck.config.model.context));
    }
    fmt::print("{}: log-probabilities of {} tokens in {} documents at step {}\n", output,
               scores.values.size(), scores.documents, scores.step);
  });
}

}  // namespace hyperslab::cli
