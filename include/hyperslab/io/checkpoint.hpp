// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/io/vocabulary_files.hpp"

namespace hyperslab::io {

/// A hyperslab of a named global tensor with its data: contiguous, of shape `part.count` and of the
/// tensor's dtype, which is f32, f16 or u8.
struct Slab {
  std::string tensor;  ///< "model/blocks.0.attention.query.weight", "optimizer/exp_avg/..."
  Shape global_shape;
  Hyperslab part;
  CView data;
  std::shared_ptr<const void> owner = {};  ///< keeps the data alive, unless someone else does
};
/// A slab's memory to fill, of the dtype that is stored.
struct SlabTarget {
  std::string tensor;
  Shape global_shape;
  Hyperslab part;
  View data;
};

/// Values of a checkpoint besides its tensors.
struct CheckpointMeta {
  std::int64_t step = 0;
  std::int64_t samples_seen = 0;  ///< position in the global order of samples
  std::int64_t tokens_seen = 0;
  std::int64_t adam_step = 0;
  std::int64_t skipped_steps = 0;
  double loss_scale = 1;
  std::int64_t good_steps = 0;
  double wall_seconds = 0;  ///< seconds of training so far, over all starts
  std::uint64_t data_fingerprint = 0;
  std::string model;            ///< every choice of the model, one line
  std::string order;            ///< everything that the order of samples depends on, one line
  std::string layout;           ///< "data 4 x tensor 1 x pipeline 1"
  std::string deck;             ///< the resolved deck
  std::string started_in = {};  ///< folder where its relative paths begin; empty: not known
  std::string version;          ///< version of the program that wrote it
  std::string algorithms = {};  ///< AlgorithmCache::text() of GPUs; empty: none was chosen
  std::string spikes = {};      ///< state of the run's detection of spikes, one line; empty: none
  /// Files that go into the step's folder `vocabulary`; a reader leaves it empty and has
  /// vocabulary().
  std::vector<VocabularyFile> vocabulary = {};
  bool scales_loss = false;  ///< the run scales its losses, and loss_scale is the newest scale
  /// With adapters alone: parameter_fingerprint() of the model that they are added to, or, if that
  /// has random weights, a number for run.seed. Absent if the checkpoint holds a whole
  /// model.
  std::optional<std::uint64_t> base_fingerprint = std::nullopt;
  std::int64_t base_step = 0;  ///< step of that model's checkpoint
};

/// Which complete steps stay.
struct KeepPolicy {
  std::int64_t keep = 0;        ///< so many of the newest; 0: all
  std::int64_t keep_every = 0;  ///< multiples of it; 0: none
  /// The newest step up to here stays too: training went on from it with finite numbers.
  std::optional<std::int64_t> proven = {};
  /// Steps of an attempt that training went back from: `keep` and `proven` do not count them, and
  /// they stay until training has saved a newer step.
  std::vector<std::int64_t> abandoned = {};
};

/// The complete steps, ascending, that neither the policy nor `latest` keeps.
[[nodiscard]] std::vector<std::int64_t> prunable_checkpoints(const std::string& directory,
                                                             const KeepPolicy& policy);
/// Removes complete steps that neither the policy nor `latest` keeps, and stale .tmp folders.
/// Damaged folders stay, so that their owner can look at them. A folder that cannot be removed
/// stays, with one warning. Rank 0 only; nothing is thrown for errors of the disk.
void prune_checkpoints(const std::string& directory, const KeepPolicy& policy);

/// Complete steps (a sound manifest, every file there with its size), ascending.
[[nodiscard]] std::vector<std::int64_t> list_checkpoints(const std::string& directory);

/// One complete checkpoint, opened for reading; cheap until tensors are read.
class CheckpointReader {
 public:
  /// `path` is a step folder, a directory of checkpoints, or a run directory with one named
  /// `checkpoints`; of a directory `step` is opened, or else the one that `latest` names; if
  /// that is torn or not complete, the next older complete one, with the reason as a warning in the
  /// log. Throws Error(checkpoint): missing, torn or damaged manifest, a format newer than this
  /// program's, files that are missing or of another size. In a job rank 0 opens the directory and
  /// the others its folder(), so that all fall back alike.
  explicit CheckpointReader(const std::string& path,
                            std::optional<std::int64_t> step = std::nullopt);

  [[nodiscard]] const CheckpointMeta& meta() const { return meta_; }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  /// Size of all files of the step but the manifest.
  [[nodiscard]] std::uint64_t bytes() const;
  /// A file in the step's folder `vocabulary`.
  struct VocabularyEntry {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  /// Empty for the vocabulary `bytes`, without one, and of programs that kept none.
  [[nodiscard]] const std::vector<VocabularyEntry>& vocabulary() const { return vocabulary_; }
  /// The path of the vocabulary that the step keeps, for open_tokenizer(); empty if it keeps
  /// none. Throws Error(checkpoint) if a file of it is missing or was changed.
  [[nodiscard]] std::string vocabulary_path() const;
  struct Piece {
    std::string file;
    std::string dataset;
    Hyperslab part;
    std::uint64_t file_offset = 0;
    std::vector<std::uint32_t> crc32c;  ///< per block of block_bytes()
  };
  struct TensorEntry {
    Shape global_shape;
    DType dtype = DType::f32;
    std::vector<Piece> pieces;
  };
  /// A part of a file that is HDF5's own: groups, headers, attributes.
  struct Structure {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  struct FileEntry {
    std::string name;
    std::uint64_t bytes = 0;
    std::vector<Structure> structure;
  };
  [[nodiscard]] const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<FileEntry>& files() const { return files_; }
  [[nodiscard]] std::uint64_t block_bytes() const { return block_bytes_; }

