// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/token_columns.hpp"
#include "hyperslab/core/view.hpp"
#include "hyperslab/io/config.hpp"

namespace hyperslab::io {

/// One file of a source, for messages.
struct TokenFileSummary {
  std::string path;
  std::string format;  ///< "llm.c uint16"
  std::int64_t tokens = 0;
  std::int64_t file_bytes = 0;
  std::uint64_t fingerprint = 0;  ///< hash of this file, made as TokenSource::fingerprint()
};

/// A token file keeps this record of the vocabulary that made it.
struct VocabularyRecord {
  std::int64_t ids = 0;           ///< size of the vocabulary; 0: the file keeps nothing
  std::uint64_t fingerprint = 0;  ///< hash of its tokens
  std::int32_t end = -1;          ///< id after each document; -1: none
};

/// Files that samples are drawn from. Every function may be called by several threads at once.
class DataSource {
 public:
  DataSource() = default;
  virtual ~DataSource() = default;
  DataSource(const DataSource&) = delete;
  DataSource& operator=(const DataSource&) = delete;
  DataSource(DataSource&&) = delete;
  DataSource& operator=(DataSource&&) = delete;
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< tokens or images
  /// One line for logs: files, size, format.
  [[nodiscard]] virtual std::string description() const = 0;
  /// A number that a change of the files, their order or their format changes. Files of up to 1 GiB
  /// of tokens (and masks) together are read whole, so that any changed byte shows. Of larger sets
  /// every file of more than 16 MiB gives 1024 blocks of 4 KiB, first and last included: other
  /// sizes always show, and so does other text; edits that touch a share f of the blocks stay
  /// unseen with a probability near (1 - f)^1024. Computed once, at the first call.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
  /// The files in their order; none for generated tokens. Reads them again for their
  /// fingerprints.
  [[nodiscard]] virtual std::vector<TokenFileSummary> files() const { return {}; }
  /// Throws Error(data) that names a file whose size or time of modification has changed since it
  /// was opened. Files that are gone by now do not count, as an open file is still there to
  /// read.
  virtual void require_unchanged() const {}
};

/// A sequence of token ids, usually memory-mapped files, one after the other. documents() may be
/// called by one thread at a time.
class TokenSource : public DataSource {
 public:
  /// Tokens [first, first + out.size()); throws Error(data) with file, offset and id if an id is
  /// not below the vocabulary.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
  /// True if the tokens carry a loss mask, which read_mask() gives.
  [[nodiscard]] virtual bool has_mask() const { return false; }
  /// Mask of tokens [first, first + out.size()): 0 if a token does not count as a target.
  virtual void read_mask(std::int64_t first, std::span<std::uint8_t> out) const;
  /// The columns that read_values() gives.
  [[nodiscard]] virtual TokenColumns columns() const { return {}; }
  /// Values of tokens [first, ...) as targets: out has columns().count() for each of them. 1 where
  /// the file has none. Throws Error(data) that names file and token for a weight below 0 and for
  /// values that are no finite numbers.
  virtual void read_values(std::int64_t first, std::span<float> out) const;
  /// The columns().teachers ids of each token; 0 where the file has none. Throws Error(data) if ids
  /// of a token are equal or not below the vocabulary.
  virtual void read_teacher_ids(std::int64_t first, std::span<std::int32_t> out) const;
  /// First token of every document, ascending from 0: a file begins one, and further ones begin
  /// as the file's own list says (HDF5 `documents`), else after every `end_token`. Throws
  /// Error(data) if there is no list and `end_token` is negative.
  [[nodiscard]] virtual std::vector<std::int64_t> documents(std::int32_t end_token) const;
  /// Paths of the files that keep a record of their vocabulary, and these.
  [[nodiscard]] virtual std::vector<std::pair<std::string, VocabularyRecord>> vocabularies() const {
    return {};
  }
  /// First token of the files that each path or pattern named, in the order of open_tokens.
  [[nodiscard]] virtual std::vector<std::int64_t> parts() const { return {0}; }
  /// First token of every segment, ascending from 0: no sample holds tokens of two. Every file is
  /// one, unless all are joined.
  [[nodiscard]] virtual std::vector<std::int64_t> segments() const { return {0}; }
};

/// Columns that token files must have.
struct ColumnNeeds {
  TokenColumns columns;
  bool all = true;  ///< false: weights alone have to be there, as for validation
};

/// Opens `synthetic` (2^31 ids of a Markov chain, a function of seed and index), or every file that
/// the paths and globs name, in the order given (globs sorted). Formats, by content then suffix:
/// llm.c's header, .npy (1-D unsigned 16/32, signed 32/64 bit), HDF5 (1-D integer dataset
/// `tokens`, all of it written and in that file), raw .bin of `raw_ids` (refused if its bytes
/// look like bytes of a wider type). Checked against the vocabulary. `loss_mask`: every file has a
/// mask (HDF5: dataset `loss_mask` of one byte a token). `join_files`: all files are one segment.
/// `needs`: columns of f32 in datasets of HDF5 or in NAME.COLUMN.npy beside the file, see
/// dataset_of(); such arrays are no token files where a pattern meets them.
/// Throws Error(data) that names the file, what was expected and found.
[[nodiscard]] std::unique_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths,
                                                       RawIds raw_ids, std::int64_t vocabulary,
                                                       std::uint64_t seed, bool loss_mask = false,
                                                       bool join_files = false,
                                                       const ColumnNeeds& needs = {});

