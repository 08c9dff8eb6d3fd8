// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: arguments, help, reading a deck.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

namespace po = boost::program_options;

/// A subcommand; `run` is called on every rank with the arguments behind its name.
struct Command {
  std::string name;
  std::string summary;
  ExitCode (*run)(comm::World& world, const std::vector<std::string>& arguments);
};
[[nodiscard]] const std::vector<Command>& commands();

ExitCode run_train(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_eval(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_generate(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_bench(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_tokenize(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_checkpoint(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_parity(comm::World& world, const std::vector<std::string>& arguments);
ExitCode run_plan(comm::World& world, const std::vector<std::string>& arguments);

/// "of rank 0 is 'a', of ranks 1, 3 'b', of rank 2 'c'" where values, one a rank, differ; else
/// empty.
[[nodiscard]] std::string differences(const std::vector<std::string>& values);

/// Options of a subcommand and its positional arguments.
class Arguments {
 public:
  /// `usage`: "hyperslab train DECK [options]", then a sentence. Adds --help.
  explicit Arguments(std::string usage);
  po::options_description_easy_init add() { return visible_.add_options(); }
  /// A positional argument; `many`: one or more.
  void positional(const std::string& name, bool many = false);
  /// False where --help was asked for and printed (by rank 0). Throws Error(usage).
  [[nodiscard]] bool parse(const comm::World& world, const std::vector<std::string>& arguments);

  [[nodiscard]] bool has(const std::string& name) const { return values_.count(name) > 0; }
  template <class T>
  [[nodiscard]] T get(const std::string& name) const {
    return values_[name].as<T>();
  }
  [[nodiscard]] std::vector<std::string> list(const std::string& name) const;

 private:
  std::string usage_;
  po::options_description visible_{"Options"};
  po::options_description hidden_;
  po::positional_options_description places_;
  std::vector<std::string> required_;
  po::variables_map values_;
};

/// The deck, read by rank 0 and parsed by every rank.
struct DeckSource {
  std::string path;
  std::vector<std::string> overrides;
  bool for_training = false;
  bool any_ranks = false;   ///< the layout need not fit the ranks that were started
  int ranks = 0;            ///< that the layout must fit instead of those; 0: none
  std::string device = {};  ///< cpu | cuda: planned for whatever is here; empty: as the deck says
};
/// Throws Error(usage) also where another rank finds another text at the path; one that finds none
/// takes rank 0's.
[[nodiscard]] train::Config read_config(comm::World& world, const DeckSource& source);

/// --set as the option that every command with a deck has.
void add_deck_options(Arguments& arguments);

}  // namespace hyperslab::cli
