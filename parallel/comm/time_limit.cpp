// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/time_limit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/recorder.hpp"
#include "watch_end.hpp"

namespace hyperslab::comm {
namespace {

constexpr const char* kVariable = "HYPERSLAB_START_TIMEOUT_SECONDS";
constexpr double kDefaultSeconds = 600;
constexpr double kLookSeconds = 0.25;
constexpr auto kTimeForTheFirst = std::chrono::seconds(2);
constexpr std::array<std::string_view, 4> kRankVariables = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                                            "PMI_RANK", "SLURM_PROCID"};

std::atomic<int> lifted{0};  // counts

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

/// The rank that the launcher gave to another process of this user.
std::optional<int> rank_of(int process) {
  std::ifstream file(fmt::format("/proc/{}/environ", process));
  for (std::string word; std::getline(file, word, '\0');) {
    const auto equals = word.find('=');
    const std::string_view name = std::string_view(word).substr(0, equals);
    if (equals == std::string::npos ||
        std::ranges::find(kRankVariables, name) == kRankVariables.end())
      continue;
    if (const auto rank = whole_number(std::string_view(word).substr(equals + 1))) return rank;
  }
  return {};
}

struct HostRank {
  int rank = 0;
  int process = 0;
  bool is_stopped = false;
};

/// The ranks of this job on this host: processes under the same launcher as this one.
std::vector<HostRank> ranks_here() {
  std::vector<HostRank> found;
  const auto launcher = launcher_of(::getpid());
  if (!launcher) return found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const auto id = whole_number(entry.path().filename().string());
    if (!id) continue;
    const auto process = process_of(*id);
    const auto rank = process ? rank_of(*id) : std::nullopt;
    const auto above = rank ? launcher_of(*id) : std::nullopt;
    if (above && above->id == launcher->id) {
      found.push_back({*rank, *id, process->state == 'T' || process->state == 't'});
    }
  }
  std::ranges::sort(found, {}, &HostRank::rank);
  return found;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

/// The line to print, and whether this rank prints it.
std::string line_of(const std::string& what, double seconds, const std::vector<HostRank>& here,
                    bool& is_mine) {
  const int mine = launcher_rank().value_or(0);
  std::string stopped;
  for (const HostRank& each : here) {
    if (!each.is_stopped) is_mine = is_mine && each.rank >= mine;
    if (!each.is_stopped) continue;
    stopped +=
        fmt::format("{}rank {} (process {})", stopped.empty() ? "" : ", ", each.rank, each.process);
  }
  return fmt::format(
      "rank {} host {} did not get through {} in {:g} s: {}; the job ends (longer: "
      "{})",
      mine, host_name(), what, seconds,
      stopped.empty() ? "no rank of this host is stopped, see those of other hosts "
                        "and the network between them"
                      : stopped + " of this host is stopped",
      kVariable);
}

[[noreturn]] void end_late(const std::string& what, double seconds) {
  const std::vector<HostRank> here = ranks_here();
  bool is_mine = true;
  const std::string line = line_of(what, seconds, here, is_mine);
  if (is_mine) {
    print_line(line);
  } else {
    std::this_thread::sleep_for(kTimeForTheFirst);
  }
  for (const HostRank& each : here) {
    if (each.is_stopped) kill_later(each.process);
  }
  end_launcher_later();
  end_process();
}

}  // namespace

std::optional<int> launcher_rank() {
  for (const std::string_view name : kRankVariables) {
    const char* const text = std::getenv(name.data());
    if (text != nullptr) return whole_number(text);
  }
  return {};
}

double start_timeout_seconds() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return kDefaultSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end == '\0' && seconds >= 0 && seconds <= 1e9) return seconds;
  throw Error(
      ExitCode::usage,
      fmt::format("{} is '{}', expected a number of seconds, or 0 for no limit", kVariable, text))
      .on_all_ranks();
}

class TimeLimit::Timer {
 public:
  Timer(std::string what, double seconds)
      : what_(std::move(what)), seconds_(seconds), lifted_(lifted) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Timer() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  Timer(Timer&&) = delete;
  Timer& operator=(Timer&&) = delete;

 private:
  void run() {
    double awake = 0;
    double looked = now_seconds();
    std::unique_lock lock(mutex_);
    while (!ends_ && lifted == lifted_) {
      changed_.wait_for(lock, std::chrono::duration<double>(kLookSeconds));
      const double now = now_seconds();
      awake += std::min(now - looked, 2 * kLookSeconds);
      looked = now;
      if (awake >= seconds_ && !ends_ && lifted == lifted_) end_late(what_, seconds_);
    }
  }

  std::string what_;
  double seconds_;
  int lifted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

TimeLimit::TimeLimit(std::string what, double seconds) {
  if (seconds > 0 && launcher_rank()) timer_ = std::make_unique<Timer>(std::move(what), seconds);
}
TimeLimit::~TimeLimit() = default;
void TimeLimit::lift() { ++lifted; }

}  // namespace hyperslab::comm
