// SPDX-License-Identifier: Apache-2.0
#include "address_space.hpp"

#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "hyperslab/core/address_space.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;
constexpr std::size_t kOfLibraries = 32 * kMebibyte;  // without OpenBLAS's, before main
constexpr std::size_t kOfStart = 448 * kMebibyte;     // MPI, the program's threads, a small model
constexpr std::size_t kOfThread = 8 * kMebibyte;      // its stack
constexpr unsigned kSecondsForTheFirst = 2;
constexpr int kMostThreads = 4096;
constexpr rlim_t kLeastStack = rlim_t{256} << 10;

/// Variables that OpenBLAS asks for its number of threads, in this order.
constexpr std::array kThreadVariables = {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS",
                                         "OMP_NUM_THREADS"};
constexpr std::array kLocalRankVariables = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                            "PMI_LOCAL_RANK", "SLURM_LOCALID"};
constexpr std::array kLocalSizeVariables = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                            "PMI_LOCAL_SIZE"};

/// The value of the first of `names` that is a positive number, or 0.
template <std::size_t N>
int first_number(const std::array<const char*, N>& names, char** environment) {
  for (const char* const name : names) {
    const std::size_t length = std::strlen(name);
    for (char** word = environment; word != nullptr && *word != nullptr; ++word) {
      if (std::strncmp(*word, name, length) != 0 || (*word)[length] != '=') continue;
      const long value = std::strtol(*word + length + 1, nullptr, 10);
      if (value > 0) return static_cast<int>(std::min(value, 1L << 20));
    }
  }
  return 0;
}

/// Cores that this process may run on; 1 if the system does not report them.
int open_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return std::max(CPU_COUNT(&cores), 1);
}

[[noreturn]] void end_short(const std::string& problem, char** environment,
                            ExitCode code = ExitCode::device) {
  const bool is_first = first_number(kLocalRankVariables, environment) == 0;
  // A launcher that ends the others asks them by a signal, which cuts sleep short, before it kills.
  unsigned left = is_first ? 0 : kSecondsForTheFirst;
  while (left > 0) left = ::sleep(left);
  const std::string line = "hyperslab: " + problem + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(static_cast<int>(code));
}

void require_left(std::size_t needed_bytes, int threads, char** environment) {
  const std::optional<AddressSpace> space = address_space();
  if (!space || space->left_bytes >= needed_bytes) return;
  end_short(address_space_shortage(*space, needed_bytes, threads), environment);
}

/// Threads that OpenBLAS prepares for before main: never more than cores.
int threads_of_openblas(char** environment) {
  const int asked = first_number(kThreadVariables, environment);
  return asked == 0 ? open_cores() : std::min(asked, open_cores());
}

/// Libraries crash before main with less stack or more threads.
void require_stack_and_threads(char** environment) {
  const int threads = first_number(std::array{"OMP_NUM_THREADS"}, environment);
  if (threads > kMostThreads) {
    end_short("OMP_NUM_THREADS asks for " + std::to_string(threads) + " threads, at most " +
                  std::to_string(kMostThreads) +
                  " can be; unset it, or set it to the cores of a rank",
              environment, ExitCode::usage);
  }
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeastStack) return;
  end_short(std::to_string(stack.rlim_cur / 1024) +
                " KiB of stack are allowed (ulimit -s), at least " +
                std::to_string(kLeastStack / 1024) + " are needed; ask for more (ulimit -s 8192)",
            environment);
}

void check_before_main(int /*count*/, char** /*words*/, char** environment) {
  require_stack_and_threads(environment);
  const int threads = threads_of_openblas(environment);
  const std::size_t needed = kOfLibraries + static_cast<std::size_t>(threads) * kGemmBufferBytes;
  require_left(needed, threads, environment);
}

/// The dynamic loader calls it before the constructors of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeMain)(int, char**,
                                                                        char**) = check_before_main;

}  // namespace

void require_address_space() {
  if (!address_space()) return;
  ::mallopt(M_ARENA_MAX, 1);  // or malloc takes 64 MiB of addresses for every thread
  char** const environment = environ;
  const int prepared = threads_of_openblas(environment);
  // Without OMP_NUM_THREADS ranks of a host share its cores.
  int threads = first_number(std::array{"OMP_NUM_THREADS"}, environment);
  if (threads == 0) {
    threads =
        std::max(open_cores() / std::max(first_number(kLocalSizeVariables, environment), 1), 1);
  }
  const int more = std::max(threads - prepared, 0) + threads;
  const std::size_t needed = kOfStart + static_cast<std::size_t>(more) * kGemmBufferBytes +
                             static_cast<std::size_t>(threads) * kOfThread;
  require_left(needed, threads, environment);
}

}  // namespace hyperslab::cli
