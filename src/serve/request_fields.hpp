// SPDX-License-Identifier: Apache-2.0
// Fields and limits that requests of all interfaces have. All throw RequestError(400) with the
// field's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/serve/completion_request.hpp"
#include "json_fields.hpp"

namespace hyperslab::serve {

[[noreturn]] void refuse_field(const std::string& field, const std::string& text);

/// Takes temperature, top_p, top_k, min_p, repetition_penalty, seed, ignore_eos, stop, stream,
/// stream_options, n and user, and refuses what no interface here has. `ends`: tokens that end a
/// text unless they are ignored. Prompts, max_tokens and logprobs are left to the caller.
[[nodiscard]] CompletionRequest take_shared_fields(const ServedModel& model,
                                                   const std::vector<std::int32_t>& ends,
                                                   JsonFields& fields);

/// Before a text is encoded, which may take seconds: refuses one that cannot fit into the context.
/// `field`: that holds it.
void require_bytes(const ServedModel& model, std::int64_t bytes, const std::string& field);

/// Refuses a request whose prompts do not fit into the context with its new tokens, or whose answer
/// would take too much memory. `field`: of the prompts.
void require_size(const ServedModel& model, const CompletionRequest& request,
                  const std::string& field);

}  // namespace hyperslab::serve
