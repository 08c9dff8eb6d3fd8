// SPDX-License-Identifier: Apache-2.0
#include "exchange_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "exchange_experts.hpp"
#include "exchange_gemma.hpp"
#include "exchange_neox.hpp"
#include "exchange_olmo.hpp"

namespace hyperslab::interop {
namespace {

constexpr const char* kTimmPatches = "patch_embed.proj.weight";                // timm alone has it
constexpr std::string_view kPhi3Heads = "layers.0.self_attn.qkv_proj.weight";  // Phi-3 alone

/// A matrix of ours by the name of its layer and its number of outputs.
struct Layer {
  std::string name;
  Dim outputs = 0;
};

class Table {
 public:
  std::vector<ExchangedTensor> tensors;

  void same(const std::string& theirs, const std::string& ours, const Shape& shape) {
    reshaped(theirs, shape, ours, shape);
  }
  void reshaped(const std::string& theirs, const Shape& theirs_shape, const std::string& ours,
                const Shape& shape) {
    tensors.push_back({theirs, theirs_shape, {{"model/" + ours, shape}}, false});
  }
  /// A linear layer with the outputs of several of ours one below the other.
  void fused(const std::string& theirs, const std::vector<Layer>& layers, Dim inputs, bool bias) {
    conv1d(theirs, layers, inputs);
    ExchangedTensor& weight = tensors[tensors.size() - 2];
    weight.transposed = false;
    weight.shape = {weight.shape[1], inputs};
    if (!bias) tensors.pop_back();
  }
  void norm(const std::string& theirs, const std::string& ours, Dim width, bool bias) {
    same(theirs + ".weight", ours + ".weight", {width});
    if (bias) same(theirs + ".bias", ours + ".bias", {width});
  }
  /// A norm of Gemma, which multiplies by 1 + weight.
  void offset_norm(const std::string& theirs, const std::string& ours, Dim width) {
    norm(theirs, ours, width, false);
    tensors.back().offset = 1;
  }
  void linear(const std::string& theirs, const Layer& ours, Dim inputs, bool bias) {
    same(theirs + ".weight", ours.name + ".weight", {ours.outputs, inputs});
    if (bias) same(theirs + ".bias", ours.name + ".bias", {ours.outputs});
  }
  /// A Conv1D of GPT-2 with the outputs of several layers side by side.
  void conv1d(const std::string& theirs, const std::vector<Layer>& layers, Dim inputs) {
    ExchangedTensor weight = {theirs + ".weight", {}, {}, true};
    ExchangedTensor bias = {theirs + ".bias", {}, {}, false};
    Dim outputs = 0;
    for (const Layer& layer : layers) {
      weight.ours.push_back({"model/" + layer.name + ".weight", {layer.outputs, inputs}});
      bias.ours.push_back({"model/" + layer.name + ".bias", {layer.outputs}});
      outputs += layer.outputs;
    }
    weight.shape = {inputs, outputs};
    bias.shape = {outputs};
    tensors.push_back(weight);
    tensors.push_back(bias);
  }
};

void add_gpt2_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("transformer.h.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  table.norm(theirs + ".ln_1", ours + ".norm1", C, true);
  table.conv1d(theirs + ".attn.c_attn",
               {{attention + ".query", C}, {attention + ".key", C}, {attention + ".value", C}}, C);
  table.conv1d(theirs + ".attn.c_proj", {{attention + ".output", C}}, C);
  table.norm(theirs + ".ln_2", ours + ".norm2", C, true);
  table.conv1d(theirs + ".mlp.c_fc", {{ours + ".mlp.up", spec.ffn_width}}, C);
  table.conv1d(theirs + ".mlp.c_proj", {{ours + ".mlp.down", C}}, spec.ffn_width);
}

/// The norms of a block, and attention between them.
void add_llama_attention(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("model.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  const bool bias = spec.has_qkv_bias();
  table.norm(theirs + ".input_layernorm", ours + ".norm1", C, false);
  table.linear(theirs + ".self_attn.q_proj", {attention + ".query", spec.query_width()}, C, bias);
  table.linear(theirs + ".self_attn.k_proj", {attention + ".key", spec.kv_width()}, C, bias);
  table.linear(theirs + ".self_attn.v_proj", {attention + ".value", spec.kv_width()}, C, bias);
  table.linear(theirs + ".self_attn.o_proj", {attention + ".output", C}, spec.query_width(),
               spec.bias);
  if (spec.qk_norm != model::QkNorm::none) {
    const bool whole = spec.qk_norm == model::QkNorm::width;
    table.norm(theirs + ".self_attn.q_norm", attention + ".query_norm",
               whole ? spec.query_width() : spec.head_width(), false);
    table.norm(theirs + ".self_attn.k_norm", attention + ".key_norm",
               whole ? spec.kv_width() : spec.head_width(), false);
  }
  table.norm(theirs + ".post_attention_layernorm", ours + ".norm2", C, false);
}

template <ExpertTensors kind>
void add_llama_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  add_llama_attention(table, spec, layer);
  if (spec.experts.at(layer)) {
    std::ranges::move(experts_of_layer(spec, layer, kind), std::back_inserter(table.tensors));
    return;
  }
  const std::string theirs = fmt::format("model.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const Dim C = spec.width;
  const Dim F = spec.ffn_width;
  table.linear(theirs + ".mlp.gate_proj", {ours + ".mlp.gate", F}, C, spec.bias);
  table.linear(theirs + ".mlp.up_proj", {ours + ".mlp.up", F}, C, spec.bias);
  table.linear(theirs + ".mlp.down_proj", {ours + ".mlp.down", C}, F, spec.bias);
}

void add_olmo2_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("model.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  const Dim F = spec.ffn_width;
  table.linear(theirs + ".self_attn.q_proj", {attention + ".query", spec.query_width()}, C, false);
  table.linear(theirs + ".self_attn.k_proj", {attention + ".key", spec.kv_width()}, C, false);
  table.linear(theirs + ".self_attn.v_proj", {attention + ".value", spec.kv_width()}, C, false);
  table.linear(theirs + ".self_attn.o_proj", {attention + ".output", C}, spec.query_width(), false);
  table.norm(theirs + ".self_attn.q_norm", attention + ".query_norm", spec.query_width(), false);
  table.norm(theirs + ".self_attn.k_norm", attention + ".key_norm", spec.kv_width(), false);
  table.norm(theirs + ".post_attention_layernorm", ours + ".attention_norm", C, false);
  table.linear(theirs + ".mlp.gate_proj", {ours + ".mlp.gate", F}, C, false);
  table.linear(theirs + ".mlp.up_proj", {ours + ".mlp.up", F}, C, false);
  table.linear(theirs + ".mlp.down_proj", {ours + ".mlp.down", C}, F, false);
  table.norm(theirs + ".post_feedforward_layernorm", ours + ".mlp_norm", C, false);
}

void add_phi3_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("model.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  const Dim F = spec.ffn_width;
  table.norm(theirs + ".input_layernorm", ours + ".norm1", C, false);
  table.fused(theirs + ".self_attn.qkv_proj",
              {{attention + ".query", spec.query_width()},
               {attention + ".key", spec.kv_width()},
               {attention + ".value", spec.kv_width()}},
              C, false);
  table.linear(theirs + ".self_attn.o_proj", {attention + ".output", C}, spec.query_width(), false);
  table.norm(theirs + ".post_attention_layernorm", ours + ".norm2", C, false);
  table.fused(theirs + ".mlp.gate_up_proj", {{ours + ".mlp.gate", F}, {ours + ".mlp.up", F}}, C,
              false);
  table.linear(theirs + ".mlp.down_proj", {ours + ".mlp.down", C}, F, false);
}

void add_gemma_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("model.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  const Dim F = spec.ffn_width;
  table.offset_norm(theirs + ".input_layernorm", ours + ".norm1", C);
  table.linear(theirs + ".self_attn.q_proj", {attention + ".query", spec.query_width()}, C, false);
  table.linear(theirs + ".self_attn.k_proj", {attention + ".key", spec.kv_width()}, C, false);
  table.linear(theirs + ".self_attn.v_proj", {attention + ".value", spec.kv_width()}, C, false);
  table.linear(theirs + ".self_attn.o_proj", {attention + ".output", C}, spec.query_width(), false);
  if (is_of_gemma3(spec)) {
    table.offset_norm(theirs + ".self_attn.q_norm", attention + ".query_norm", spec.head_width());
    table.offset_norm(theirs + ".self_attn.k_norm", attention + ".key_norm", spec.head_width());
  }
  table.offset_norm(theirs + ".post_attention_layernorm", ours + ".attention_norm", C);
  table.offset_norm(theirs + ".pre_feedforward_layernorm", ours + ".norm2", C);
  table.linear(theirs + ".mlp.gate_proj", {ours + ".mlp.gate", F}, C, false);
  table.linear(theirs + ".mlp.up_proj", {ours + ".mlp.up", F}, C, false);
  table.linear(theirs + ".mlp.down_proj", {ours + ".mlp.down", C}, F, false);
  table.offset_norm(theirs + ".post_feedforward_layernorm", ours + ".mlp_norm", C);
}

void add_neox_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("gpt_neox.layers.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  table.norm(theirs + ".input_layernorm", ours + ".norm1", C, true);
  table.fused(theirs + ".attention.query_key_value",
              {{attention + ".query", C}, {attention + ".key", C}, {attention + ".value", C}}, C,
              true);
  for (std::size_t i = table.tensors.size() - 2; i < table.tensors.size(); ++i) {
    table.tensors[i].heads = spec.heads;
  }
  table.linear(theirs + ".attention.dense", {attention + ".output", C}, C, true);
  table.norm(theirs + ".post_attention_layernorm", ours + ".norm2", C, true);
  table.linear(theirs + ".mlp.dense_h_to_4h", {ours + ".mlp.up", spec.ffn_width}, C, true);
  table.linear(theirs + ".mlp.dense_4h_to_h", {ours + ".mlp.down", C}, spec.ffn_width, true);
}

void add_vit_ends(Table& table, const model::ModelSpec& spec, const std::string& patches,
                  const std::string& class_token, const std::string& positions) {
  const model::ImageSpec& image = spec.image;
  const Dim C = spec.width;
  table.reshaped(patches + ".weight", {C, image.channels, image.patch, image.patch},
                 "embedding.patch.weight", {C, image.patch_values()});
  table.same(patches + ".bias", "embedding.patch.bias", {C});
  if (image.pooling == model::Pooling::token) {
    table.reshaped(class_token, {1, 1, C}, "embedding.class_token", {C});
  }
  table.reshaped(positions, {1, spec.context, C}, "embedding.position.weight", {spec.context, C});
}

void add_vit_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string theirs = fmt::format("vit.encoder.layer.{}", layer);
  const std::string ours = fmt::format("blocks.{}", layer);
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  table.norm(theirs + ".layernorm_before", ours + ".norm1", C, true);
  for (const char* part : {"query", "key", "value"}) {
    table.linear(fmt::format("{}.attention.attention.{}", theirs, part),
                 {fmt::format("{}.{}", attention, part), C}, C, spec.has_qkv_bias());
  }
  table.linear(theirs + ".attention.output.dense", {attention + ".output", C}, C, true);
  table.norm(theirs + ".layernorm_after", ours + ".norm2", C, true);
  table.linear(theirs + ".intermediate.dense", {ours + ".mlp.up", spec.ffn_width}, C, true);
  table.linear(theirs + ".output.dense", {ours + ".mlp.down", C}, spec.ffn_width, true);
}

void add_timm_block(Table& table, const model::ModelSpec& spec, Dim layer) {
  const std::string ours = fmt::format("blocks.{}", layer);  // timm calls blocks as we do
  const std::string attention = ours + ".attention";
  const Dim C = spec.width;
  table.norm(ours + ".norm1", ours + ".norm1", C, true);
  table.fused(ours + ".attn.qkv",
              {{attention + ".query", C}, {attention + ".key", C}, {attention + ".value", C}}, C,
              spec.has_qkv_bias());
  table.linear(ours + ".attn.proj", {attention + ".output", C}, C, true);
  table.norm(ours + ".norm2", ours + ".norm2", C, true);
  table.linear(ours + ".mlp.fc1", {ours + ".mlp.up", spec.ffn_width}, C, true);
  table.linear(ours + ".mlp.fc2", {ours + ".mlp.down", C}, spec.ffn_width, true);
}

std::vector<ExchangedTensor> image_tensors(const model::ModelSpec& spec, Library library) {
  const bool timm = library == Library::timm;
  Table table;
  if (timm) {
    add_vit_ends(table, spec, "patch_embed.proj", "cls_token", "pos_embed");
  } else {
    add_vit_ends(table, spec, "vit.embeddings.patch_embeddings.projection",
                 "vit.embeddings.cls_token", "vit.embeddings.position_embeddings");
  }
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    timm ? add_timm_block(table, spec, layer) : add_vit_block(table, spec, layer);
  }
  const char* after_pooling = spec.image.pooling == model::Pooling::mean ? "fc_norm" : "norm";
  table.norm(timm ? after_pooling : "vit.layernorm", "final_norm", spec.width, true);
  table.linear(timm ? "head" : "classifier", {"head", spec.image.classes}, spec.width, true);
  return table.tensors;
}

using AddBlock = void (*)(Table&, const model::ModelSpec&, Dim);

/// Names of parameters before and after the blocks.
struct Ends {
  const char* tokens = "model.embed_tokens.weight";
  const char* norm = "model.norm";
  const char* head = "lm_head.weight";
};
constexpr Ends kGpt2Ends = {"transformer.wte.weight", "transformer.ln_f", "lm_head.weight"};
constexpr Ends kNeoxEnds = {"gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm",
                            "embed_out.weight"};

std::vector<ExchangedTensor> language_tensors(const model::ModelSpec& spec, AddBlock add_block) {
  const bool gpt2 = spec.family == model::Family::gpt2;
  const Ends ends = gpt2 ? kGpt2Ends : is_of_neox(spec) ? kNeoxEnds : Ends();
  const Shape vocabulary = {spec.vocabulary, spec.width};
  Table table;
  table.same(ends.tokens, "embedding.token.weight", vocabulary);
  if (gpt2) {
    table.same("transformer.wpe.weight", "embedding.position.weight", {spec.context, spec.width});
  }
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    add_block(table, spec, layer);
  }
  if (is_of_gemma(spec)) {
    table.offset_norm(ends.norm, "final_norm", spec.width);
  } else {
    table.norm(ends.norm, "final_norm", spec.width, spec.norm == ops::NormKind::layernorm);
  }
  if (!spec.tie_embeddings) table.same(ends.head, "head.weight", vocabulary);
  return table.tensors;
}

