// SPDX-License-Identifier: Apache-2.0
// Sentences of the layout, of training and of what it writes.
#include <array>

#include "key_sentences.hpp"

namespace hyperslab::deck {
namespace {

constexpr auto kTrainingSentences = std::to_array<KeySentence>({
    {"parallel", "How the run is cut over ranks: data x tensor x pipeline x context of them."},
    {"parallel.data", "Ranks that share the samples of a step."},
    {"parallel.tensor", "Ranks that share the matrices of every layer."},
    {"parallel.pipeline", "Ranks that share the layers, in stages."},
    {"parallel.context",
     "Ranks that share the tokens of every sample; attention exchanges heads between them."},
    {"parallel.expert",
     "Neighbouring data ranks, of parallel.data, that hold different experts of every layer and "
     "exchange tokens."},
    {"parallel.expert_exchange",
     "How tokens reach the ranks of their experts. all_gather: every rank gets all tokens and "
     "sends "
     "back sums; all_to_all: rows go to the ranks of their experts, on CPU ranks alone; auto: "
     "all_gather on GPUs."},
    {"parallel.expert_rows",
     "Rows of a rank's experts that memory holds at once with all_gather, divided by the rows of "
     "its tokens; more of them are computed in further parts."},
    {"parallel.sequence",
     "Whether tensor ranks also share the tokens between those matrices, "
     "which saves activations."},
    {"parallel.schedule", "Order in which pipeline ranks take the passes of microbatches."},
    {"parallel.virtual_stages", "Stages on each pipeline rank, with the schedule interleaved."},
    {"parallel.stage_layers", "Blocks of every stage, first to last; empty: cut into equal cost."},
    {"parallel.zero",
     "What data and context ranks share besides samples: 1 the optimizer's state, 2 also the "
     "gradients, 3 also the parameters, 0 nothing."},
    {"parallel.shard",
     "Data ranks that share what parallel.zero shards, the nearest ones, such as those of a host; "
     "the others hold copies; 0: all of them."},
    {"parallel.bucket_mib", "Least size in MiB of the buckets in which gradients are reduced."},

    {"precision", "In what the model is computed."},
    {"precision.compute",
     "Type of activations and matrix products; masters stay "
     "fp32."},
    {"precision.gradients",
     "Type in which gradients of parameters are stored and summed over ranks; products round to it "
     "once, from fp32 (that of the head once a chunk of logits)."},
    {"precision.gemm",
     "In what the blocks' linear layers multiply: as the rest, or in 8-bit floats "
     "with one scale for a tensor, a row or a block (docs/fp8.md)."},
    {"precision.fp8_min_width",
     "Least inputs and outputs of a linear layer that multiplies in 8-bit floats."},
    {"precision.fp8_keep_first", "First blocks that do not multiply in 8-bit floats."},
    {"precision.fp8_keep_last", "Last blocks that do not multiply in 8-bit floats."},
    {"precision.fp8_cache_weights",
     "Weights are rounded to 8-bit floats once a step, for all its microbatches, and kept: two "
     "bytes a weight more."},
    {"precision.fp8_param_gather",
     "Data ranks gather weights as FP8 values in place of bf16 ones (parallel.zero 1 to 3). With "
     "zero 1 and 2 they serve the step: two bytes a weight more."},
    {"memory", "What stands in memory at once, what is kept for backward, and where state rests."},
    {"memory.recompute",
     "What backward computes again instead of keeping it: nothing, outputs of "
     "norms and activations, or whole blocks."},
    {"memory.recompute_layers",
     "Blocks of a rank that are computed again with memory.recompute: full, the first ones; the "
     "others keep all. 0: all blocks."},
    {"memory.loss_rows",
     "Most tokens whose logits stand at once; 0: as many as 1 GiB on a GPU or 32 MiB on a CPU "
     "hold."},
    {"memory.mlp_rows",
     "Most tokens whose wide activations in a feed-forward network stand at once, with recompute "
     "full: it takes pieces of a microbatch, forward and backward; 0: all."},
    {"memory.activations",
     "Where the inputs of blocks that are computed again rest: on the device, or in its host's "
     "memory, to which each goes beside the next block, and from which it comes back likewise."},
    {"memory.host_layers",
     "Blocks of a rank whose inputs rest on the host with memory.activations: host, the first "
     "ones; "
     "0: all that are computed again."},
    {"memory.optimizer",
     "Where masters and optimizer state rest: on the device, or in its host's memory, from which "
     "updates take them in chunks beside the next forward pass."},
    {"memory.resident_gib",
     "GiB of state that stay on the device of each rank with memory.optimizer: host, that of the "
     "first layers: so much less goes over the link in a step."},

    {"optimizer", "How weights are updated."},
    {"optimizer.name",
     "The optimizer: AdamW, stochastic gradient descent with momentum, or Muon: orthogonalized "
     "momentum for the matrices of blocks, and AdamW for all else."},
    {"optimizer.lr", "Learning rate at its highest."},
    {"optimizer.betas",
     "Shares of the earlier moments that are kept in each step: of the gradients, of their "
     "squares; of optimizers with two moments."},
    {"optimizer.eps", "What is added to the root of the second moment."},
    {"optimizer.momentum",
     "Share of the momentum that is kept in each step, of optimizers with one; 0.95 is usual for "
     "muon."},
    {"optimizer.weight_decay",
     "Weight decay of matrices, and of what `decay_embeddings` and `decay_norms_and_biases` add: "
     "decoupled, times the learning rate; of sgd added to the gradients."},
    {"optimizer.decay_embeddings",
     "Whether weight decay also takes token and position tables, and the patch matrix of images."},
    {"optimizer.decay_norms_and_biases", "Whether weight decay also takes norms and biases."},
    {"optimizer.cautious_decay",
     "Whether decoupled weight decay acts only on weights that the update moves towards zero, too "
     "(Chen et al. 2025, \"Cautious weight decay\")."},
    {"optimizer.state",
     "How the moments are kept: bf16, rounded stochastically, takes 4 bytes less a parameter than "
     "fp32 (adamw); checkpoints hold fp32 either way, so that a run can change it."},
    {"optimizer.clip_norm",
     "Largest norm of all gradients together; longer ones are scaled down "
     "to it; 0: no limit."},
    {"optimizer.ema_decay",
     "Share of itself that the exponential moving average of the weights keeps in each update; "
     "0.999 or 0.9999 are usual; 0: there is no average. It is kept in fp32 and in checkpoints: "
     "--ema of eval, generate, serve and checkpoint takes it."},
    {"optimizer.ema_start_step",
     "Updates before averaging begins: until then, and after the first one, the average is what "
     "the weights are."},
    {"optimizer.evaluate_ema",
     "Whether validation, tasks and samples of a run are of the average instead of the weights."},

    {"schedule", "The learning rate over the steps."},
    {"schedule.name",
     "Shape after the warm-up: constant, linear or cosine down to the last step, "
     "or wsd, which stays and falls at the end."},
    {"schedule.warmup_steps",
     "Steps in which the learning rate rises in a line from zero to optimizer.lr, which the last "
     "of "
     "them has."},
    {"schedule.final_fraction",
     "Learning rate of the last step as a share of optimizer.lr, if it comes after the warm-up; "
     "without meaning with constant."},
    {"schedule.decay_fraction", "Share of all steps in which it falls with wsd, at the end."},

    {"train", "Length and size of training, and how often it looks at itself."},
    {"train.steps", "Updates of the weights; give this or epochs."},
    {"train.epochs", "Passes over the training tokens; give this or steps."},
    {"train.global_batch", "Samples of a step, over all ranks; each has model.context tokens."},
    {"train.microbatch",
     "Samples that a rank computes at a time; 0: its whole share of the "
     "batch."},
    {"train.validate_every", "Steps between validations; 0: only after the last step."},
    {"train.validate_batches", "Batches of a validation; 0: all validation tokens."},
    {"train.tasks",
     "Task files whose questions the model answers while it trains (docs/tasks.md), recorded in "
     "tasks.jsonl."},
    {"train.tasks_every", "Steps between scores of train.tasks; 0: only after the last step."},
    {"train.loss",
     "Loss of training: of the next token (cross_entropy), of a policy's ratio (clipped), of pairs "
     "of answers (preference), or beside a teacher's distribution (distillation); docs/losses.md "
     "names the columns that files need. Validation measures cross-entropy."},
    {"train.clip_low", "With a clipped loss: ratios below 1 - clip_low give no gradient."},
    {"train.clip_high", "With a clipped loss: likewise above 1 + clip_high."},
    {"train.kl_weight",
     "With a clipped loss: factor of the divergence from the reference model, added to it; 0: "
     "none."},
    {"train.preference_beta", "With a loss of preference: factor of the margin of a pair."},
    {"train.teacher_weight",
     "With distillation: share of the divergence from the teacher; the next token has the rest."},
    {"train.teacher_tokens",
     "With distillation: likely tokens of the teacher that are read, up to 32."},
    {"train.z_loss",
     "Times the square of the logarithm of the softmax's normalizer, added to the loss of every "
     "token that is trained on; 1.0e-4 in PaLM, 0: none. Logged beside the loss."},
    {"train.sample_every",
     "Steps between texts that the model generates while it trains, and after the last step; 0: "
     "never. They are logged and recorded in samples.jsonl."},
    {"train.sample_prompts", "Texts that it continues; none: it begins a document."},
    {"train.sample_tokens",
     "Tokens that it adds to each at most; the end of text ends one earlier."},
    {"train.sample_temperature", "Of its choice of tokens; 0: always the likeliest."},
    {"train.log_norms",
     "Steps between records of the norms of weights, activations and gradients "
     "in norms.jsonl; 0: none."},
    {"train.log_every", "Steps between lines of the log if there is no terminal."},
    {"train.overfit_one_batch",
     "Whether every step takes the first batch again, to see whether "
     "the model can learn it."},
    {"train.trainable",
     "Roles of the parameters that are trained; the others are frozen and take no "
     "memory for gradients, masters and optimizer state; empty: all are trained."},

    {"experts",
     "Mixtures of experts in place of feed-forward networks: a router sends each token to some."},
    {"experts.count", "Experts of a layer; 0: no layer has any."},
    {"experts.active", "Experts that a token passes through."},
    {"experts.width", "Inner features of an expert; 0: model.ffn_width."},
    {"experts.shared",
     "Experts that every token passes besides; together they are one network of shared x width "
     "inner features."},
    {"experts.every",
     "Every Nth layer has experts: with 2 the second, the fourth and so on, but none of "
     "first_dense."},
    {"experts.first_dense", "First layers that have none."},
    {"experts.score",
     "The router's scores of its logits: of all experts together, or of each alone."},
    {"experts.normalize", "Divide a token's weights by their sum."},
    {"experts.scale", "Factor of a token's weights, after they are divided."},
    {"experts.groups",
     "Groups of neighbouring experts, of which a token uses group_active; 1: no groups."},
    {"experts.group_active",
     "Groups whose experts a token may take. A group's score is its best expert's, with sigmoid "
     "the sum of its two best."},
    {"experts.balance",
     "Balance the loads of each sample (sequence), of balance_samples neighbouring samples "
     "(batch), or have no balance loss (none)."},
    {"experts.balance_samples",
     "Neighbouring samples that are balanced together, with balance batch; divides "
     "train.microbatch."},
    {"experts.balance_weight",
     "Factor of the balance loss. It is experts x the sum over experts of the product of the share "
     "of a sample's tokens that an expert gets and its mean score; 1 if all loads are equal."},
    {"experts.bias_rate",
     "Step of a bias that only the choice of experts uses. After each step it rises where the load "
     "is below the mean, and falls above; 0: there is no bias."},
    {"experts.z_weight",
     "Factor of the router's z-loss: the mean over tokens of log(Z)^2, Z the sum of the "
     "exponentials of a token's logits; 0: none."},
    {"experts.in_turn",
     "Tokens take experts in turn, whatever their scores: equal loads, for measurements. bench and "
     "the log say so."},
    {"adapter", "Low-rank adapters (LoRA) of a model that stays as it is: they alone are trained."},
    {"adapter.rank",
     "Rows of A and columns of B in y = x W^T + scale (x A^T) B^T; 0: no adapters."},
    {"adapter.alpha", "Numerator of the scale: alpha / rank, or alpha / sqrt(rank)."},
    {"adapter.rank_scaled", "Whether the scale is alpha / sqrt(rank) (rsLoRA)."},
    {"adapter.targets", "Linear layers of every block that get adapters; empty: all."},
    {"adapter.dropout", "Fraction of the adapters' inputs that is dropped in training."},

    {"quantization", "Training that rounds the blocks' matrices to quantized values."},
    {"quantization.weights",
     "Bits of the blocks' matrices, in products and after checkpoint quantize; none: as they are."},
    {"quantization.group", "Columns that share a scale, with int4; int8 has one scale a row."},
    {"quantization.activations",
     "Whether products also round their input, each row by a scale of its own; int8 weights only."},
    {"quantization.embeddings",
     "Whether the table of tokens is quantized too, in a model that is not trained; a tied one is "
     "also the head."},
    {"quantization.head",
     "Whether the head is quantized too, in a model that is not trained; a tied one is also the "
     "table of tokens."},
    {"quantization.after", "Steps that are trained without rounding first."},

    {"checkpoint", "When checkpoints are written, which are kept and from which a run goes on."},
    {"checkpoint.directory", "Folder of the checkpoints; null: checkpoints in the run's folder."},
    {"checkpoint.every", "Steps between checkpoints; 0: none on the way."},
    {"checkpoint.final", "Whether the last step leaves a checkpoint."},
    {"checkpoint.keep", "Newest checkpoints that are kept, or all."},
    {"checkpoint.keep_every", "Steps whose multiples are kept besides; 0: none."},
    {"checkpoint.async",
     "Whether checkpoints on the way are written beside training, from a copy in the host's "
     "memory; "
     "without room for it they are written within the step."},
    {"checkpoint.max_failures",
     "Saves in a row that storage refuses before the run ends with code 5; the last of a run "
     "always "
     "must succeed."},
    {"checkpoint.memory_every",
     "Steps between checkpoints in the memory of the hosts, of which each keeps a copy of another "
     "host's; 0: none."},
    {"checkpoint.memory_directory",
     "Folder in the memory of every host for these, which outlives the job."},
    {"checkpoint.resume",
     "Where a start goes on: auto from the newest checkpoint if there is "
     "one, never from the beginning, or from a step."},
    {"checkpoint.initial",
     "Checkpoint whose weights, and nothing else, a run without one of its own starts from at step "
     "1: a step's folder or a directory of them; null: random weights."},
    {"checkpoint.new_head",
     "Whether the head of a vision transformer starts from random weights and all else from those "
     "of "
     "checkpoint.initial, which may then have other classes."},

    {"timing", "What is recorded of the time of every step on every rank."},
    {"timing.every", "Steps between rows of the timing files."},
    {"timing.trace_steps", "Steps of which every event is recorded, too."},
    {"timing.groups",
     "Whether GPUs time the operations of all groups, at about 10 us each, not "
     "only the reduction of gradients."},

    {"spikes", "What becomes of a step whose loss or gradient norm is far above those before."},
    {"spikes.policy",
     "Nothing (ignore), a warning (log), no update of that step, for which the host waits in every "
     "step (skip), or back to an older checkpoint and on without the batch (roll_back)."},
    {"spikes.window", "Steps over which mean and variance are weighted."},
    {"spikes.z_score", "Standard deviations above the mean that make a spike."},
    {"spikes.warmup_steps", "Steps that are observed before any is judged."},
    {"spikes.max_roll_backs", "Returns to a checkpoint; one more ends the run with code 7."},
});

}  // namespace

std::span<const KeySentence> training_sentences() { return kTrainingSentences; }

}  // namespace hyperslab::deck
