// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/text_template.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

class TemplateReader {
 public:
  TemplateReader(const std::string& path, std::int64_t tokens) : path_(path), tokens_(tokens) {}

  /// Puts the tokens that `processor` adds around the present ones.
  void add(const json& processor) {
    if (processor.is_null()) return;
    const json type = processor.is_object() ? processor.value("type", json()) : json();
    if (type == "ByteLevel") return;
    if (type == "TemplateProcessing") return add_template(processor);
    const json parts = type == "Sequence" ? processor.value("processors", json()) : json();
    if (!parts.is_array()) {
      refuse("ByteLevel, TemplateProcessing or a Sequence of them",
             type.is_string() ? type : processor);
    }
    for (const json& part : parts) add(part);
  }

  TextTemplate take() { return std::move(text_); }

 private:
  [[noreturn]] void refuse(const std::string& expected, const json& found) const {
    fail_vocabulary(path_, fmt::format("post_processor: expected {}, found {}; set it to null to "
                                       "leave its special tokens out",
                                       expected, shown(found.dump())));
  }

  void add_template(const json& processor) {
    const json single = processor.value("single", json());
    if (!single.is_array()) refuse("a template 'single', a list", single);
    TextTemplate added;
    int texts = 0;
    for (const json& part : single) {
      const json token = part.is_object() ? part.value("SpecialToken", json()) : json();
      const json text = part.is_object() ? part.value("Sequence", json()) : json();
      if (token.is_object()) {
        for (const std::int32_t id : ids_of(processor, token.value("id", json()))) {
          (texts == 0 ? added.before : added.after).push_back(id);
        }
      } else if (text.is_object() && text.value("id", json()) == "A") {
        ++texts;
      } else {
        refuse("special tokens and the text A in the template 'single'", part);
      }
    }
    if (texts != 1) refuse("the text A once in the template 'single'", single);
    text_.before.insert(text_.before.begin(), added.before.begin(), added.before.end());
    text_.after.insert(text_.after.end(), added.after.begin(), added.after.end());
  }

  [[nodiscard]] std::vector<std::int32_t> ids_of(const json& processor, const json& name) const {
    const json all = processor.value("special_tokens", json());
    if (!name.is_string() || !all.is_object() || !all.contains(name.get<std::string>())) {
      refuse("special_tokens with all tokens of the template 'single'", name);
    }
    const json& entry = all[name.get<std::string>()];
    const json ids = entry.is_object() ? entry.value("ids", json()) : json();
    if (!ids.is_array()) refuse("the ids of a special token, a list", entry);
    std::vector<std::int32_t> out;
    for (const json& id : ids) {
      const bool fits =
          id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < tokens_;
      if (!fits) refuse(fmt::format("ids below {}", tokens_), id);
      out.push_back(id.get<std::int32_t>());
    }
    return out;
  }

  const std::string& path_;
  std::int64_t tokens_;
  TextTemplate text_;
};

}  // namespace

TextTemplate read_text_template(const std::string& path, const json& post_processor,
                                std::int64_t tokens) {
  TemplateReader reader(path, tokens);
  reader.add(post_processor);
  return reader.take();
}

}  // namespace hyperslab::io
