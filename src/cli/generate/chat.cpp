// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "../chat_template.hpp"
#include "../command.hpp"
#include "../stored_model.hpp"
#include "conversation.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/serve/completion.hpp"
#include "line_input.hpp"
#include "sampling_options.hpp"
#include "text_output.hpp"

namespace hyperslab::cli {
namespace {

constexpr const char* kChatHelp =
    "/reset  begins another conversation\n"
    "/help   shows these lines\n"
    "/quit   ends, as does Ctrl-D\n"
    "//...   a message that begins with /\n"
    "Ctrl-C  stops an answer; here, or twice, it ends\n";

volatile std::sig_atomic_t interrupts = 0;  // since an answer was begun

/// The first SIGINT stops an answer, the second ends the process.
void count_interrupt(int /*signal*/) {
  interrupts = interrupts + 1;
  if (interrupts < 2) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = count_interrupt;  // and a call that waits for input returns
  (void)sigaction(SIGINT, &action, nullptr);
}

/// Choices of the command's options.
struct ChatOptions {
  generate::SamplingOptions sampling;
  std::vector<std::string> stops;
  std::optional<std::int64_t> max_tokens;  ///< absent: the rest of the context
};

/// Reads messages, and prints answers as they grow.
class Talk {
 public:
  Talk(generate::Generator& generator, const io::ChatEncoder& encoder, Conversation conversation,
       ChatOptions options)
      : generator_(generator),
        encoder_(encoder),
        conversation_(std::move(conversation)),
        options_(std::move(options)) {}

  /// Until the input ends, or /quit.
  void run() {
    if (input_.is_terminal()) log::info("/help shows what there is beside messages");
    bool goes_on = true;
    while (goes_on) {
      const std::optional<LineInput::Line> line = next_line();
      goes_on = line && take(*line);
    }
    if (input_.is_terminal()) output_.print("\n");
    TextOutput::flush();
  }

 private:
  /// The end of an answer.
  struct Answer {
    std::string text;
    serve::Finish finish = serve::Finish::none;
    std::exception_ptr error;
  };

  std::optional<LineInput::Line> next_line() {
    if (input_.is_terminal()) {
      output_.print("> ");
      TextOutput::flush();
    }
    return input_.next([this] {
      if (!generator_.is_alone()) generator_.let_rest();
      return interrupts > 0;
    });
  }

  /// False: the line ends the program.
  bool take(const LineInput::Line& line) {
    const std::string& text = line.text;
    if (line.is_too_long) {
      log::warn(fmt::format("a message of more than {} bytes is left out", LineInput::kMostBytes));
    } else if (valid_utf8(text) != text) {
      log::warn("a message that is no UTF-8 is left out");
    } else if (text.starts_with("//")) {
      tell(text.substr(1));
    } else if (text.starts_with('/')) {
      return obey(text);
    } else if (!text.empty()) {
      tell(text);
    }
    return true;
  }

  bool obey(const std::string& command) {
    if (command == "/quit") return false;
    if (command == "/reset") {
      conversation_.reset();
    } else if (command == "/help") {
      fmt::print(stderr, "{}", kChatHelp);
    } else {
      log::warn(
          fmt::format("there is no command '{}'; /help shows them, and // begins a message "
                      "with /",
                      printable(std::string_view(command).substr(0, 64))));
    }
    return true;
  }

  void tell(const std::string& text) {
    const std::int64_t quarter = std::max<std::int64_t>(generator_.context() / 4, 1);
    std::vector<std::int32_t> prompt;
    try {
      prompt = conversation_.ask(text, std::min(options_.max_tokens.value_or(quarter), quarter));
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      return log::warn(error.what());
    }
    if (conversation_.dropped() > 0 && !std::exchange(has_told_of_dropped_, true)) {
      log::warn(
          fmt::format("the context of {} tokens is full: from now on the oldest turns are "
                      "left out",
                      generator_.context()));
    }
    const std::int64_t room = generator_.context() + 1 - std::ssize(prompt);
    const std::int64_t most = std::min(options_.max_tokens.value_or(room), room);
    const Answer answer = answer_to(std::move(prompt), most);
    keep(answer, most == room);
  }

  void keep(const Answer& answer, bool is_full) {
    output_.print("\n");
    TextOutput::flush();
    if (answer.finish == serve::Finish::none) log::info("stopped");
    if (answer.finish == serve::Finish::length) {
      log::info(is_full ? fmt::format("the answer ends as the context of {} tokens is full",
                                      generator_.context())
                        : "the answer ends at --max-tokens");
    }
    const bool is_nothing = answer.finish == serve::Finish::none && answer.text.empty();
    is_nothing ? conversation_.take_back() : conversation_.answer(answer.text);
  }

