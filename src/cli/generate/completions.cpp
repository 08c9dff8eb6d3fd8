// SPDX-License-Identifier: Apache-2.0
#include "completions.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

namespace hyperslab::cli {
namespace {

void add_log_probabilities(const std::vector<generate::TokenLogProbabilities>& found,
                           nlohmann::ordered_json& out) {
  out["logprobs"] = nlohmann::ordered_json::array();
  out["top_logprobs"] = nlohmann::ordered_json::array();
  for (const auto& [own, top] : found) {
    out["logprobs"].push_back(own);
    auto likeliest = nlohmann::ordered_json::array();
    for (const auto& [id, logprob] : top) likeliest.push_back({{"id", id}, {"logprob", logprob}});
    out["top_logprobs"].push_back(likeliest);
  }
}

}  // namespace

Completions::Completions(const io::Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                         const std::vector<std::string>& stops, std::int64_t max_tokens,
                         std::optional<std::int64_t> logprobs)
    : max_tokens_(max_tokens), logprobs_(logprobs) {
  for (const std::string& prompt : prompts) {
    const auto place = prompt.empty() ? io::TextPlace::start : io::TextPlace::inside;
    completions_.push_back({valid_utf8(prompt),
                            io::TextDecoder(tokenizer, place),
                            io::StopSearch(stops),
                            {},
                            {},
                            0,
                            {},
                            {},
                            false});
  }
}

bool Completions::token(std::size_t prompt, const generate::NextToken& next) {
  if (next.is_stop) return false;
  Completion& completion = completions_[prompt];
  completion.ids.push_back(next.id);
  if (logprobs_) {
    completion.log_probabilities.push_back(
        generate::log_probabilities(next.logits, next.id, *logprobs_));
  }
  completion.text +=
      completion.stream.push(completion.search.push(completion.decoder.next(next.id)));
  if (prompt == current_) print();
  return !completion.search.found();
}

void Completions::end(std::size_t prompt) {
  Completion& completion = completions_[prompt];
  completion.text += completion.stream.push(completion.search.finish());
  completion.text += completion.stream.finish();
  completion.ended = true;
  while (current_ < completions_.size() && completions_[current_].ended) {
    print();
    fmt::print("\n");
    std::fflush(stdout);
    begun_ = false;
    ++current_;
  }
  if (current_ < completions_.size()) print();
}

void Completions::print() {
  Completion& completion = completions_[current_];
  if (!begun_) {
    fmt::print("{}", current_ == 0 ? "" : "\n");
    output_.print(completion.prompt);
  }
  begun_ = true;
  output_.print(std::string_view(completion.text).substr(completion.printed));
  completion.printed = completion.text.size();
  TextOutput::flush();
}

nlohmann::ordered_json Completions::to_json(const generate::Prompts& prompts,
                                            const std::vector<nlohmann::json>& ids) const {
  auto out = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < completions_.size(); ++i) {
    const Completion& completion = completions_[i];
    const bool stopped =
        completion.search.found() || static_cast<std::int64_t>(completion.ids.size()) < max_tokens_;
    nlohmann::ordered_json one;
    if (!ids.empty()) one["id"] = ids[i];
    one["prompt"] = completion.prompt;
    one["text"] = completion.text;
    one["prompt_ids"] = prompts[i];
    one["ids"] = completion.ids;
    one["finish"] = stopped ? "stop" : "count";
    out.push_back(std::move(one));
    if (logprobs_) add_log_probabilities(completion.log_probabilities, out.back());
  }
  return out;
}

}  // namespace hyperslab::cli
