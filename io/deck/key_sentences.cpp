// SPDX-License-Identifier: Apache-2.0
// Sentences of the run, the model and its data.
#include "key_sentences.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace hyperslab::deck {
namespace {

constexpr auto kModelSentences = std::to_array<KeySentence>({
    {"run", "What a run is called, where it writes and on what it runs."},
    {"run.name", "Name of the run, a file name."},
    {"run.directory",
     "Folder for the run's records and, unless checkpoint.directory is given, its checkpoints; "
     "null: runs/ and the name."},
    {"run.seed",
     "Number that decides initial weights, order of samples, dropout masks and synthetic tokens."},
    {"run.device",
     "Where ranks compute; auto takes GPUs if the program was built with CUDA and finds one."},
    {"run.deterministic",
     "Sum in a fixed order: equal runs on GPUs give equal bits, and what generate and serve add "
     "has the log-probabilities of a forward pass, bit for bit; slower, on GPUs by far."},
    {"run.hang_timeout_seconds",
     "Seconds without any progress after which the run ends with code 8, three times as many until "
     "its first steps have ended; 0: never."},
    {"run.walltime_minutes",
     "Minutes from the start of the program after which it must be gone: it saves and ends with "
     "code 75 in time; 0: no limit. A job's limit in Slurm counts anyway."},
    {"run.check_links",
     "Time every group of ranks and a matrix product of every rank before the first step and name "
     "slow ones; auto: on GPUs."},
    {"run.machine",
     "Machine file (bench --machine) that the measured groups are compared with; null: groups of "
     "one kind are compared with each other."},
    {"run.tensorboard", "Also write the metrics of each step to run.directory/tensorboard."},
    {"run.compare_replicas_every",
     "Steps between comparisons of what data ranks hold alike, which name a rank that differs and "
     "end the run with code 7; 0: never."},

    {"model", "The transformer; the family only sets defaults."},
    {"model.family",
     "What the model reads and which defaults its other keys have: text, as GPT-2 or as "
     "Llama; images, as a vision transformer."},
    {"model.layers", "Number of transformer blocks."},
    {"model.width", "Features of a token in the residual stream."},
    {"model.heads", "Heads of attention; each has width / heads features."},
    {"model.kv_heads",
     "Heads of keys and values, which groups of heads share; 0: as many as heads."},
    {"model.head_width", "Features of a head; 0: width / heads."},
    {"model.ffn_width",
     "Inner features of the feed-forward layer; 0: 4 x width, with swiglu and "
     "geglu 8/3 x width, rounded up to a multiple of 64."},
    {"model.vocabulary", "Rows of the token table; ids of tokens are below it."},
    {"model.context",
     "Tokens of a sample, and the most that attention sees; vit: its patches and the class token."},
    {"model.image", "Rows and columns of pixels of an image, with family vit."},
    {"model.patch", "Rows and columns of pixels of a patch, with family vit; divides model.image."},
    {"model.channels", "Channels of an image: 3, red, green and blue, or 1, its luma."},
    {"model.classes", "Classes that images are sorted into, with family vit."},
    {"model.pooling",
     "What the class head reads: a class token before the patches, or the mean of all patches."},
    {"model.position",
     "How tokens get their position: a learned table, sinusoids, rotation of "
     "queries and keys, or not at all."},
    {"model.rope_theta", "Base of the wavelengths of rope."},
    {"model.rotary_fraction", "Share of a head's features that rope turns, the first ones."},
    {"model.rope_scaling",
     "How rope is stretched to more tokens than a model was trained on: all angles divided "
     "(linear), those of long wavelengths (llama3), or a ramp between both and larger scores "
     "(yarn)."},
    {"model.rope_factor", "What rope_scaling divides angles by."},
    {"model.rope_original_context",
     "Tokens that a model was trained on before, for llama3 and yarn."},
    {"model.rope_low_factor",
     "llama3: wavelengths above rope_original_context / rope_low_factor are divided whole."},
    {"model.rope_high_factor",
     "llama3: wavelengths below rope_original_context / rope_high_factor stay."},
    {"model.rope_beta_fast", "yarn: from so many turns in rope_original_context on angles stay."},
    {"model.rope_beta_slow", "yarn: up to so many turns they are divided whole."},
    {"model.rope_attention_factor",
     "yarn: factor of cosines and sines; 0: 0.1 ln(rope_factor) + 1."},
    {"model.rope_local_theta",
     "Base of the wavelengths of rope, unscaled, in layers with a window; 0: as in all others."},
    {"model.norm", "Kind of normalization."},
    {"model.norm_place",
     "Normalize the input of a sublayer (pre), the sum after it (post), its input and its output "
     "(sandwich), or its output alone, before it is added (post_sublayer)."},
    {"model.parallel_block",
     "Attention and feed-forward network read the same stream and are added to it together."},
    {"model.norm_eps", "What normalization adds to the variance, or to the mean square."},
    {"model.activation",
     "Activation of the feed-forward layer; swiglu, geglu and geglu_tanh "
     "have a gate."},
    {"model.bias", "Whether linear layers and layernorm have a bias."},
    {"model.qkv_bias",
     "Whether queries, keys and values have a bias although model.bias is false."},
    {"model.unbiased_qkv",
     "Whether queries, keys and values have no bias although model.bias is true."},
    {"model.qk_norm",
     "RMSNorm of queries and keys before rope: of every head by itself (Qwen3), of all heads of a "
     "token together (width, OLMo 2), or none."},
    {"model.tie_embeddings",
     "Whether the head uses the token table instead of a matrix of its "
     "own."},
    {"model.dropout",
     "Share of elements set to zero in training: of embeddings and sublayers' "
     "outputs, with the reference attention also of its probabilities."},
    {"model.drop_path",
     "Stochastic depth: share of samples that skip a sublayer of the last block; with family vit."},
    {"model.drop_path_rule",
     "Share of samples that skip a sublayer of earlier blocks: growing from 0 with the depth "
     "(linear), or that of the last (constant)."},
    {"model.label_smoothing", "Share of a target that all classes divide evenly; with family vit."},
    {"model.attention",
     "How attention is computed; auto takes the fastest path that can do it, reference keeps all "
     "probabilities. fused keeps none: on GPUs by cuDNN's kernels or our own, whichever suit; "
     "cudnn is its other name there."},
    {"model.window",
     "Sliding window: the most tokens, its own and those before it, that a token attends to; "
     "0: all."},
    {"model.window_full_every",
     "Every layer whose number, from 1 on, it divides has no window; 0: none."},
    {"model.window_first_layer", "Layers before this one, counted from 0, have no window."},
    {"model.attention_scale",
     "Factor of the products of queries and keys; 0: 1 / sqrt(head width)."},
    {"model.attention_softcap",
     "Scores s of attention become softcap x tanh(s / softcap); 0: they stay."},
    {"model.attention_sinks",
     "Every head has a learned logit that takes part in the softmax of its scores and has no "
     "value."},
    {"model.logit_softcap", "As attention_softcap, of the head's logits."},
    {"model.init",
     "Standard deviation of initial matrices: init_std (normal), or sqrt(2 / (inputs + outputs)) "
     "(xavier, with family vit); queries, keys and values count as one matrix, gate and up, too."},
    {"model.init_std", "Standard deviation of the initial weights."},
    {"model.position_std",
     "Standard deviation of the initial learned positions and class token, with family vit; 0: "
     "init_std."},
    {"model.scale_residual_init",
     "Whether matrices that add to the residual stream begin smaller, "
     "with init_std / sqrt(2 x layers)."},
    {"model.mup_base_width",
     "Width of the model on which the learning rate is tuned: those of this one's parameters, its "
     "initial values and logits follow from width / mup_base_width (muP, Yang et al. 2022); 0: "
     "off."},
    {"model.mup_base_head_width",
     "Head width of that model, with mup_base_width; 0: the same as here, as more heads make a "
     "wider model."},
    {"model.embedding_scale",
     "Factor of a token's vector before positions are added; 0: sqrt(width) with sinusoidal "
     "positions (Vaswani et al. 2017), of mup_base_width if there is one, else 1."},
    {"model.frozen_format",
     "How the blocks' matrices are stored below adapters; compute: in the dtype of "
     "precision.compute; nf4: 4.13 bits an element (QLoRA)."},
    {"model.bos_token", "Id that begins a text, which exports name; -1: as the vocabulary says."},
    {"model.eos_tokens", "Ids that end a text beside those of the vocabulary; exports name them."},

    {"data",
     "The tokens or images. Paths are relative to the folder in which the program is started."},
    {"data.train",
     "Token files to train on, as paths or globs (.bin, .npy, .h5), or synthetic: "
     "generated tokens."},
    {"data.validation", "Token files to validate on, in the same forms."},
    {"data.weights",
     "How often samples come from each entry of data.train, in proportion: a number for each, and "
     "again for each of data.weight_steps; empty: all samples equally often."},
    {"data.weight_steps", "First steps of further data.weights."},
    {"data.sampling",
     "Where samples begin: blocks follow each other and are read once an epoch, "
     "windows begin at any token, drawn by the seed."},
    {"data.dtype", "Type of the ids in .bin files without a header."},
    {"data.vocabulary",
     "Vocabulary of the tokens: its folder, its tokenizer.json, or bytes; for "
     "bits per byte and for generate, and kept in checkpoints."},
    {"data.ignore_token", "Id that does not count as a target; -1: all count."},
    {"data.join_files",
     "Whether token files are one text: a sample may then go from the end of a file into the next; "
     "else each holds tokens of one file, and what remains of a file is in none."},
    {"data.loss_mask",
     "Whether only those tokens count as targets that the files' loss_mask "
     "marks."},
    {"data.token_weights",
     "Whether the files' column weights are weights of targets in the mean of the loss "
     "(docs/losses.md)."},
    {"data.validation_fraction",
     "Share of the training documents, chosen by hash, that is set "
     "aside for validation."},
    {"data.end_token", "Id that ends a document in files without a list of documents; -1: none."},
    {"data.documents",
     "What tokens of a sample attend to: all before them (joined), or those of their own document "
     "(masked), which data.end_token ends; positions of a table then begin again with each."},
    {"data.packing",
     "What a training sample holds: model.context tokens that follow each other (contiguous), one "
     "document or a part of one (document), or several that fit together (best_fit); the rest of "
     "it is padding."},
    {"data.predict_starts",
     "Whether the first token of a document, after a data.end_token, counts as a target."},
    {"data.broken_images",
     "What becomes of an image that cannot be decoded: the run ends and names it, or the sample "
     "does "
     "not count."},
    {"data.decode",
     "Where images are decoded: by threads of the CPU, or by the GPU's nvJPEG; auto: by the CPU, "
     "which "
     "was faster beside a step."},
    {"data.threads", "Threads of a rank that decode images; 0: as many as it has cores."},

    {"augment", "What happens to an image between its file and its patches."},
    {"augment.repeats",
     "Repeated augmentation: samples in a row that are one image, each augmented by other random "
     "numbers; an epoch stays as many samples as there are images."},
    {"augment.crop",
     "Part of an image that is trained on: a random one by area and aspect ratio, a random window "
     "of "
     "the image with a margin, or the middle."},
    {"augment.scale", "Least and largest share of the image's area, with crop resized."},
    {"augment.ratio", "Least and largest width / height, with crop resized."},
    {"augment.pad", "Pixels of the margin of zeros, with crop padded."},
    {"augment.interpolation", "Filter of every change of size; both are antialiased."},
    {"augment.validation_crop",
     "Share of the shorter side that is kept: the middle of model.image / validation_crop pixels."},
    {"augment.flip", "Probability of a mirror image."},
    {"augment.policy", "Which further operations change an image."},
    {"augment.policy_operations", "Operations of randaugment on an image, one after the other."},
    {"augment.policy_magnitude", "How far operations of randaugment go."},
    {"augment.policy_fill",
     "Level, 0 to 255, of pixels that a policy's shifts, shears and rotations uncover."},
    {"augment.brightness", "Largest relative change of the brightness."},
    {"augment.contrast", "Largest relative change of the contrast."},
    {"augment.saturation", "Largest relative change of the saturation."},
    {"augment.mixup", "Alpha of the beta distribution of mixup; 0: none."},
    {"augment.cutmix", "Alpha of the beta distribution of cutmix; 0: none."},
    {"augment.mix", "Probability that a draw mixes its samples; mix_mode says which share one."},
    {"augment.mix_mode",
     "Samples that share a draw of mixing: two next to each other, which are mixed (pair), or all "
     "of a global batch, each mixed with another by a random permutation (batch)."},
    {"augment.mix_switch", "Probability of cutmix, where mixup is on, too."},
    {"augment.erase", "Probability that a random rectangle is erased."},
    {"augment.erase_area", "Least and largest share of the image that the rectangle has."},
    {"augment.erase_ratio", "Least and largest height / width of the rectangle."},
    {"augment.mean", "Mean of the channels in [0, 1], which is subtracted."},
    {"augment.deviation", "Standard deviation of the channels, by which they are divided."},
});

}  // namespace

std::span<const KeySentence> key_sentences() {
  static const std::vector<KeySentence> all = [] {
    std::vector<KeySentence> made(kModelSentences.begin(), kModelSentences.end());
    const std::span<const KeySentence> others = training_sentences();
    made.insert(made.end(), others.begin(), others.end());
    return made;
  }();
  return all;
}

std::string_view sentence_of(std::string_view key) {
  const auto found = std::ranges::find(key_sentences(), key, &KeySentence::key);
  return found == key_sentences().end() ? std::string_view() : found->sentence;
}

}  // namespace hyperslab::deck
