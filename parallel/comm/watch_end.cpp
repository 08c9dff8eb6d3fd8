// SPDX-License-Identifier: Apache-2.0
#include "watch_end.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {

void print_line(const std::string& line) {
  const std::string text = "hyperslab: " + line + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

void end_process() { ::_exit(static_cast<int>(ExitCode::hang)); }

void kill_later(int process) {
  std::string command = "sleep 1; kill -s KILL " + std::to_string(process);
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
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&files, stream, "/dev/null", O_RDWR, 0);
  }
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, "/bin/sh", &files, &attributes, words.data(), environment.data());
  if (failed != 0) ::kill(process, SIGKILL);
}

}  // namespace hyperslab::comm
