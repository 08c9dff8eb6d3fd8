// SPDX-License-Identifier: Apache-2.0
// Shared parts of the subcommands: arguments, help, reading a deck.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/error.hpp"
#include "options.hpp"

namespace hyperslab::deck {
struct Surroundings;
}
namespace hyperslab::io {
enum class SpecialTokens : std::uint8_t;
}
namespace hyperslab::train {
struct Config;
}

namespace hyperslab::cli {

class Arguments;

/// A subcommand; `run` is called on every rank with the arguments after its name.
struct Command {
  std::string name;
  std::string summary;
  ExitCode (*run)(comm::World& world, const std::vector<std::string>& arguments);
  Arguments (*arguments)();  ///< those that it takes
};
[[nodiscard]] const std::vector<Command>& commands();

ExitCode run_train(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_eval(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_generate(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_chat(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_serve(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_bench(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_tokenize(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_pack_images(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_checkpoint(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_parity(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_plan(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_trace(comm::World& world, const std::vector<std::string>& arguments);

[[nodiscard]] Arguments train_arguments();
[[nodiscard]] Arguments eval_arguments();
[[nodiscard]] Arguments generate_arguments();
[[nodiscard]] Arguments chat_arguments();
[[nodiscard]] Arguments serve_arguments();
[[nodiscard]] Arguments bench_arguments();
[[nodiscard]] Arguments tokenize_arguments();
[[nodiscard]] Arguments pack_images_arguments();
[[nodiscard]] Arguments checkpoint_arguments();
[[nodiscard]] Arguments parity_arguments();
[[nodiscard]] Arguments plan_arguments();
[[nodiscard]] Arguments trace_arguments();

/// From now on SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 ask `train` to save and stop, and a second
/// SIGINT ends the process at once; or (`caught` is false) they end the process again.
void catch_stop_requests(bool caught);

/// "of rank 0 is 'a', of ranks 1, 3 'b', of rank 2 'c'" if values, one a rank, differ; else
/// empty.
[[nodiscard]] std::string differences(const std::vector<std::string>& values);

/// Options of a subcommand and its positional arguments.
class Arguments {
 public:
  /// `usage`: "hyperslab train DECK [options]", or several such lines; `description`: the command's
  /// purpose. Adds --help.
  Arguments(std::string usage, std::string description);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  Arguments(Arguments&&) noexcept;
  Arguments& operator=(Arguments&&) noexcept;
  ~Arguments();
  [[nodiscard]] po::OptionAdder add();
  /// A positional argument; `many`: one or more.
  void positional(const std::string& name, bool many = false);
  /// A positional argument that may be left out, the last one.
  void optional_positional(const std::string& name);
  /// False if --help was asked for and printed (by rank 0). Throws Error(usage).
  [[nodiscard]] bool parse(const comm::World& world, const std::vector<std::string>& arguments);
  /// The names of all options, without dashes.
  [[nodiscard]] std::vector<std::string> option_names() const;

  [[nodiscard]] bool has(const std::string& name) const;
  /// The value of an option that is there or has a default; T as of its po::value.
  template <class T>
  [[nodiscard]] T get(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> list(const std::string& name) const;

 private:
  void read(const std::vector<std::string>& arguments);
  void require_positional(const std::vector<std::string>& arguments) const;
  [[noreturn]] void refuse(const std::string& problem) const;

  [[nodiscard]] std::string usage_lines() const;

  std::string usage_;
  std::string description_;
  std::vector<std::string> positional_names_;
  std::vector<std::string> required_;
  struct Parser;  ///< the state of Boost.Program_options
  std::unique_ptr<Parser> parser_;
};

/// Throws Error(usage).
[[noreturn]] void refuse(const std::string& text);

/// Throws on every rank if a file that one of these options names cannot be written where it is:
/// before the work whose figures it is for.
void require_places(comm::World& world, const Arguments& args,
                    std::initializer_list<const char*> options);

/// The deck, read by rank 0 and parsed by every rank.
struct DeckSource {
  std::string path;
  std::vector<std::string> overrides;
  bool for_training = false;
  bool any_ranks = false;   ///< the layout need not fit the ranks that were started
  int ranks = 0;            ///< that the layout must fit instead of those; 0: none
  std::string device = {};  ///< cpu | cuda: planned for whatever is here; empty: as the deck says
  bool is_plan = false;     ///< `ranks` were asked for, not started
  bool is_yaml = false;     ///< further output is printed as comments of YAML
  std::vector<std::string_view> unused = {};  ///< as in deck::Surroundings
};
/// The deck's text, rank 0's on every rank; throws as read_config().
[[nodiscard]] std::string read_deck_text(comm::World& world, const std::string& path);
/// The surroundings against which the rules of a deck from this source are checked.
[[nodiscard]] deck::Surroundings surroundings_of(const comm::World& world,
                                                 const DeckSource& source);
/// Keys that decide a run's inputs, outputs and length, not a step's computation; without the
/// data's if it `reads_data`.
[[nodiscard]] std::vector<std::string_view> keys_beside_the_step(bool reads_data = false);
/// Keys that only training reads.
[[nodiscard]] const std::vector<std::string_view>& keys_of_training();
/// Throws Error(usage) also if another rank finds another text at the path; one that finds none
/// takes rank 0's.
[[nodiscard]] train::Config read_config(comm::World& world, const DeckSource& source);
/// Which changes of a deck its rules allow here.
[[nodiscard]] std::function<bool(const train::Config&)> legal_changes(const train::Config& config);

/// --parse-special, and its meaning.
void add_parse_special_option(Arguments& arguments);
[[nodiscard]] io::SpecialTokens special_tokens(const Arguments& arguments);

/// --set as the option that every command with a deck has.
void add_deck_options(Arguments& arguments);

}  // namespace hyperslab::cli
