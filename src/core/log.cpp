// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "hyperslab/core/printable.hpp"

namespace hyperslab::log {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    auto made = std::make_shared<spdlog::logger>("hyperslab", std::move(sink));
    made->set_level(spdlog::level::debug);
    made->set_pattern("%v");
    made->sinks().front()->set_level(spdlog::level::info);
    return made;
  }();
  return *instance;
}

}  // namespace

void setup(int rank, const std::string& prefix) {
  logger().sinks().front()->set_pattern(prefix.empty() ? "%v" : prefix + " %v");
  logger().sinks().front()->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

void debug(const std::string& text) { logger().debug(printable(text, true)); }
void info(const std::string& text) { logger().info(printable(text, true)); }
void warn(const std::string& text) { logger().warn(printable(text, true)); }
void error(const std::string& text) { logger().error(printable(text, true)); }

void failed_close(std::string_view who, std::string_view call, std::string_view text) noexcept {
  try {
    warn(std::string(who) + ": " + std::string(call) + " failed: " + std::string(text));
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no one left to report to
  }
}

}  // namespace hyperslab::log
