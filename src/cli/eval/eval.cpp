// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "../command.hpp"
#include "../storage_json.hpp"
#include "comparison.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/train/setup.hpp"
#include "source.hpp"
#include "tasks.hpp"
#include "token_scores.hpp"

namespace hyperslab::cli {
namespace {

/// The printed figures of the text; not-a-number or infinite if there is none.
struct TextFigures {
  double bits_per_byte = std::numeric_limits<double>::quiet_NaN();
  double word_perplexity = std::numeric_limits<double>::quiet_NaN();
};

TextFigures text_figures(const train::Evaluation& evaluation,
                         const std::optional<train::TextAmount>& text) {
  if (!text) return {};
  return {evaluation.bits_per_byte(*text), evaluation.word_perplexity(*text)};
}

/// The figures that have a meaning for text alone.
void add_text(nlohmann::ordered_json& line, const train::Evaluation& evaluation,
              const std::optional<train::TextAmount>& text, bool words) {
  const TextFigures figures = text_figures(evaluation, text);
  line["perplexity"] = evaluation.perplexity();
  line["bits_per_byte"] = figures.bits_per_byte;  // null if it is no number
  if (words) line["word_perplexity"] = figures.word_perplexity;
  line["token_accuracy"] = evaluation.accuracy();
}

nlohmann::ordered_json to_json(const eval::Result& result, std::int64_t stride,
                               const std::optional<train::TextAmount>& text, bool words) {
  const train::Evaluation& evaluation = result.evaluation;
  nlohmann::ordered_json line;
  line["checkpoint"] = result.checkpoint;
  line["step"] = result.step;
  line["loss"] = evaluation.loss();
  add_text(line, evaluation, text, words);
  line["tokens"] = evaluation.tokens;
  line["loss_sum"] = evaluation.loss_sum;
  if (evaluation.weights != evaluation.tokens) line["weights"] = evaluation.weights;
  line["stride"] = stride;
  line["seconds"] = result.seconds;
  line["tokens_per_second"] = evaluation.tokens / result.seconds;
  if (text) line["bytes"] = text->bytes;
  if (text && words) line["words"] = text->words;
  if (text && words) line["line_ends"] = text->line_ends;
  return line;
}

nlohmann::ordered_json images_json(const eval::Result& result) {
  const train::Evaluation& evaluation = result.evaluation;
  return {{"checkpoint", result.checkpoint},
          {"step", result.step},
          {"loss", evaluation.loss()},
          {"top1", evaluation.accuracy()},
          {"top5", evaluation.accuracy5()},
          {"images", evaluation.tokens},
          {"loss_sum", evaluation.loss_sum},
          {"seconds", result.seconds},
          {"images_per_second", evaluation.tokens / result.seconds}};
}

std::string number_or_dash(double value) {
  return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-";
}

void print_row(const eval::Result& result, const std::optional<train::TextAmount>& text,
               bool words) {
  const train::Evaluation& evaluation = result.evaluation;
  const TextFigures figures = text_figures(evaluation, text);
  fmt::print("{:>8} {:>10.6f} {:>12.4f} {:>10} ", result.step, evaluation.loss(),
             evaluation.perplexity(), number_or_dash(figures.bits_per_byte));
  if (words) fmt::print("{:>15} ", number_or_dash(figures.word_perplexity));
  fmt::print("{:>13.2f} % {:>12.0f}  {}\n", 100.0 * evaluation.accuracy(), evaluation.tokens,
             result.checkpoint);
}

void print_header(bool words) {
  fmt::print("{:>8} {:>10} {:>12} {:>10} ", "step", "loss", "perplexity", "bits/byte");
  if (words) fmt::print("{:>15} ", "word perplexity");
  fmt::print("{:>15} {:>12}  {}\n", "token accuracy", "tokens", "checkpoint");
}

void print_images(const eval::Result& result, bool with_header) {
  const train::Evaluation& evaluation = result.evaluation;
  if (with_header) {
    fmt::print("{:>8} {:>10} {:>9} {:>9} {:>10}  {}\n", "step", "loss", "top-1", "top-5", "images",
               "checkpoint");
  }
  fmt::print("{:>8} {:>10.6f} {:>7.2f} % {:>7.2f} % {:>10.0f}  {}\n", result.step,
             evaluation.loss(), 100.0 * evaluation.accuracy(), 100.0 * evaluation.accuracy5(),
             evaluation.tokens, result.checkpoint);
}

void add_eval_options(Arguments& args) {
  add_deck_options(args);
  args.add()(
      "checkpoint", po::value<std::vector<std::string>>()->multitoken()->composing()->required(),
      "a step's folder, a directory of them, or a run directory, of which the newest step "
      "is taken; "
      "several make a table, which sets models that are stored differently beside the first: "
      "loss, perplexity, bytes, rate")(
      "data", po::value<std::vector<std::string>>()->multitoken()->composing(),
      "token files, or images, to measure on, instead of the deck's")(
      "stride", po::value<std::int64_t>(),
      "windows of model.context tokens begin so many tokens apart (1 to model.context), and each "
      "counts only the targets that none before it has: every target once, predicted from at least "
      "context - stride + 1 tokens (fewer only at the beginning), to the end of the text; costs "
      "context / stride times the work. Without it windows follow each other as in training, and a "
      "rest that fills none is left out")(
      "words",
      "also print the perplexity per word, exp(sum of losses / (words + line ends)): words are "
      "runs of bytes other than white space (ASCII) in the text of the evaluated tokens, and each "
      "line end is one, as <eos> is for WikiText; needs data.vocabulary")(
      "predictions", po::value<std::string>(),
      "of images and one checkpoint: also write index, name, label, prediction and whether it is "
      "correct of every image that counts to this CSV file")(
      "logits", po::value<std::string>(),
      "of images and one checkpoint: also write the logits (images, classes) to this .npy, f32")(
      "json", po::value<std::string>(), "also write the figures to this file");
  args.add()("ema", "measure the exponential moving average of the weights (optimizer.ema_decay)");
  add_task_options(args);
  add_token_score_options(args);
  args.optional_positional("DECK");
}

/// --stride, or 0 if it is not given; also refuses --words without a vocabulary.
std::int64_t check_options(const Arguments& args, const train::Config& config) {
  if (args.has("words") && config.data.token_weights) {
    throw Error(
        ExitCode::usage,
        "--words does not go with data.token_weights: a weighted loss is of no words; set it "
        "to false")
        .on_all_ranks();
  }
  if (args.has("words") && config.data.vocabulary.empty()) {
    throw Error(ExitCode::usage,
                "--words needs the text of the tokens: set data.vocabulary to the vocabulary that "
                "made the token files (a folder, or bytes)")
        .on_all_ranks();
  }
  if (!args.has("stride")) return 0;
  const auto stride = args.get<std::int64_t>("stride");
  if (stride < 1 || stride > config.model.context) {
    throw Error(ExitCode::usage, fmt::format("--stride must be 1 to {} (model.context), found {}",
                                             config.model.context, stride))
        .on_all_ranks();
  }
  return stride;
}

/// The outputs of --predictions and --logits; absent if neither is given.
std::optional<eval::Predictions> predictions_of(const Arguments& args, const EvalSource& source,
                                                const train::Config& config) {
  if (!args.has("predictions") && !args.has("logits")) return {};
  if (!config.model.is_of_images()) {
    throw Error(ExitCode::usage,
                "--predictions and --logits are for images; of text, hyperslab generate --logits "
                "writes the logits of a prompt")
        .on_all_ranks();
  }
  if (source.checkpoints.size() != 1) {
    throw Error(ExitCode::usage,
                fmt::format("--predictions and --logits are of one checkpoint, found {}",
                            source.checkpoints.size()))
        .on_all_ranks();
  }
  return eval::Predictions(config.model.image.classes, args.has("logits"));
}

void write(comm::World& world, const Arguments& args, const io::ImageSet& images,
           eval::Predictions& predictions) {
  predictions.gather(world);
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    if (args.has("predictions")) {
      predictions.write_csv(args.get<std::string>("predictions"), images);
    }
    if (args.has("logits")) predictions.write_logits(args.get<std::string>("logits"));
  });
}

