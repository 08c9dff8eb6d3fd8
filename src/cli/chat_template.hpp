// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "command.hpp"
#include "hyperslab/io/chat.hpp"

namespace hyperslab::cli {

/// --chat-template.
void add_chat_template_option(Arguments& args, io::ChatUse use);
/// The template that it names, or else the one of the vocabulary's folder. Throws Error(usage) for
/// a name that there is not, or not for this use, Error(data) for a vocabulary without a known one.
[[nodiscard]] io::ChatTemplate chat_template(const Arguments& args, const std::string& vocabulary,
                                             io::ChatUse use);

}  // namespace hyperslab::cli
