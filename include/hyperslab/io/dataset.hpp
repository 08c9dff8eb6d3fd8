// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/view.hpp"
#include "hyperslab/io/config.hpp"

namespace hyperslab::io {

/// A sequence of token ids, usually memory-mapped files, one after the other.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< tokens
  /// Tokens [first, first + out.size()); throws Error(data) with file, offset and id where an id is
  /// not below the vocabulary.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
  /// One line for logs: files, tokens, format.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Changes where a file changes: sizes, formats and a checksum of samples of the content.
  [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

/// Opens `synthetic` (2^31 ids of a Markov chain, a function of seed and index), or every file that
/// the paths and globs name, in the order given (globs sorted). Formats, by content then suffix:
/// llm.c's header, .npy (1-D unsigned 16/32, signed 32/64 bit), HDF5 (1-D integer dataset
/// `tokens`), raw .bin of `raw_dtype`. Checked against the vocabulary. Throws Error(data) that
/// names the file, what was wanted and found.
[[nodiscard]] std::unique_ptr<TokenSource> open_tokens(const std::vector<std::string>& paths,
                                                       const std::string& raw_dtype,
                                                       std::int64_t vocabulary, std::uint64_t seed);

enum class Sampling : std::uint8_t { blocks, windows };

/// Samples of T + 1 tokens out of a source. With `blocks` sample g is block perm(g mod n, epoch) of
/// the n = (size - 1) / T blocks that share a border token, each once an epoch, reshuffled by
/// (seed, epoch). With `windows` it starts anywhere, by Philox of (seed, g). Without `shuffle`
/// sample g is block g mod n in file order, for validation.
class Samples {
 public:
  /// Throws Error(data) where the source holds less than one sample.
  Samples(const TokenSource& source, Sampling sampling, Dim T, std::uint64_t seed,
          bool shuffle = true);
  /// Samples of one epoch, n.
  [[nodiscard]] std::int64_t size() const;
  /// First token of sample `index`, any index >= 0.
  [[nodiscard]] std::int64_t start(std::int64_t index) const;
  /// tokens and targets: T each; targets are the tokens one place on.
  void read(std::int64_t index, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const;

 private:
  const TokenSource& source_;
  Sampling sampling_;
  Dim T_;
  std::uint64_t seed_;
  bool shuffle_;
};

/// Host memory of one microbatch.
struct Microbatch {
  View tokens;           ///< (B, T) i32
  View targets;          ///< (B, T) i32, ops::kIgnoredTarget where a place does not count
  View order;            ///< (B * T) i32: places sorted by token, stable
  View sample_position;  ///< (B) i64: place of each sample in the global batch
};

/// Cuts the stream of samples into global batches: step s (from 1) is samples [(s - 1) G, s G), and
/// data rank d of D takes places (m D + d) B ... + B of it in its microbatch m.
class Loader {
 public:
  /// `overfit_one_batch`: every step is step 1.
  Loader(const Samples& samples, std::int64_t global_batch, int data_rank, int data_ranks,
         bool overfit_one_batch = false);
  /// Fills the views of `out`, which give B and T. Allocates nothing after the first call.
  void load(std::int64_t step, int microbatch, const Microbatch& out);

 private:
  const Samples& samples_;
  std::int64_t global_batch_;
  int data_rank_;
  int data_ranks_;
  bool overfit_one_batch_;
  std::vector<std::int32_t> scratch_;  ///< of the sort of `order`
};

}  // namespace hyperslab::io