  Answer answer_to(std::vector<std::int32_t> prompt, std::int64_t max_tokens) {
    auto request = std::make_shared<serve::CompletionRequest>();
    request->prompts = {std::move(prompt)};
    request->sampling = options_.sampling;
    request->sampling.max_tokens = max_tokens;
    request->sampling.seed += answers_++;
    request->stops = options_.stops;
    request->lead = encoder_.form().answer_lead();
    Answer answer;
    std::exception_ptr unwritten;  // listeners throw nothing
    interrupts = 0;
    const auto take = [&](const serve::AnswerPiece& piece) {
      answer.text += piece.text;
      answer.finish = piece.finish;
      try {
        output_.print(piece.text);
        TextOutput::flush();
      } catch (const Error&) {
        unwritten = std::current_exception();
      }
    };
    serve::begin_completion(generator_, encoder_.tokenizer(), request,
                            {take, [&] { return interrupts == 0 && !unwritten; }},
                            [&](const serve::Usage& /*usage*/, const std::exception_ptr& error) {
                              answer.error = error;
                            });
    generate::GenerateStats stats;
    while (generator_.step(stats)) {
    }
    interrupts = 0;
    if (unwritten) std::rethrow_exception(unwritten);
    if (answer.error) std::rethrow_exception(answer.error);
    return answer;
  }

  generate::Generator& generator_;
  const io::ChatEncoder& encoder_;
  Conversation conversation_;
  ChatOptions options_;
  LineInput input_;
  TextOutput output_;
  std::uint64_t answers_ = 0;
  bool has_told_of_dropped_ = false;
};

ChatOptions chat_options(const Arguments& args, const StoredModel& model,
                         const io::ChatEncoder& encoder) {
  std::vector<std::int32_t> ends = model.ends.ids;
  ends.insert(ends.end(), encoder.turn_ends().begin(), encoder.turn_ends().end());
  ChatOptions options;
  options.sampling = sampling_options(args, model, ends);
  options.stops = args.list("stop");
  if (args.has("max-tokens")) options.max_tokens = options.sampling.max_tokens;
  return options;
}

void chat(comm::World& world, const Arguments& args) {
  const StoredModel model = open_stored_model(world, args, io::SpecialTokens::text);
  std::unique_ptr<io::ChatEncoder> encoder;
  std::unique_ptr<Conversation> conversation;
  ChatOptions options;
  generate::GeneratorSize size;
  comm::agree(world, [&] {
    size = {.rows = 1, .cache_tokens = cache_tokens(args), .generation = generation_of(args)};
    if (world.rank() != 0) return;
    encoder = std::make_unique<io::ChatEncoder>(
        *model.tokenizer, model.vocabulary,
        chat_template(args, model.vocabulary, io::ChatUse::answers));
    options = chat_options(args, model, *encoder);
    const std::string system = args.has("system") ? args.get<std::string>("system") : "";
    conversation = std::make_unique<Conversation>(*encoder, system, model.config.model.context);
  });
  const comm::Watchdog watchdog(world, watch_options(world, model.config));
  generate::Generator generator(world, model.config, &model.reader, size,
                                legal_changes(model.config));
  if (!generator.leads()) return generator.follow();
  catch_interrupts();
  Talk(generator, *encoder, std::move(*conversation), std::move(options)).run();
  generator.let_go();
}

}  // namespace

Arguments chat_arguments() {
  Arguments args(
      "[mpirun -np N] hyperslab chat --checkpoint DIR [options]",
      "Answers messages that are typed, or come from a file or a pipe, one a line. N ranks share "
      "the model as parallel.tensor does, whatever layout it was trained on. If the context is "
      "full, the oldest turns are left out.");
  add_stored_model_options(args);
  add_cache_options(args);
  add_chat_template_option(args, io::ChatUse::answers);
  args.add()("system", po::value<std::string>(), "text of a system message before all others")(
      "max-tokens", po::value<std::int64_t>(),
      "tokens of an answer at most (default: the rest of the context)")(
      "seed", po::value<std::uint64_t>()->default_value(1),
      "of the sampling; answer i, from 0, draws from the stream of seed + i");
  add_sampling_options(args);
  return args;
}

ExitCode run_chat(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = chat_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  chat(world, args);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
