// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace hyperslab::serve {
namespace {

/// Characters that begin in some bytes of UTF-8.
std::int64_t characters(std::string_view bytes) {
  constexpr unsigned kContinuation = 0x80;
  constexpr unsigned kMask = 0xC0;
  return std::ranges::count_if(
      bytes, [](char byte) { return (static_cast<unsigned char>(byte) & kMask) != kContinuation; });
}

/// Ends the scoring of prompts between two passes.
struct NotHeard : std::exception {};

/// Leaves a lead out of a text that begins with it.
class LeadCut {
 public:
  explicit LeadCut(std::string_view lead) : lead_(lead) {}
  std::string push(const std::string& text) {
    std::size_t used = 0;
    while (used < text.size() && met_ < lead_.size() && text[used] == lead_[met_]) {
      ++used;
      ++met_;
    }
    if (used == text.size()) return {};  // it may go on
    return finish() + text.substr(used);
  }
  /// The part of the lead that the text began with, if it was not all of it.
  std::string finish() {
    const std::string_view lead = std::exchange(lead_, {});
    return met_ < lead.size() ? std::string(lead.substr(0, met_)) : std::string();
  }

 private:
  std::string_view lead_;  ///< none once its end was met, or missed
  std::size_t met_ = 0;    ///< bytes of it
};

/// One choice as it grows.
struct Choice {
  io::TextDecoder decoder;
  io::StopSearch search;
  LeadCut lead;
  io::Utf8Stream stream;
  std::int64_t characters = 0;  ///< characters of all tokens so far
  std::int64_t generated = 0;
};

/// Lives until its last choice has ended.
class Answer final : public generate::TokenListener {
 public:
  Answer(generate::Generator& generator, const io::Tokenizer& tokenizer,
         std::shared_ptr<const CompletionRequest> request, AnswerListener listener, AnswerEnd end)
      : generator_(generator),
        tokenizer_(tokenizer),
        owned_(std::move(request)),
        request_(*owned_),
        listener_(std::move(listener)),
        end_(std::move(end)) {
    for (std::size_t i = 0; i < request_.choices(); ++i) {
      const auto place =
          has_text(request_.prompts[i / n()]) ? io::TextPlace::inside : io::TextPlace::start;
      choices_.push_back({io::TextDecoder(tokenizer, place),
                          io::StopSearch(request_.stops),
                          LeadCut(request_.lead),
                          {},
                          0,
                          0});
    }
  }

  /// `self`: holds this.
  void begin(std::unique_ptr<Answer> self);
  bool token(std::size_t choice, const generate::NextToken& next) override;
  void drafted(std::size_t /*choice*/, const generate::DraftCounts& counts) override {
    usage_.drafts += counts;
  }
  void end(std::size_t /*choice*/) override { end_one(nullptr); }
  void fail(std::size_t /*choice*/, const std::exception_ptr& error) override { end_one(error); }
  [[nodiscard]] bool wants_logits() const override { return request_.logprobs.has_value(); }
  [[nodiscard]] bool wants_tokens() const override { return is_heard_ && listener_.is_there(); }

 private:
  [[nodiscard]] std::size_t n() const { return static_cast<std::size_t>(request_.n); }
  [[nodiscard]] bool has_text(const std::vector<std::int32_t>& ids) const {
    return std::ranges::any_of(ids, [&](std::int32_t id) { return !tokenizer_.is_special(id); });
  }
  [[nodiscard]] std::string text_of(std::int32_t id, io::TextDecoder& decoder) const {
    return tokenizer_.is_special(id) ? std::string() : decoder.next(id);
  }
  [[nodiscard]] AnswerToken counted(Choice& choice, std::int32_t id, const std::string& text) {
    AnswerToken token = {id, choice.characters, {}};
    choice.characters += characters(text);
    return token;
  }
  void give(AnswerPiece piece) {
    listener_.take(std::move(piece));
    is_heard_ = is_heard_ && listener_.is_there();
  }
  void echo_prompts();
  void score();
  [[nodiscard]] bool begin_parts();
  void generate();
  void end_one(const std::exception_ptr& error);
  void finish();
  void give_prompt(std::size_t prompt,
                   std::vector<generate::TokenLogProbabilities> log_probabilities);

