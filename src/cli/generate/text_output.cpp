// SPDX-License-Identifier: Apache-2.0
#include "text_output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::cli {

std::string valid_utf8(const std::string& text) {
  io::Utf8Stream stream;
  std::string valid = stream.push(text);
  valid += stream.finish();
  return valid;
}

TextOutput::TextOutput() : to_terminal_(isatty(STDOUT_FILENO) == 1) {}

void TextOutput::print(std::string_view text) const {
  if (to_terminal_) {
    fmt::print("{}", printable(text, true));
  } else {
    fmt::print("{}", text);
  }
}

void TextOutput::flush() {
  if (std::fflush(stdout) == 0) return;
  throw Error(ExitCode::storage,
              fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

}  // namespace hyperslab::cli
