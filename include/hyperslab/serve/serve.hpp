// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/checkpoint_follower.hpp"
#include "hyperslab/serve/completion_request.hpp"
#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

struct ServeOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  ///< 0: one that is free
  std::string token;          ///< that requests must bring; empty: none
  std::size_t queue = 256;    ///< requests that may wait for the model
  HttpLimits limits;
};

/// A run whose newest checkpoint is served.
struct FollowedRun {
  io::CheckpointFollower checkpoints;
  bool averages = false;  ///< their weights' averages, by CheckpointReader::use_averages()
};

/// Answers requests over HTTP until SIGINT, SIGTERM or SIGUSR1 (which mpirun hands on): then
/// running ones are finished, waiting ones refused (503). The calling thread runs the model,
/// another one the connections. Says on stderr where it listens. `generator` leads its ranks, which
/// the caller lets go afterwards. `followed`: as it publishes checkpoints, answers that begin
/// afterwards come from the newest, and those in progress are finished with the one before it.
/// Throws as HttpServer does, Error(device) if a pass failed on one of several ranks, and
/// Error(checkpoint) if values of a checkpoint were lost while they were loaded. Returns the counts
/// of all texts.
generate::GenerateStats serve(const ServeOptions& options, const ServedModel& model,
                              generate::Generator& generator,
                              std::optional<FollowedRun> followed = {});

}  // namespace hyperslab::serve