  /// Throws the Error(checkpoint) of read() if tensors are missing or have another shape; the
  /// targets' data and their dtype play no part.
  void check(std::span<const SlabTarget> targets) const;
  /// Fills the targets (CPU, of the stored dtype) from whichever slabs meet them, any layout from
  /// any layout, checking the CRC32C of every block read; a block is read once. HDF5's structure of
  /// a file, some 64 KiB, is checked with the first block of it: nothing here needs it, but a file
  /// that h5py cannot open is damaged. Throws Error(checkpoint) that lists tensors that are missing
  /// or have another shape or dtype, all at once, or names tensor and block of a damaged byte.
  void read(std::span<const SlabTarget> targets) const;
  /// Makes a checkpoint fit another model: from now on read() gives `values` (CPU, f32) in place of
  /// a stored tensor; and meta().model is `identity`. verify() still checks the stored files.
  void replace(const std::string& tensor, Tensor values);
  void set_model(const std::string& identity) { meta_.model = identity; }
  /// From now on reading one of the model's trained parameters gives its average,
  /// optimizer.ema_decay. Throws Error(checkpoint) if none is kept.
  void use_averages();
  /// Checks every block, HDF5's structure and the vocabulary included, and that the pieces of every
  /// tensor cover it exactly once. Returns the problems, one line each; none: sound.
  [[nodiscard]] std::vector<std::string> verify() const;

  static constexpr std::size_t kBlockBytes = 64ULL << 20;
  /// The newest format that is read. Checkpoints of f32 alone are of format 1 and those with f16
  /// or u8 of format 2, so that earlier programs read the former and refuse the latter.
  static constexpr int kFormatVersion = 2;

 private:
  /// Names of files whose structure was found sound.
  struct SoundFiles {
    std::mutex mutex;
    std::set<std::string> names;
  };
  std::string folder_;
  CheckpointMeta meta_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::shared_ptr<const Tensor>> replaced_;
  std::vector<FileEntry> files_;
  std::vector<VocabularyEntry> vocabulary_;
  std::uint64_t block_bytes_ = kBlockBytes;
  std::shared_ptr<SoundFiles> sound_ = std::make_shared<SoundFiles>();
};

/// Options of a rank that writes its part of a checkpoint.
struct SaveOptions {
  std::size_t block_bytes = CheckpointReader::kBlockBytes;  ///< a multiple of 4
  int writers = 2;                                          ///< threads that write, and that check
  Activity* activity = nullptr;                             ///< gets a beat with every block
  /// Gives copies on the host of slabs that are elsewhere. With it slabs are checked and written in
  /// pieces of together at most `piece_bytes`, or else one slab; without it all are on the CPU.
  std::function<std::vector<Slab>(std::span<const Slab>)> fetch = {};
  std::size_t piece_bytes = std::size_t{1} << 30;
};

/// Writes <directory>/step_<8 digits>/ together with the peers: every rank writes
/// rank_<5 digits>.h5 with its slabs into step_N.tmp (HDF5 lays the file out, bytes go by pwrite
/// with a CRC32C per block of at most 64 MiB, then fsync), all ranks agree, rank 0 writes
/// manifest.json, renames, and points `latest` to it. `meta` is rank 0's. Empty slabs are skipped;
/// together they cover every tensor exactly once, and all slabs of a tensor have one dtype. A step
/// that exists is replaced. On failure the temporary folder is removed, `latest` is untouched and
/// every rank throws the same Error(storage) with the first cause: rank, path, errno text.
void save_checkpoint(comm::Peers& peers, const std::string& directory, const CheckpointMeta& meta,
                     std::span<const Slab> slabs, const SaveOptions& options = {});

/// The name of the first of the slabs' tensors that holds a value that is not finite; empty: all
/// are finite. Every u8 is.
[[nodiscard]] std::string first_not_finite(std::span<const Slab> slabs,
                                           const SaveOptions& options = {});

/// Slabs one after the other, of together at most so many bytes each time, or else one.
[[nodiscard]] std::vector<std::span<const Slab>> pieces_of(std::span<const Slab> slabs,
                                                           std::size_t bytes);

/// True if the checkpoint holds quantized matrices, which can be computed with and not trained.
[[nodiscard]] bool is_quantized(const CheckpointReader& reader);

/// A number for the values of all parameters of a checkpoint, whatever layout it was written in:
/// the sum modulo 2^64, over their elements, of the value's bits, as an unsigned number, plus one,
/// times an odd number that depends on name and position. Reads every parameter. `part` of `parts`
/// gives a term of it, which every rank computes for itself. Throws as read().
[[nodiscard]] std::uint64_t parameter_fingerprint(const CheckpointReader& reader, int part = 0,
                                                  int parts = 1);

/// Text of `hyperslab checkpoint info`: folder, step, layout, tokens, version, sizes, and a line
/// per tensor of the model with its shape, dtype and pieces. Adapters also name their base, whose
/// path is `base`, empty for random weights.
[[nodiscard]] std::string describe(const CheckpointReader& reader, const std::string& base = "");

}  // namespace hyperslab::io
