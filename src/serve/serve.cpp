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
#include "model_updates.hpp"

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

/// A server with the queue of its model.
class Service {
 public:
  Service(const ServeOptions& options, const ServedModel& model, generate::Generator& generator)
      : model_name_(model.name),
        host_(options.host),
        generator_(generator),
        queue_(options.queue),
        server_(
            options.host, options.port, options.limits,
            [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
              api_->answer(std::move(request), std::move(reply));
            },
            Api::refusal) {
    api_ = std::make_unique<Api>(
        model, generator, queue_,
        ApiAccess{options.token, host_rule(options), options.limits.connections});
    server_.on_stop_signal([this](int /*signal*/) {
      log::info(
          "stopping: what runs is finished, what waits is refused; a second signal ends at once");
      stop();
    });
  }

  /// Until a signal comes, or the model fails. Returns the counts of all texts.
  generate::GenerateStats run(std::optional<FollowedRun> followed) {
    constexpr double kGraceSeconds = 10;  // for clients to take the last answers
    log::info(
        fmt::format("serving {} on http://{}:{}", model_name_, in_url(host_), server_.port()));
    std::exception_ptr failure;
    std::thread connections([&] {
      try {
        server_.run();
      } catch (...) {
        failure = std::current_exception();
        queue_.close();
      }
    });
    const std::exception_ptr lost = run_model(std::move(followed));
    server_.end_within(kGraceSeconds);
    connections.join();
    api_.reset();  // its threads answer to the server
    if (failure) std::rethrow_exception(failure);
    if (lost) std::rethrow_exception(lost);
    return stats_;
  }

 private:
  void stop() {
    queue_.close();
    api_->stop();
    server_.stop();
  }

  /// Returns the error by which values of a followed run were lost, if they were.
  std::exception_ptr run_model(std::optional<FollowedRun> followed) {
    std::optional<ModelUpdates> updates;
    if (followed) {
      updates.emplace(std::move(*followed), generator_, queue_, [this] { stop(); });
    }
    queue_.run(turns_of(generator_, stats_, [this] { stop(); }));
    return updates ? updates->failure() : nullptr;
  }

  std::string model_name_;
  std::string host_;
  generate::Generator& generator_;
  ModelQueue queue_;
  generate::GenerateStats stats_;
  std::unique_ptr<Api> api_;
  HttpServer server_;
};

}  // namespace

generate::GenerateStats serve(const ServeOptions& options, const ServedModel& model,
                              generate::Generator& generator, std::optional<FollowedRun> followed) {
  const generate::GenerateStats stats = Service(options, model, generator).run(std::move(followed));
  if (generator.has_failed()) {
    throw Error(ExitCode::device,
                "a pass of the model failed on this rank, as the log says, and the other ranks "
                "wait within it; start the server again");
  }
  return stats;
}

}  // namespace hyperslab::serve
