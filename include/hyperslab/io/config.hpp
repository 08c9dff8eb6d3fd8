// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// Way in which samples are drawn from tokens: see Samples.
enum class Sampling : std::uint8_t { blocks, windows };
[[nodiscard]] constexpr std::string_view name_of(Sampling sampling) {
  return sampling == Sampling::blocks ? "blocks" : "windows";
}

/// Type of the ids in a file that does not report it.
enum class RawIds : std::uint8_t { uint16, uint32 };

/// Consequence of an image that cannot be decoded: an error, or a sample that does not count.
enum class BrokenImages : std::uint8_t { refuse, skip };
/// Device that decodes images: threads of the CPU, or a GPU's nvJPEG. `automatic` takes the CPU,
/// which was faster beside a step (analysis/results/vit-h200.txt).
enum class DecodeOn : std::uint8_t { automatic, cpu, gpu };

/// Tokens that a token of a sample attends to: all before it, or only its own document's.
enum class Documents : std::uint8_t { joined, masked };

/// Content of a sample of text: a run of tokens, a document or part of one, or several of those
/// that fit together. See PackedSamples.
enum class Packing : std::uint8_t { contiguous, document, best_fit };
[[nodiscard]] constexpr std::string_view name_of(Packing packing) {
  if (packing == Packing::contiguous) return "contiguous";
  return packing == Packing::document ? "document" : "best_fit";
}

/// The choice of a text's targets that count, and the separator of its documents.
struct TargetRules {
  std::int32_t ignore_token = -1;  ///< targets of this id do not count; -1: all do
  std::int32_t end_token = -1;     ///< the token after it begins a document; -1: none does
  bool predicts_starts = true;     ///< true if the first token of a document counts as a target
};

/// Deck section `data`.
struct DataConfig {
  std::vector<std::string> train;  ///< `synthetic`, paths or globs of token files or image sets
  std::vector<std::string> validation;
  std::vector<double> weights;             ///< one for each entry of `train`, and again for each of
                                           ///< weight_steps; empty: all samples equally often
  std::vector<std::int64_t> weight_steps;  ///< first steps of further weights
  Sampling sampling = Sampling::blocks;
  RawIds dtype = RawIds::uint16;  ///< ids in .bin files without a header
  std::string vocabulary;  ///< folder of a vocabulary, or `bytes`; for texts and bits per byte
  std::int32_t ignore_token = -1;  ///< targets of this id do not count; -1: all do
  bool join_files = false;         ///< samples may go from the end of a file into the next
  bool loss_mask = false;          ///< the files' loss_mask says which tokens count as targets
  bool token_weights = false;      ///< the files' weights are those of targets in the mean loss
  double validation_fraction = 0;  ///< share of the training documents, by hash, for validation
  std::int32_t end_token = -1;     ///< ends documents in files without a list of them; -1: none
  Documents documents = Documents::joined;
  Packing packing = Packing::contiguous;
  bool predict_starts = true;  ///< true if the first token of a document counts as a target
  BrokenImages broken_images = BrokenImages::refuse;
  DecodeOn decode = DecodeOn::automatic;
  std::int64_t threads = 0;  ///< threads of a rank that decode images; 0: as many as it has cores

  [[nodiscard]] TargetRules target_rules() const {
    return {ignore_token, end_token, predict_starts};
  }
  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

/// Choice of the point where a start goes on: the newest checkpoint if there is one (`auto`), a
/// step, or the beginning (`never`).
enum class ResumeFrom : std::uint8_t { newest, nothing, step };
struct ResumeChoice {
  ResumeFrom from = ResumeFrom::newest;
  std::int64_t step = 0;  ///< with ResumeFrom::step
  friend bool operator==(const ResumeChoice&, const ResumeChoice&) = default;
};

/// Deck section `checkpoint`.
struct CheckpointConfig {
  std::string directory;          ///< empty (null): <run.directory>/checkpoints
  std::int64_t every = 0;         ///< steps; 0: none on the way
  bool final = true;              ///< true if a run that has come to its end leaves one
  std::int64_t keep = 3;          ///< newest kept, at least 2; 0 (`all`): every one
  std::int64_t keep_every = 0;    ///< milestones: steps that are multiples stay
  bool async = true;              ///< written beside training, from a copy in the host's memory
  std::int64_t max_failures = 3;  ///< so many saves in a row that storage refuses end a run
  std::int64_t memory_every = 0;  ///< steps between checkpoints in the hosts' memory; 0: none
  std::string memory_directory = "/dev/shm";
  ResumeChoice resume;
  std::string initial;    ///< checkpoint whose weights a new run starts from; empty: none
  bool new_head = false;  ///< the classes' head starts from initial values, not those weights
  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

/// Deck section `timing`.
struct TimingConfig {
  std::int64_t every = 1;
  std::vector<std::int64_t> trace_steps;
  bool groups = false;  ///< GPUs: time the operations of all groups, about 10 us each
  friend bool operator==(const TimingConfig&, const TimingConfig&) = default;
};

}  // namespace hyperslab::io