std::vector<ExchangedTensor> unscaled_tensors(const model::ModelSpec& spec, Library library) {
  if (spec.is_of_images()) return image_tensors(spec, library);
  if (spec.family == model::Family::gpt2) return language_tensors(spec, add_gpt2_block);
  if (is_of_neox(spec)) return language_tensors(spec, add_neox_block);
  if (is_of_gemma(spec)) return language_tensors(spec, add_gemma_block);
  if (is_of_olmo2(spec)) return language_tensors(spec, add_olmo2_block);
  if (is_of_phi3(spec)) return language_tensors(spec, add_phi3_block);
  return language_tensors(spec, add_llama_block<ExpertTensors::apart>);
}

}  // namespace

bool is_of_phi3(const model::ModelSpec& spec) {
  return spec.family == model::Family::llama && spec.rope.fraction != 1 && !is_of_neox(spec) &&
         !spec.experts;
}

std::vector<ExchangedTensor> exchanged_tensors(const model::ModelSpec& spec, Library library) {
  std::vector<ExchangedTensor> tensors = unscaled_tensors(spec, library);
  for (ExchangedTensor& tensor : tensors) {
    if (tensor.ours.front().name.starts_with("model/final_norm.")) {
      tensor.scale = static_cast<float>(spec.parametrization().logit_factor());
    }
  }
  return tensors;
}