/// The sources of a deck's section `data`.
struct DataTokens {
  std::unique_ptr<TokenSource> train;
  std::unique_ptr<TokenSource> validation;  ///< absent if the deck has none
};
enum class DataPart : std::uint8_t { both, validation };

/// Opens the tokens that a deck names for training and validation; synthetic validation has the
/// seed after `seed`. With validation_fraction the documents of the training files are split, as
/// split_documents() does. DataPart::validation leaves `train` absent if that saves work. `ids`: of
/// data.vocabulary, which the ids in files must be below; 0: not known. `columns`: of the training
/// files; those for validation need the weights alone. Throws Error(data).
[[nodiscard]] DataTokens open_data(const DataConfig& data, std::int64_t vocabulary,
                                   std::uint64_t seed, DataPart part = DataPart::both,
                                   std::int64_t ids = 0, const TokenColumns& columns = {});

/// Splits the documents of `all` by a hash of their ids, so that a document stays on its side
/// whatever its file and position, and equal documents stay together: those whose hash is in the
/// lowest `fraction` of all hashes are for validation, the others for training, each in their
/// order. Reads everything once. Throws Error(data) if a side would be empty.
[[nodiscard]] DataTokens split_documents(const std::shared_ptr<const TokenSource>& all,
                                         double fraction, std::int32_t end_token);

/// order: the positions of `tokens` sorted by token, equal tokens by position; scratch: as many
/// elements.
void sort_tokens(std::span<const std::int32_t> tokens, std::span<std::int32_t> order,
                 std::span<std::int32_t> scratch);

/// Samples in an endless order: each once an epoch, and again in the next. Every function may be
/// called by several threads at once.
class Samples {
 public:
  virtual ~Samples() = default;
  /// Samples of one epoch.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Targets of a sample, counted or not: tokens of text, 1 of an image.
  [[nodiscard]] virtual Dim targets() const = 0;
  /// True if some targets may not count, so that counted() has to be asked.
  [[nodiscard]] virtual bool may_ignore() const = 0;
  /// Targets of sample `index` that count; without reading if none is left out.
  [[nodiscard]] virtual std::int64_t counted(std::int64_t index) const = 0;
  /// True if weights() is another number than counted().
  [[nodiscard]] virtual bool has_weights() const { return false; }
  /// The divisor of sample `index` in the mean of the loss: weights of counted targets, or pairs.
  [[nodiscard]] virtual double weights(std::int64_t index) const {
    return static_cast<double>(counted(index));
  }
  /// Samples [first, first + B) into the views of `out` that are there, but for sample_position and
  /// token_sort_index. Samples from `end` on do not count. Throws Error(data).
  virtual void read(std::int64_t first, std::int64_t end, const Batch& out) const = 0;

