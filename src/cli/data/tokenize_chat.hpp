// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "../command.hpp"

namespace hyperslab::cli {

/// Options of `tokenize --chat`.
void add_chat_options(Arguments& args);
/// Throws Error(usage) if options of `tokenize --chat` are given to another use.
void refuse_chat_options(const Arguments& args, const char* use);
/// Turns conversations into a token file with a mask.
void tokenize_chat(const Arguments& args, const std::string& vocabulary, const std::string& output);

}  // namespace hyperslab::cli
