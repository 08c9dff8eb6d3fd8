// SPDX-License-Identifier: Apache-2.0
#include "watch_end.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {

namespace {

constexpr std::array kLaunchers = {"mpirun", "mpiexec", "orterun", "orted",        "prterun",
                                   "prte",   "prted",   "srun",    "mpiexec.hydra"};
constexpr std::array kDaemons = {"orted", "prted", "prte"};
constexpr std::array kShells = {"sh", "bash", "dash"};
constexpr int kMostShells = 4;
constexpr std::size_t kStartField = 19;  // starttime, counted behind the name in /proc/PID/stat
constexpr double kTermSeconds = 2;

/// A shell that outlives this process, in a session of its own. False if it could not start.
bool start_shell(std::string command) {
  std::string shell = "sh";
  std::string option = "-c";
  std::string path = "PATH=/usr/bin:/bin";
  std::array<char*, 4> words = {shell.data(), option.data(), command.data(), nullptr};
  std::array<char*, 2> environment = {path.data(), nullptr};
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&files, stream, "/dev/null", O_RDWR, 0);
  }
  pid_t child = 0;
  return ::posix_spawn(&child, "/bin/sh", &files, &attributes, words.data(), environment.data()) ==
         0;
}

}  // namespace

void print_line(const std::string& line) {
  const std::string text = "hyperslab: " + line + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

void end_process() { ::_exit(static_cast<int>(ExitCode::hang)); }

std::optional<Process> process_of(int id) {
  std::ifstream file(fmt::format("/proc/{}/stat", id));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  Process found{id, text.substr(open + 1, close - open - 1), 'R', 0, ""};
  std::istringstream words(text.substr(close + 1));
  std::vector<std::string> fields(std::istream_iterator<std::string>(words), {});
  if (fields.size() <= kStartField) return {};
  found.state = fields[0][0];
  found.parent = std::atoi(fields[1].c_str());
  found.start_time = fields[kStartField];
  return found;
}

std::optional<Process> launcher_of(int process) {
  auto found = process_of(process);
  for (int up = 0; found && up < kMostShells; ++up) {
    found = process_of(found->parent);
    if (!found || std::ranges::find(kLaunchers, found->name) != kLaunchers.end()) return found;
    if (std::ranges::find(kShells, found->name) == kShells.end()) return {};
  }
  return {};
}

void kill_later(int process) {
  if (!start_shell(fmt::format("sleep 1; kill -s KILL {}", process))) ::kill(process, SIGKILL);
}

void end_launcher_later() {
  const auto launcher = launcher_of(::getpid());
  if (!launcher) return;
  const std::string is_there = fmt::format(
      "read -r stat < /proc/{0}/stat && set -- $stat && [ \"${{22}}\" = {1} ] && "
      "[ \"$3\" != Z ]",
      launcher->id, launcher->start_time);
  const auto wait = [&](double seconds) {
    return fmt::format("for i in $(seq {:.0f}); do {} || exit; sleep 0.25; done; ", 4 * seconds,
                       is_there);
  };
  std::string command = "exec 2>/dev/null; " + wait(kLauncherSeconds);
  // A daemon cleans up. mpirun, which is already about to end, would crash and say so.
  if (std::ranges::find(kDaemons, launcher->name) != kDaemons.end()) {
    command += fmt::format("kill -s TERM {}; {}", launcher->id, wait(kTermSeconds));
  }
  (void)start_shell(command + fmt::format("kill -s KILL {}", launcher->id));
}

}  // namespace hyperslab::comm
