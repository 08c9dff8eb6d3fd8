// SPDX-License-Identifier: Apache-2.0
#include "line_input.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {
namespace {

/// True if there is something to read, or the end; waits a moment for it.
bool has_input() {
  constexpr int kMilliseconds = 10;
  pollfd watched = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&watched, 1, kMilliseconds) > 0;
}

}  // namespace

LineInput::LineInput() : is_terminal_(isatty(STDIN_FILENO) == 1) {}

/// The first line among the bytes; at the end of the input what is left of them.
std::optional<LineInput::Line> LineInput::take() {
  const std::size_t end = bytes_.find('\n');
  if (end == std::string::npos && !has_ended_) {
    if (bytes_.size() <= kMostBytes) return {};
    is_too_long_ = true;
    bytes_.clear();
    return {};
  }
  if (end == std::string::npos && bytes_.empty() && !is_too_long_) return {};
  Line line = {bytes_.substr(0, end), std::exchange(is_too_long_, false)};
  bytes_.erase(0, end == std::string::npos ? bytes_.size() : end + 1);
  if (line.text.ends_with('\r')) line.text.pop_back();
  line.is_too_long = line.is_too_long || line.text.size() > kMostBytes;
  if (line.is_too_long) line.text.clear();
  return line;
}

void LineInput::read_more() {
  std::array<char, 65536> buffer{};
  const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count > 0) bytes_.append(buffer.data(), static_cast<std::size_t>(count));
  if (count == 0) has_ended_ = true;
  if (count < 0 && errno != EINTR && errno != EAGAIN) {
    throw Error(ExitCode::data, fmt::format("standard input: {}", std::strerror(errno)));
  }
}

std::optional<LineInput::Line> LineInput::next(const std::function<bool()>& is_over) {
  while (!is_over()) {
    if (std::optional<Line> line = take()) return line;
    if (has_ended_) return {};
    if (has_input()) read_more();
  }
  return {};
}

}  // namespace hyperslab::cli