 protected:
  Samples() = default;
  Samples(const Samples&) = default;
  Samples(Samples&&) = default;
  Samples& operator=(const Samples&) = default;
  Samples& operator=(Samples&&) = default;
};
inline constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

/// Samples of T + 1 tokens out of a source. With `blocks` sample g is block perm(g mod n, epoch) of
/// the n blocks, (size - 1) / T of each segment, that share a border token, each once an epoch,
/// reshuffled by (seed, epoch). With `windows` it starts anywhere in a segment that holds all of
/// it, by Philox of (seed, g). Without `shuffle` sample g is block g mod n in file order, for
/// validation. The rest of a segment is in no sample, nor is a segment of T or fewer tokens.
class TokenSamples final : public Samples {
 public:
  /// Targets that `rules` leave out do not count, nor do those that the source's mask leaves out.
  /// Batch::first_keys become the tokens after each rules.end_token. Throws Error(data) if the
  /// no segment of the source holds a sample.
  TokenSamples(const TokenSource& source, Sampling sampling, Dim T, std::uint64_t seed,
               bool shuffle = true, const TargetRules& rules = {});
  /// For evaluation with more context: samples in file order that begin `stride` tokens apart, 1 <=
  /// stride <= T, over the first `targets` targets that blocks in file order cover, or over all
  /// that the segments have, segments shorter than a sample too (targets_in()). The first of a
  /// segment counts all its targets, every other those that none before it has: its last `stride`.
  /// The last begins earlier if the segment ends. So each target counts once, predicted from at
  /// least T - stride + 1 tokens, or from all of its segment before it. Throws as the constructor.
  [[nodiscard]] static std::int64_t targets_in(const TokenSource& source);
  [[nodiscard]] static TokenSamples strided(const TokenSource& source, Dim T, Dim stride,
                                            std::int64_t targets, const TargetRules& rules = {});
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] Dim targets() const override { return T_; }
  /// First token of sample `index`, any index >= 0.
  [[nodiscard]] std::int64_t start(std::int64_t index) const;
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override;
  /// tokens and targets: T each; targets are the tokens one position on, or ops::kIgnoredTarget.
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const;
  [[nodiscard]] bool may_ignore() const override {
    return size_ * T_ > targets_ || reads_to_ignore();
  }
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override;
  [[nodiscard]] bool has_weights() const override { return source_.columns().weight; }
  [[nodiscard]] double weights(std::int64_t index) const override;

 private:
  /// A part of the source that samples lie in.
  struct Segment {
    std::int64_t begin = 0;  ///< first token
    std::int64_t tokens = 0;
    std::int64_t targets = 0;  ///< that samples in file order cover, from the first on
    std::int64_t sample = 0;   ///< its first in file order
    std::int64_t window = 0;   ///< windows that begin in segments before it
  };
  [[nodiscard]] const Segment& segment_of(std::int64_t sample) const;
  /// The samples of a segment with `targets` targets.
  [[nodiscard]] std::int64_t samples_of(std::int64_t targets) const;
  void add(Segment segment);
  [[nodiscard]] bool ignores_starts() const {
    return rules_.end_token >= 0 && !rules_.predicts_starts;
  }
  [[nodiscard]] bool reads_to_ignore() const {
    return rules_.ignore_token >= 0 || ignores_starts() || source_.has_mask();
  }
  void ignore(std::int64_t first, std::int32_t before, std::span<std::int32_t> targets) const;
  /// Targets at the front of sample `index` that an earlier one counts.
  [[nodiscard]] std::int64_t repeated(std::int64_t index) const;
  /// Targets of sample `index` that the source has: T, fewer in a shorter segment.
  [[nodiscard]] std::int64_t length(std::int64_t index) const;

  const TokenSource& source_;
  Sampling sampling_;
  Dim T_;
  std::uint64_t seed_;
  bool shuffle_;
  TargetRules rules_;
  Dim stride_;                     ///< distance of samples in file order
  std::vector<Segment> segments_;  ///< those that hold samples
  std::int64_t size_ = 0;
  std::int64_t windows_ = 0;  ///< tokens at which a window may begin
  std::int64_t targets_ = 0;  ///< that the samples of an epoch cover
};

