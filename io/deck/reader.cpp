// SPDX-License-Identifier: Apache-2.0
#include "reader.hpp"

#include "hyperslab/deck/deck.hpp"
#include "shorten.hpp"

namespace hyperslab::deck {
namespace {

/// The family's defaults come before any other key of the model, wherever it stands.
void start_from_family(Node& root, train::Config& config) {
  auto* section = find_entry(root, "model");
  auto* family = section == nullptr ? nullptr : find_entry(section->value, "family");
  if (family == nullptr) return;
  const auto row = std::ranges::find(kFamilies, family->value.text, &Name<model::Family>::first);
  if (row != kFamilies.end()) config.model = model::preset(row->second);
}

bool is_unused(std::string_view key, const Surroundings& surroundings) {
  return std::ranges::any_of(surroundings.unused,
                             [&](std::string_view unused) { return key.starts_with(unused); });
}

void require_keys(Reader& reader, const Surroundings& surroundings, bool of_images) {
  const auto require = [&](std::string_view key) {
    if (!is_unused(key, surroundings)) reader.require(key);
  };
  for (const auto key : kRequiredKeys) {
    if (key != "train.global_batch" || surroundings.for_training) require(key);
  }
  if (of_images) {
    std::ranges::for_each(kRequiredOfImages, require);
  } else {
    std::ranges::for_each(kRequiredOfText, require);
  }
}

Dim default_ffn_width(const model::ModelSpec& spec) {
  constexpr Dim kMultiple = 64;
  if (!ops::is_gated(spec.activation)) return 4 * spec.width;
  const Dim unit = 3 * kMultiple;
  return (8 * spec.width + unit - 1) / unit * kMultiple;
}

/// Fills the values that the deck left to be derived from other keys.
void resolve(train::Config& config) {
  if (config.run.directory.empty()) config.run.directory = "runs/" + config.run.name;
  auto& spec = config.model;
  if (spec.kv_heads == 0) spec.kv_heads = spec.heads;
  if (spec.ffn_width == 0) spec.ffn_width = default_ffn_width(spec);
  if (spec.experts && spec.experts.width == 0) spec.experts.width = spec.ffn_width;
  spec.embedding_scale = spec.scale_of_embeddings();
  if (spec.is_of_images()) {
    if (spec.vocabulary == 0) spec.vocabulary = spec.image.classes;
    if (spec.context == 0) spec.context = spec.image.tokens();
  }
  auto& train = config.train;
  const std::int64_t data = config.parallel.data;
  if (train.global_batch == 0)
    train.global_batch = std::max<std::int64_t>(1, train.microbatch) * data;
  if (train.microbatch == 0 && train.global_batch % data == 0) {
    train.microbatch = train.global_batch / data;
  }
}

/// True if it holds for the rule's key or another that it reads.
template <class Predicate>
bool any_key_of(const Rule& rule, const Predicate& holds) {
  if (holds(rule.key)) return true;
  for (const auto word : std::views::split(rule.reads, ' ')) {
    if (holds(std::string_view(word.begin(), word.end()))) return true;
  }
  return false;
}

/// Mark of the rule's key. If the deck leaves that key out, another key of its section that the
/// rule reads and the deck gives has the mark.
Mark mark_of(const Rule& rule, const Reader& reader) {
  const auto section = rule.key.substr(0, rule.key.find('.') + 1);
  std::string_view given = rule.key;
  (void)any_key_of(rule, [&](std::string_view key) {
    if (!key.starts_with(section) || !reader.has(key)) return false;
    given = key;
    return true;
  });
  return reader.mark_of(given);
}

void check_rules(const train::Config& config, const Surroundings& surroundings,
                 const Reader& reader, Problems& problems) {
  for (const auto& rule : rules()) {
    const auto leave_out = [&](std::string_view key) {
      return reader.is_bad(key) || is_unused(key, surroundings);
    };
    if (any_key_of(rule, leave_out) || rule.holds(config, surroundings)) continue;
    problems.add(mark_of(rule, reader), std::string(rule.key), rule.message(config, surroundings));
  }
}

}  // namespace

train::Config read_deck(const std::string& text, const std::string& file,
                        std::span<const std::string> overrides, const Surroundings& surroundings,
                        std::string* cuts) {
  Problems problems;
  auto root = parse_yaml(text, -1, problems);
  if (root && root->kind == Node::Kind::null) {
    problems.add(root->mark, "", "the deck is empty");
  } else if (root && root->kind != Node::Kind::map) {
    problems.add(root->mark, "",
                 fmt::format("a deck is a map of the sections {}", listed(section_names(), "")));
  }
  if (!root || root->kind != Node::Kind::map) {
    problems.raise(file, overrides);
    return {};  // never: there are problems
  }

  BadKeys bad;
  use_current_names(*root);
  check_structure(*root, problems, bad);
  apply_overrides(overrides, *root, problems, bad);
  train::Config config;
  start_from_family(*root, config);
  Reader reader(*root, problems, bad);
  visit_keys(reader, config);
  require_keys(reader, surroundings, config.model.is_of_images());
  resolve(config);
  const std::string cut = shorten(config, reader);
  if (cuts != nullptr) *cuts = cut;
  check_rules(config, surroundings, reader, problems);
  problems.raise(file, overrides);
  if (config.model.attention == model::AttentionPath::cudnn) {
    config.model.attention = model::AttentionPath::fused;
  }
  return config;
}

}  // namespace hyperslab::deck
