// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "command.hpp"
#include "hyperslab/comm/gpus.hpp"
#include "hyperslab/comm/time_limit.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/io/hdf5_version.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"
#include "hyperslab/ops/gemm_buffers.hpp"
#include "start/about.hpp"
#include "start/address_space.hpp"
#include "start/faults.hpp"
#include "start/library_settings.hpp"
#include "start/path_origin.hpp"

namespace hyperslab::cli {
namespace {

/// The advice after errors of std::thread, and of libraries that report the same.
constexpr const char* kNoThread =
    "the system refused another thread; raise the limits of processes (ulimit -u) and of address "
    "space (ulimit -v), or start fewer ranks and threads (OMP_NUM_THREADS)";
constexpr const char* kNoMemory =
    "the host's memory is used up; ask for more of it, start fewer ranks on a host, or raise its "
    "limit (ulimit -v)";

/// One line (a deck error: one a problem), from one rank if all ranks failed alike. `words`: the
/// command line.
void report(const comm::World& world, const Error& error, const std::vector<std::string>& words) {
  if (error.is_on_all_ranks() && world.rank() != 0) return;
  const bool which = !error.is_on_all_ranks() && world.size() > 1;
  std::string who;
  if (which) {
    who = fmt::format("rank {}{} host {}", world.rank(),
                      error.coordinates().empty() ? "" : " (" + error.coordinates() + ")",
                      world.host());
  }
  if (error.step() > 0) who += fmt::format("{}step {}", who.empty() ? "" : " ", error.step());
  if (!who.empty()) who += ": ";
  std::string where;
  if (error.code() == ExitCode::internal && !error.is_on_all_ranks()) {
    where = fmt::format(" ({}:{}); this is a fault of the program, please report it",
                        error.where().file_name(), error.where().line());
  }
  if (error.code() == ExitCode::data) where += origin_of_path(error.what(), words);
  fmt::print(stderr, "hyperslab: {}{}{}\n", who, printable(error.what(), true),
             printable(where, true));
  std::fflush(stderr);
}

/// A number that differs between builds; 0 if the system does not show the program's file.
std::uint64_t program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<std::uint64_t> words(1 << 17);
  std::uint64_t hash = 0;
  while (file) {
    std::ranges::fill(words, 0);
    file.read(reinterpret_cast<char*>(words.data()),
              static_cast<std::streamsize>(words.size() * sizeof words.front()));
    for (const std::uint64_t word : words) hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  }
  return hash;
}

/// Ranks of one job run one program with one command line and the same libraries; throws
/// Error(usage) that names all ranks which differ from the first, and the difference.
void require_one_program(comm::World& world, const std::vector<std::string>& words) {
  if (world.size() == 1) return;
  const std::vector<std::pair<const char*, std::string>> mine = {
      {"version", fmt::format("{} ({})", version(), commit())},
      {"MPI library", comm::library_version()},
      {"NCCL library", comm::nccl_version()},
      {"matrix library", ops::gemm_library()},
      {"HDF5 library", io::hdf5_version()},
      {"command line", fmt::format("{}", fmt::join(words, " "))},
      {"build", fmt::format("{:016x}", program_hash())}};
  for (const auto& [what, value] : mine) {
    const std::string differs = differences(world.all_gather(value));
    if (differs.empty()) continue;
    throw Error(ExitCode::usage,
                fmt::format("the ranks were started differently: {} {}; start one program with one "
                            "command line on all hosts",
                            what, differs))
        .on_all_ranks();
  }
}

ExitCode refuse_command(const comm::World& world, const std::vector<std::string>& words) {
  if (world.rank() == 0) {
    fmt::print(stderr, "hyperslab: {}", unknown_command(words));
  }
  return ExitCode::usage;
}

/// The exception that is being handled, as an Error.
Error error_of_current() {
  try {
    if (const std::exception_ptr current = std::current_exception())
      std::rethrow_exception(current);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::device, kNoMemory);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      return Error(ExitCode::device, kNoThread);
    }
    return Error(ExitCode::internal, error.what());
  } catch (const std::exception& error) {
    return Error(ExitCode::internal, error.what());
  } catch (...) {
  }
  return Error(ExitCode::internal, "std::terminate was called");
}

/// Reports the error, ends the other ranks unless they have met it, too, and returns the exit code.
int end_with(comm::World& world, const Error& error, const std::vector<std::string>& words) {
  report(world, error, words);
  const int code = static_cast<int>(error.code());
  if (!error.is_on_all_ranks() && world.size() > 1) world.abort(code);
  return code;
}

/// `words`: the name of the command and its arguments; `command` is null if there is none.
int run(comm::World& world, const Command* command, const std::vector<std::string>& words,
        const std::optional<Error>& wrong_fault) {
  try {
    begin_faults(world, wrong_fault);
    ops::reserve_gemm_buffers(world.threads().threads);
    require_one_program(world, words);
    if (command == nullptr || command->name != "train") comm::TimeLimit::lift();
    if (command == nullptr) return static_cast<int>(refuse_command(world, words));
    return static_cast<int>(command->run(world, {words.begin() + 1, words.end()}));
  } catch (const std::exception&) {
    return end_with(world, error_of_current(), words);
  }
}

int start(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (const auto code = answer(words)) return static_cast<int>(*code);
  start_again_with_settings(argv);
  const std::string name = words.empty() ? "" : words.front();
  const auto command = std::ranges::find(commands(), name, &Command::name);
  std::signal(SIGXFSZ, SIG_IGN);                   // a file-size limit becomes an error of write
  if (name == "train") catch_stop_requests(true);  // before MPI starts, which takes a while
  const double seconds = comm::start_timeout_seconds();
  require_address_space();
  std::optional<comm::TimeLimit> limit(std::in_place, "the start of MPI and of the run", seconds);
  const std::optional<Error> wrong_fault = set_faults();
  comm::World world(&argc, &argv);
  log::setup(world.rank(), world.rank() == 0 ? "" : fmt::format("[r{}]", world.rank()));
  const int code =
      run(world, command == commands().end() ? nullptr : &*command, words, wrong_fault);
  limit.emplace("the end of MPI", seconds);
  fault::reach("end.world");
  return code;
}

/// One line, where std::terminate would abort with a trace; the launcher ends the other ranks.
[[noreturn]] void end_by_terminate() {
  const Error error = error_of_current();
  fmt::print(stderr, "hyperslab: {}\n", printable(error.what(), true));
  if (error.code() == ExitCode::internal) std::abort();  // the core dump shows more
  std::_Exit(static_cast<int>(error.code()));
}

/// Reports an exception before MPI has started; unknown ones mean that MPI could not be started.
int end_early() {
  const Error error = error_of_current();
  fmt::print(stderr, "hyperslab: {}\n", error.what());
  return static_cast<int>(error.code() == ExitCode::internal ? ExitCode::device : error.code());
}

}  // namespace
}  // namespace hyperslab::cli

int main(int argc, char** argv) {
  std::set_terminate(hyperslab::cli::end_by_terminate);
  try {
    return hyperslab::cli::start(argc, argv);
  } catch (const hyperslab::Error& error) {
    fmt::print(stderr, "hyperslab: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception&) {
    return hyperslab::cli::end_early();
  }
}