/// Cuts the stream of samples into global batches: step s (from 1) is samples [(s - 1) G, s G), and
/// data rank d of D takes positions (m D + d) B ... + B of it in its microbatch m. Every function
/// may be called by several threads at once.
class Loader {
 public:
  /// `overfit_one_batch`: every step is step 1.
  Loader(const Samples& samples, std::int64_t global_batch, int data_rank, int data_ranks,
         bool overfit_one_batch = false);
  /// Fills the views of `out`, which give B and T. Allocates nothing after the first call.
  void load(std::int64_t step, int microbatch, const Batch& out);
  [[nodiscard]] const Samples& samples() const { return samples_; }
  /// Place in the global batch of this rank's first sample in a microbatch of B.
  [[nodiscard]] std::int64_t position_of(int microbatch, Dim B) const {
    return (std::int64_t{microbatch} * data_ranks_ + data_rank_) * B;
  }
  /// Place of this rank's first sample of a microbatch in the endless order.
  [[nodiscard]] std::int64_t first_sample(std::int64_t step, int microbatch, Dim B) const;
  /// Targets that count in the whole global batch of `step`, of all ranks; may be 0. Known without
  /// reading if every target counts; otherwise the first call for a step reads the whole batch,
  /// and later ones remember it for a few steps.
  [[nodiscard]] std::int64_t counted_tokens(std::int64_t step);
  /// From now on load() counts the keys that tokens see where it fills Batch::first_keys. `window`:
  /// the most of layers that have one, 0: none has. Before the first load().
  void count_keys(Dim window) {
    counts_keys_ = true;
    window_ = window;
  }
  /// The divisor of the loss of `step`, of all ranks; may be 0. Likewise.
  [[nodiscard]] double weights(std::int64_t step);
  /// Shares of keys in this rank's samples of a step loaded lately; 1 if nothing was counted.
  [[nodiscard]] KeyShares key_shares(std::int64_t step) const;

 private:
  struct Count {
    std::int64_t step = 0;
    std::int64_t tokens = -1;  ///< below 0: not known yet
    double weights = -1;       ///< likewise
  };
  /// Sums over the samples of a step what of_sample(index) gives.
  template <class Of>
  [[nodiscard]] auto sum_of_step(std::int64_t step, Of&& of_sample) const;
  /// Keys that are seen, and that would be in one document.
  struct Keys {
    std::int64_t step = 0;
    double all = 0;
    double windowed = 0;
    double all_of_one = 0;
    double windowed_of_one = 0;
  };
  void add_keys(std::int64_t step, CView first_keys);
  [[nodiscard]] std::int64_t first_sample(std::int64_t step) const {
    return overfit_one_batch_ ? 0 : (step - 1) * global_batch_;
  }

  const Samples& samples_;
  std::int64_t global_batch_;
  int data_rank_;
  int data_ranks_;
  bool overfit_one_batch_;
  std::mutex scratch_mutex_;
  std::vector<std::int32_t> scratch_;  ///< memory for the sort into token_sort_index
  std::mutex count_mutex_;
  std::array<Count, 16> counts_;  ///< entry s mod 16 has step s
  bool counts_keys_ = false;
  Dim window_ = 0;
  mutable std::mutex keys_mutex_;
  std::array<Keys, 16> keys_;  ///< likewise
};

}  // namespace hyperslab::io
