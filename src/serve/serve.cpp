// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/serve.hpp"

#include <fmt/format.h>

#include <exception>
#include <thread>

#include "api.hpp"
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
  server.on_stop_signal([&](int /*signal*/) {
    log::info(
        "stopping: what runs is finished, what waits is refused; a second signal ends at once");
    queue.close();
    server.stop();
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
  queue.run({[&] { return generator.has_free_row(); }, [&] { return step(generator, stats); }});
  server.end_within(kGraceSeconds);
  connections.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hyperslab::serve
