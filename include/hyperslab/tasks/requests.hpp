// SPDX-License-Identifier: Apache-2.0
// Token sequences whose ends a model scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/tasks/task_file.hpp"

namespace hyperslab::tasks {

/// A context and an ending in tokens.
struct Request {
  std::vector<std::int32_t> ids;  ///< the end of the context, and the whole ending
  std::int64_t ending = 0;        ///< tokens of the ending
  /// Positions that the model reads: the last token is a target alone.
  [[nodiscard]] std::int64_t positions() const { return std::ssize(ids) - 1; }
};

/// White space at the end of a context goes to the ending, as lm-evaluation-harness does: a token
/// usually begins with the space before a word. White space is as for Python's str.rstrip.
[[nodiscard]] std::pair<std::string, std::string> move_spaces(std::string context,
                                                              std::string ending);

/// The tokens of the context alone, and the ending's: of the n tokens of the context, the
/// tokens of context + delimiter + ending from the n-th on, as lm-evaluation-harness takes them
/// (_encode_pair). Where a token spans the border, the ending has no more than the tokens that
/// remain, perhaps none. The vocabulary's text_template().before stands at the front; before an
/// empty context without one, the end of text. At most `context_tokens` positions are kept, from
/// the end. Throws Error(data) if the ending has more than context_tokens tokens.
[[nodiscard]] Request encode(const io::Tokenizer& tokenizer, const Choice& choice,
                             std::string_view delimiter, std::int64_t context_tokens);

/// Requests of all choices of all questions, in order. Throws Error(data) with file and line.
[[nodiscard]] std::vector<Request> encode(const io::Tokenizer& tokenizer, const Task& task,
                                          std::int64_t context_tokens);

/// Requests as samples of T positions: sample i is the i-th of `order`, from position 0. The
/// positions after it are padding, which no earlier token sees. Only tokens of endings are targets.
class RequestSamples final : public io::Samples {
 public:
  /// `requests` outlives this; none has more than T positions.
  RequestSamples(const std::vector<Request>& requests, std::vector<std::size_t> order, Dim T)
      : requests_(requests), order_(std::move(order)), T_(T) {}
  [[nodiscard]] std::int64_t size() const override { return std::ssize(order_); }
  [[nodiscard]] Dim targets() const override { return T_; }
  [[nodiscard]] bool may_ignore() const override { return true; }
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override {
    return request(index).ending;
  }
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override;
  /// Which request sample `index` is.
  [[nodiscard]] std::size_t which(std::int64_t index) const {
    return order_.at(static_cast<std::size_t>(index));
  }
  [[nodiscard]] const Request& request(std::int64_t index) const { return requests_[which(index)]; }

 private:
  const std::vector<Request>& requests_;
  std::vector<std::size_t> order_;
  Dim T_;
};

}  // namespace hyperslab::tasks
