// SPDX-License-Identifier: Apache-2.0
#include "start_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace hyperslab::cli {
namespace {

/// The command line of a process; empty if the system does not report it.
std::vector<std::string> words_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

/// The words of a launcher's command line before the program's `own` words, with which it ends;
/// empty if it is no mpirun or ends otherwise.
std::vector<std::string> launcher_words(const std::vector<std::string>& parent,
                                        const std::vector<std::string>& own) {
  constexpr std::array<std::string_view, 5> kLaunchers = {"mpirun", "mpiexec", "orterun", "prterun",
                                                          "mpiexec.hydra"};
  if (parent.size() <= own.size()) return {};
  const std::string name = std::filesystem::path(parent.front()).filename().string();
  if (std::ranges::find(kLaunchers, name) == kLaunchers.end()) return {};
  const auto before = std::ssize(parent) - std::ssize(own);
  if (!std::equal(own.begin(), own.end(), parent.begin() + before)) return {};
  return {parent.begin(), parent.begin() + before};
}

/// A setting in the environment that a person who pastes the command has not.
void add_oversubscription(std::vector<std::string>& launcher) {
  constexpr std::string_view kOption = "--oversubscribe";
  const char* setting = std::getenv("OMPI_MCA_rmaps_base_oversubscribe");
  if (setting == nullptr || std::string_view(setting) != "1") return;
  if (std::ranges::find(launcher, kOption) != launcher.end()) return;
  launcher.emplace(launcher.begin() + 1, kOption);
}

}  // namespace

run::StartCommand start_command(const comm::World& world,
                                const std::vector<std::string>& arguments) {
  const std::vector<std::string> own = words_of("self");
  if (own.empty()) return {};
  run::StartCommand command;
  command.program = own.front();
  command.arguments = arguments;
  command.launcher = launcher_words(words_of(std::to_string(getppid())), own);
  if (!command.launcher.empty()) {
    add_oversubscription(command.launcher);
    return command;
  }
  if (world.size() == 1) return command;
  const bool slurm =
      std::getenv("SLURM_PROCID") != nullptr && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr;
  command.launcher = {slurm ? "srun" : "mpirun", slurm ? "-n" : "-np",
                      std::to_string(world.size())};
  return command;
}

}  // namespace hyperslab::cli
