// SPDX-License-Identifier: Apache-2.0
#include "chat_template.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hyperslab::cli {

void add_chat_template_option(Arguments& args, io::ChatUse use) {
  args.add()("chat-template", po::value<std::string>(),
             fmt::format("form of conversations: {} (default: by the vocabulary's "
                         "chat_template.jinja or tokenizer_config.json)",
                         fmt::join(io::chat_template_names(use), ", "))
                 .c_str());
}

io::ChatTemplate chat_template(const Arguments& args, const std::string& vocabulary,
                               io::ChatUse use) {
  if (!args.has("chat-template")) return io::chat_template_of(vocabulary, use);
  const io::ChatTemplate form = io::find_chat_template(args.get<std::string>("chat-template"));
  if (use == io::ChatUse::answers && form.is_rendered()) {
    throw Error(ExitCode::usage,
                "--chat-template rendered: expected a template that writes conversations, found "
                "the one for rows that another program wrote; name another one");
  }
  return form;
}

}  // namespace hyperslab::cli