struct Printing {
  bool images = false;
  bool words = false;
  bool with_header = false;
};
void print(const eval::Result& result, const std::optional<train::TextAmount>& text, Printing how) {
  if (how.images) return print_images(result, how.with_header);
  if (how.with_header) print_header(how.words);
  print_row(result, text, how.words);
}

/// Throws, on all ranks alike, if the loss is not finite.
void require_finite(const eval::Result& result) {
  const double loss = result.evaluation.loss();
  if (std::isfinite(loss)) return;
  throw Error(
      ExitCode::numerics,
      fmt::format("{}: the loss of step {} is {}, no finite number: the weights are damaged, "
                  "or activations leave the range of precision.compute",
                  result.checkpoint, result.step, loss))
      .on_all_ranks();
}

void write_json(comm::World& world, const std::string& path, const nlohmann::ordered_json& all) {
  comm::agree(world, [&] {
    if (world.rank() == 0) {
      io::write_text_file(path, (all.size() == 1 ? all[0] : all).dump(2) + '\n');
    }
  });
}

/// The printed rows and written lines of all checkpoints.
class Figures {
 public:
  struct How {
    const Arguments& args;
    bool compares = false;  ///< models that are stored differently, in one table
    std::int64_t stride = 0;
  };
  Figures(comm::World& world, const How& how) : world_(world), how_(how) {}