  generate::Generator& generator_;
  const io::Tokenizer& tokenizer_;
  std::shared_ptr<const CompletionRequest> owned_;
  const CompletionRequest& request_;
  AnswerListener listener_;
  AnswerEnd end_;
  std::vector<Choice> choices_;
  Usage usage_;
  bool is_heard_ = true;
  std::size_t ended_ = 0;
  std::exception_ptr error_;
  std::unique_ptr<Answer> self_;
};

void Answer::begin(std::unique_ptr<Answer> self) {
  self_ = std::move(self);
  bool goes_on = false;
  try {
    goes_on = begin_parts();
  } catch (const NotHeard&) {  // the answer has no more to come
    is_heard_ = false;
  } catch (...) {
    error_ = std::current_exception();
  }
  if (!goes_on) finish();
}

void Answer::end_one(const std::exception_ptr& error) {
  if (error) {
    error_ = error;
    is_heard_ = false;  // the others end before their next pass
  }
  if (++ended_ == choices_.size()) finish();
}

void Answer::finish() {
  const std::unique_ptr<Answer> self = std::move(self_);  // its last use
  end_(usage_, error_);
}

/// Gives the parts of the answer that come before generated text. False: none is generated.
bool Answer::begin_parts() {
  for (const auto& prompt : request_.prompts) usage_.prompt_tokens += std::ssize(prompt);
  const bool scores = scores_prompts(request_);
  if (scores) {
    score();
  } else if (request_.echo) {
    echo_prompts();
  }
  if (!is_heard_) return false;
  const std::int64_t tokens = request_.sampling.max_tokens;
  if (tokens == 0) {
    for (std::size_t i = 0; i < choices_.size(); ++i) give({i, {}, {}, Finish::length});
    return false;
  }
  if (scores && tokens == 1) return false;  // score() has chosen it
  generate();
  return true;
}

void Answer::echo_prompts() {
  for (std::size_t i = 0; i < request_.prompts.size(); ++i) give_prompt(i, {});
}

/// `log_probabilities`: of all tokens but the first, or empty.
void Answer::give_prompt(std::size_t prompt,
                         std::vector<generate::TokenLogProbabilities> log_probabilities) {
  const auto& ids = request_.prompts[prompt];
  for (std::size_t i = prompt * n(); i < (prompt + 1) * n(); ++i) {
    AnswerPiece piece = {i, {}, {}, Finish::none};
    io::TextDecoder decoder(tokenizer_);
    io::Utf8Stream stream;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::string text = text_of(ids[t], decoder);
      piece.text += stream.push(text);
      AnswerToken token = counted(choices_[i], ids[t], text);
      if (!request_.logprobs) continue;
      if (t > 0) token.log_probabilities = log_probabilities[t - 1];
      piece.tokens.push_back(std::move(token));
    }
    piece.text += stream.finish();
    give(std::move(piece));
  }
}

/// The prompts' log-probabilities and, if one token is to follow, that one: the pass that reads a
/// prompt gives both.
void Answer::score() {
  std::vector<std::vector<generate::TokenLogProbabilities>> found(request_.prompts.size());
  const auto row = [&](std::size_t prompt, std::size_t position, std::span<const float> logits) {
    if (!is_heard_ || !listener_.is_there()) throw NotHeard();
    const auto& ids = request_.prompts[prompt];
    if (position + 1 < ids.size()) {
      found[prompt].push_back(
          generate::log_probabilities(logits, ids[position + 1], *request_.logprobs));
      return;
    }
    give_prompt(prompt, std::exchange(found[prompt], {}));
    if (request_.sampling.max_tokens != 1) return;
    for (std::size_t i = prompt * n(); i < (prompt + 1) * n(); ++i) {
      generate::Sampler sampler(request_.sampling, i, generator_.vocabulary());
      sampler.see(ids);
      const std::int32_t id = sampler.next(logits);
      (void)token(i, {id, request_.sampling.stops_at(id), logits});
    }
  };
  generator_.prompt_logits(request_.prompts, row);
}

/// If a choice cannot begin, those before it point to this object: the last of them ends it.
void Answer::generate() {
  std::size_t begun = 0;
  try {
    for (; begun < choices_.size(); ++begun) {
      generator_.begin(request_.prompts[begun / n()], request_.sampling, begun, *this);
    }
  } catch (...) {
    if (begun == 0) throw;
    error_ = std::current_exception();
    is_heard_ = false;  // those that have begun end before their next pass
    ended_ += choices_.size() - begun;
  }
}

bool Answer::token(std::size_t number, const generate::NextToken& next) {
  Choice& choice = choices_[number];
  AnswerPiece piece = {number, {}, {}, Finish::none};
  ++usage_.completion_tokens;
  ++choice.generated;
  const std::string text = next.is_stop ? std::string() : text_of(next.id, choice.decoder);
  AnswerToken token = counted(choice, next.id, text);
  if (request_.logprobs) {
    token.log_probabilities = generate::log_probabilities(next.logits, next.id, *request_.logprobs);
    piece.tokens.push_back(std::move(token));
  }
  piece.text = choice.stream.push(choice.lead.push(choice.search.push(text)));
  if (next.is_stop || choice.search.found()) {
    piece.finish = Finish::stop;
  } else if (choice.generated == request_.sampling.max_tokens) {
    piece.finish = Finish::length;
  }
  const bool ends = piece.finish != Finish::none;
  if (ends) {
    piece.text += choice.stream.push(choice.lead.push(choice.search.finish()));
    piece.text += choice.stream.push(choice.lead.finish());
    piece.text += choice.stream.finish();
  }
  give(std::move(piece));
  return !ends && is_heard_;
}

}  // namespace

bool scores_prompts(const CompletionRequest& request) { return request.echo && request.logprobs; }

void begin_completion(generate::Generator& generator, const io::Tokenizer& tokenizer,
                      std::shared_ptr<const CompletionRequest> request, AnswerListener listener,
                      AnswerEnd end) {
  auto answer = std::make_unique<Answer>(generator, tokenizer, std::move(request),
                                         std::move(listener), std::move(end));
  Answer& begun = *answer;
  begun.begin(std::move(answer));
}

}  // namespace hyperslab::serve
