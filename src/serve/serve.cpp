// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/serve.hpp"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "api.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::serve {
namespace {

/// An address as it stands in a URL.
std::string in_url(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

/// With a token no name can do harm: a page of another site does not know the token. On an address
/// of a network names cannot be known.
HostRule host_rule(const ServeOptions& options) {
  const bool is_open = !options.token.empty() || !is_loopback(options.host);
  return is_open ? HostRule() : HostRule(options.host);
}

/// A pass of the model for all texts; if it fails, it has failed for all of them.
bool step(generate::Generator& generator, generate::GenerateStats& stats) {
  try {
    return generator.step(stats);
  } catch (const std::exception& error) {
    log::error(error.what());
    generator.abandon(std::current_exception());
    return false;
  }
}

/// The calls by which the queue drives the model; `stop` ends the server when a pass has failed.
ModelQueue::Model turns_of(generate::Generator& generator, generate::GenerateStats& stats,
                           std::function<void()> stop) {
  ModelQueue::Model turns;
  turns.has_room = [&generator] { return generator.has_free_row(); };
  turns.step = [&generator, &stats, stop = std::move(stop)] {
    const bool goes_on = step(generator, stats);
    if (generator.has_failed()) stop();
    return goes_on;
  };
  if (!generator.is_alone()) turns.rest = [&generator] { generator.let_rest(); };
  return turns;
}

void require_alive(const generate::Generator& generator) {
  if (!generator.has_failed()) return;
  throw Error(ExitCode::device,
              "a pass of the model failed on this rank, as the log says, and the other ranks wait "
              "within it; start the server again");
}

}  // namespace

generate::GenerateStats serve(const ServeOptions& options, const ServedModel& model,
                              generate::Generator& generator) {
  constexpr double kGraceSeconds = 10;  // for clients to take the last answers
  ModelQueue queue(options.queue);
  std::unique_ptr<Api> api;
  HttpServer server(
      options.host, options.port, options.limits,
      [&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
        api->answer(std::move(request), std::move(reply));
      },
      Api::refusal);
  api = std::make_unique<Api>(
      model, generator, queue,
      ApiAccess{options.token, host_rule(options), options.limits.connections});
  const auto stop = [&] {
    queue.close();
    api->stop();
    server.stop();
  };
  server.on_stop_signal([&](int /*signal*/) {
    log::info(
        "stopping: what runs is finished, what waits is refused; a second signal ends at once");
    stop();
  });
  log::info(
      fmt::format("serving {} on http://{}:{}", model.name, in_url(options.host), server.port()));
  std::exception_ptr failure;
  std::thread connections([&] {
    try {
      server.run();
    } catch (...) {
      failure = std::current_exception();
      queue.close();
    }
  });
  generate::GenerateStats stats;
  queue.run(turns_of(generator, stats, stop));
  server.end_within(kGraceSeconds);
  connections.join();
  api.reset();  // its threads answer to the server
  if (failure) std::rethrow_exception(failure);
  require_alive(generator);
  return stats;
}

}  // namespace hyperslab::serve
