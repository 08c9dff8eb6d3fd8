// SPDX-License-Identifier: Apache-2.0
#include "exchange_keys.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace hyperslab::interop {
namespace {

/// A key that must be absent, null or have this value.
struct Neutral {
  std::string_view key;
  std::string_view json;  ///< empty: must be absent or null
};

constexpr std::array<Neutral, 9> kNeutral = {{
    {"add_cross_attention", "false"},
    {"cross_attention_hidden_size", ""},
    {"is_encoder_decoder", "false"},
    {"per_layer_config", ""},
    {"pruned_heads", "{}"},
    {"quantization_config", ""},
    {"sliding_window", ""},
    {"tie_encoder_decoder", "false"},
    {"use_sliding_window", "false"},
}};
constexpr std::array<Neutral, 2> kNeutralGpt2 = {{
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"scale_attn_weights", "true"},
}};
constexpr std::array<Neutral, 15> kNeutralLlama = {{
    {"alibi", "false"},
    {"attention_multiplier", ""},
    {"attn_logit_softcapping", ""},
    {"clip_qkv", ""},
    {"embedding_multiplier", "1"},
    {"final_logit_softcapping", ""},
    {"layer_types", ""},
    {"logits_scaling", "1"},
    {"no_rope_layers", ""},
    {"partial_rotary_factor", "1"},
    {"query_pre_attn_scalar", ""},
    {"residual_multiplier", "1"},
    {"rope_interleaved", "false"},
    {"router_jitter_noise", "0"},
    {"use_qk_norm", "false"},
}};

constexpr std::array<Neutral, 1> kNeutralVit = {{
    {"use_mask_token", "false"},
}};

constexpr std::array<std::string_view, 100> kHarmless = {
    // origin of the model, and how it is run
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "_experts_implementation", "_name_or_path", "architectures", "attn_implementation",
    "chunk_size_feed_forward", "dtype", "experts_implementation", "gradient_checkpointing",
    "is_decoder", "model_type", "name_or_path", "output_attentions", "output_hidden_states",
    "output_past", "pretraining_tp", "return_dict", "tf_legacy_loss", "tokenizer_class",
    "torch_dtype", "torchscript", "transformers_version", "use_bfloat16", "use_cache",
    "_attn_implementation_internal", "_flash_attn_2_enabled", "cache_implementation",
    "is_llama_config", "num_logits_to_keep", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "use_flash_attention", "use_flash_attn",
    // asks for logits of routers as an output, and for their loss in training by transformers
    "output_router_logits",
    // lengths and old names that transformers' own classes do not read
    "attention_probs_dropout_prob", "hidden_dropout_prob", "max_sequence_length",
    "max_window_layers", "model_max_length", "sliding_window_size", "tokenizer_model_max_length",
    "tokenizer_padding_side",
    // heads other than a language model's
    "_num_labels", "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params",
    // a vision transformer without its pooler, and timm's
    "encoder_stride", "label_descriptions", "label_names", "num_features", "pooler_act",
    "pooler_output_size",
    // generation by transformers
    "bad_words_ids", "begin_suppress_tokens", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "prefix",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "top_k", "top_p", "typical_p",
    // ids that a language model does not treat apart
    "cls_token_id", "mask_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
    // GPT-2: its masks have the length of n_positions; the order of attention's products decides
    // only rounding
    "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn"};

const Neutral* find_neutral(model::Family family, const std::string& key) {
  const auto find = [&](std::span<const Neutral> table) -> const Neutral* {
    const auto found = std::ranges::find(table, std::string_view(key), &Neutral::key);
    return found == table.end() ? nullptr : &*found;
  };
  const Neutral* common = find(kNeutral);
  if (common != nullptr) return common;
  if (family == model::Family::vit) return find(kNeutralVit);
  return family == model::Family::gpt2 ? find(kNeutralGpt2) : find(kNeutralLlama);
}

}  // namespace

UnreadKey check_unread(model::Family family, const std::string& key, const nlohmann::json& value) {
  if (const Neutral* rule = find_neutral(family, key)) {
    const bool fits =
        value.is_null() || (!rule->json.empty() && value == nlohmann::json::parse(rule->json));
    return fits ? UnreadKey::neutral : UnreadKey::refused;
  }
  const bool harmless = std::ranges::find(kHarmless, std::string_view(key)) != kHarmless.end();
  return harmless || value.is_null() ? UnreadKey::harmless : UnreadKey::unknown;
}

std::string neutral_value(model::Family family, const std::string& key) {
  const Neutral* rule = find_neutral(family, key);
  return rule == nullptr ? "" : std::string(rule->json);
}

}  // namespace hyperslab::interop