  /// Checkpoints that follow are measured by `evaluator` with a deck.
  void begin(const eval::Evaluator& evaluator, const train::Config& config) {
    text_ = evaluator.text();
    config_ = config;
    if (!rows_.empty()) return;
    description_ = evaluator.description();
    if (world_.rank() == 0) files_ = evaluator.files();
    if (text_ || of_images() || world_.rank() != 0) return;
    log::info(config.data.token_weights
                  ? "no bits per byte: the loss is weighted (data.token_weights)"
                  : "no bits per byte: the deck has no data.vocabulary that gives the bytes of a "
                    "token");
  }
  void add(const eval::Result& result) {
    const bool words = how_.args.has("words");
    rows_.push_back({result, config_, text_});
    lines_.push_back(of_images() ? images_json(result)
                                 : to_json(result, how_.stride, text_, words));
    lines_.back()["files"] = files_;
    lines_.back()["ranks"] = world_.size();
    lines_.back().update(storage_json(config_, result.footprint));
    if (world_.rank() != 0 || how_.compares) return;
    print(result, text_, {of_images(), words, rows_.size() == 1});
  }
  void end() const {
    if (world_.rank() == 0 && how_.compares) print_comparison(rows_);
    if (world_.rank() == 0) fmt::print("measured on {}\n", description_);
    if (how_.args.has("json")) write_json(world_, how_.args.get<std::string>("json"), lines_);
    for (const Measured& row : rows_) require_finite(row.result);
  }

 private:
  [[nodiscard]] bool of_images() const { return config_.model.is_of_images(); }

  comm::World& world_;
  How how_;
  train::Config config_;
  std::optional<train::TextAmount> text_;
  std::string description_;
  std::vector<std::string> files_;
  std::vector<Measured> rows_;
  nlohmann::ordered_json lines_ = nlohmann::ordered_json::array();
};

}  // namespace

Arguments eval_arguments() {
  Arguments args(
      "[mpirun -np N] hyperslab eval [DECK] --checkpoint DIR...\n"
      "                      [--data FILE... | --tasks FILE,...] [--set k=v]...",
      "Prints loss (nats a token), perplexity, bits per byte and token accuracy of FILEs, else of "
      "the deck's validation files, and which files those were: the same numbers on every layout. "
      "Of images it prints loss, top-1 and top-5. Without DECK the first checkpoint's deck "
      "is taken (each checkpoint of another storage format has its own, on the same text), on as "
      "many data ranks as the started ones leave with --set "
      "parallel.tensor and parallel.pipeline (1). Bytes are those of the counted tokens in "
      "data.vocabulary; end of text and other special tokens have none. "
      "train.validate_batches limits the text to so many batches of train.global_batch samples; 0 "
      "takes all.");
  add_eval_options(args);
  return args;
}

ExitCode run_eval(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = eval_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  require_places(world, args, {"json", "predictions", "logits", "log-probabilities"});
  const EvalSource source = eval_source(args);
  if (args.has("tasks")) {
    run_tasks(world, args, source);
    return ExitCode::ok;
  }
  if (args.has("log-probabilities")) {
    run_token_scores(world, args, source);
    return ExitCode::ok;
  }
  const std::vector<EvalGroup> groups = eval_groups(world, source);
  const train::Config& config = groups.front().deck.config;
  const std::int64_t stride = check_options(args, config);
  std::optional<eval::Predictions> predictions = predictions_of(args, source, config);
  const comm::Watchdog watchdog = train::watch(world, config);
  train::report_threads(world);
  Figures figures(world, {args, groups.size() > 1, stride > 0 ? stride : config.model.context});
  for (const EvalGroup& group : groups) {
    eval::Evaluator evaluator(world, group.deck, stride);
    figures.begin(evaluator, group.deck.config);
    for (const std::string& checkpoint : group.source.checkpoints) {
      figures.add(evaluator.measure(checkpoint, predictions ? &*predictions : nullptr));
    }
    if (predictions) write(world, args, *evaluator.images(), *predictions);
  }
  figures.end();
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