std::vector<ExchangedTensor> tensors_of_folder(const model::ModelSpec& spec,
                                               const io::SafetensorsReader& folder) {
  const auto has = [&](const std::string& name) { return folder.tensors().contains(name); };
  if (spec.is_of_images()) {
    return image_tensors(spec, has(kTimmPatches) ? Library::timm : Library::transformers);
  }
  if (spec.experts) {
    const bool fused = std::ranges::any_of(
        folder.tensors(), [](const auto& one) { return is_of_fused_experts(one.first); });
    return language_tensors(spec, fused ? add_llama_block<ExpertTensors::fused>
                                        : add_llama_block<ExpertTensors::apart>);
  }
  const std::string heads(kPhi3Heads);
  const bool phi3 = spec.family == model::Family::llama && (has("model." + heads) || has(heads));
  return phi3 ? language_tensors(spec, add_phi3_block) : exchanged_tensors(spec);
}

void reorder_heads(const float* x, Dim heads, Dim parts, Dim head_elements, HeadOrder to,
                   float* y) {
  for (Dim head = 0; head < heads; ++head) {
    for (Dim part = 0; part < parts; ++part) {
      const Dim interleaved = (head * parts + part) * head_elements;
      const Dim apart = (part * heads + head) * head_elements;
      std::copy_n(x + (to == HeadOrder::apart ? interleaved : apart), head_elements,
                  y + (to == HeadOrder::apart ? apart : interleaved));
    }
  }
}

void transpose(const float* x, Dim rows, Dim columns, float* y) {
  constexpr Dim kTile = 32;  // both sides of a tile stay in the cache
  for (Dim i = 0; i < rows; i += kTile) {
    for (Dim j = 0; j < columns; j += kTile) {
      for (Dim row = i; row < std::min(i + kTile, rows); ++row) {
        for (Dim column = j; column < std::min(j + kTile, columns); ++column) {
          y[column * rows + row] = x[row * columns + column];
        }
      }
    }
  }
}

}  // namespace hyperslab::interop
