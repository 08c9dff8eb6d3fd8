// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/serve.hpp"

#include <fmt/format.h>

#include <exception>
#include <thread>

#include "api.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::serve {
namespace {

/// An address as it stands in a URL.
std::string in_url(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
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

}  // namespace

void serve(const ServeOptions& options, const ServedModel& model, generate::Generator& generator) {
  constexpr double kGraceSeconds = 10;  // for clients to take the last answers
  ModelQueue queue(options.queue);
  Api api(model, generator, queue, options.token);
  HttpServer server(
      options.host, options.port, options.limits,
      [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
        api.answer(request, reply);
      },
      Api::refusal);
  const auto stop = [&] {
    queue.close();
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
  ModelQueue::Model turns;
  turns.has_room = [&] { return generator.has_free_row(); };
  turns.step = [&] {
    const bool goes_on = step(generator, stats);
    if (generator.has_failed()) stop();
    return goes_on;
  };
  if (!generator.is_alone()) turns.rest = [&] { generator.let_rest(); };
  queue.run(turns);
  server.end_within(kGraceSeconds);
  connections.join();
  if (failure) std::rethrow_exception(failure);
  if (generator.has_failed()) {
    throw Error(ExitCode::device,
                "a pass of the model failed on this rank, as the log says, and the other ranks "
                "wait within it; start the server again");
  }
}

}  // namespace hyperslab::serve
