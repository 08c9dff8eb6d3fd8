// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/core/hyperslab.hpp"

namespace hyperslab::nn {

enum class ParamKind : std::uint8_t { matrix, bias, norm, token_table, position_table };
enum class Init : std::uint8_t { normal, zeros, ones };

/// How the ranks of a tensor group hold a parameter.
enum class Holding : std::uint8_t {
  parts,   ///< every rank another part; also where the group has one rank
  equal,   ///< every rank the whole, with equal gradients
  summed,  ///< every rank the whole; its gradient is one term of a sum over the group
};

/// A part of a named global tensor that this rank owns, and where it lives. The three views have
/// the shape `count`; they are bound by ParamTable::bind.
struct Param {
  std::string name;  ///< of the model: "blocks.0.attention.query.weight"
  Shape global_shape;
  Shape offset;  ///< of this rank's hyperslab
  Shape count;
  Dim stored_rows = 0;  ///< first dimension in memory; rows beyond count[0] are padding, zero
  ParamKind kind = ParamKind::matrix;
  Init init = Init::zeros;
  float init_std = 0;
  int replicas = 1;    ///< ranks of the tensor group that hold the same part (key-value heads)
  int replica = 0;     ///< which of them this rank is
  int unit = 0;        ///< of the stage: embedding, block or head that it belongs to
  Dim flat_begin = 0;  ///< elements from the start of the flat space
  View master;         ///< f32 (f64 for f64); absent where masters are sharded
  View value;          ///< compute dtype; the master itself where that is f32
  View gradient;       ///< f32 (f64 for f64); absent in a forward-only run
  [[nodiscard]] Dim numel() const { return count.numel(); }
  [[nodiscard]] Dim stored_numel() const;
};

/// Which part of a tensor a rank holds: `count` from `first` of one dimension (0 or 1).
struct Part {
  int dimension = -1;  ///< -1: the whole tensor
  Dim first = 0;
  Dim count = 0;
  Dim stored = 0;  ///< with padding; dimension 0 only; 0: as `count`
};

/// What a declaration says about a parameter.
struct ParamSpec {
  std::string name;
  Shape shape;  ///< of the global tensor
  ParamKind kind = ParamKind::matrix;
  Init init = Init::normal;
  float init_std = 0;
  Part part = {};
  Holding holding = Holding::parts;
  int replicas = 1;
  int replica = 0;
  bool tied = false;  ///< its gradient is complete only when both ends of the stages gave theirs
};

/// Parameters that lie one behind the other, so that several named tensors with equal inner sizes
/// are one operand: query|key|value, gate|up.
struct Pack {
  std::vector<Param*> members;
  /// The members' views as one view with their first dimensions, padding included, added up.
  [[nodiscard]] CView value() const;
  [[nodiscard]] View gradient() const;
  [[nodiscard]] explicit operator bool() const { return !members.empty(); }
};

/// What kind of parameters a bucket holds, which decides over whom it is summed and who counts its
/// norm.
enum class BucketKind : std::uint8_t { tied, summed, equal, parts };

/// A contiguous range of the flat space whose gradients are reduced by one call. It closes when
/// backward of `first_unit` is done.
struct Bucket {
  int first_unit = 0;
  int last_unit = 0;
  Dim begin = 0;  ///< elements
  Dim end = 0;
  BucketKind kind = BucketKind::parts;
  [[nodiscard]] Dim size() const { return end - begin; }
};

/// Who shares the optimizer state of a stage: ZeRO (Rajbhandari et al. 2020), stages 0 to 2.
struct Sharding {
  int zero = 0;  ///< 0: all hold all | 1: masters and moments are cut | 2: gradients too
  int rank = 0;  ///< of the data group
  int ranks = 1;
};

/// All parameters of a stage in forward order, laid out in one flat space that masters, values,
/// gradients and optimizer state share. Setup: declare everything, lay out, bind to memory.
///
/// Every bucket is cut into equal shards, one for each data rank. A rank's shards, one behind the
/// other, are its shard space: what belongs to the flat element `bucket.begin + rank * size / ranks
/// + i` lies there at `bucket.begin / ranks + i`.
class ParamTable {
 public:
  /// Starts the next unit; the tensors declared from now on belong to it.
  void begin_unit();
  /// Declares tensors that are to lie one behind the other.
  Pack declare(std::span<const ParamSpec> specs);
  Param& declare(const ParamSpec& spec);
  /// The current unit computes with tensors of an earlier one, too.
  void use_again(const Pack& pack);

  /// Gives every parameter its place. Tied tensors, summed and equal ones come first, a bucket for
  /// each kind; the others form buckets of at least `bucket_bytes` of f32 gradients from whole
  /// units, last unit first. Bucket sizes are multiples of `ranks` x 128 bytes.
  void lay_out(int ranks, std::size_t bucket_bytes);

  /// Takes masters (and values, where `compute` is another dtype) from `parameters` and, where
  /// `gradients` is given, gradients from it; binds all views. Masters are cut with sharding.zero
  /// at least 1 where values are a copy of their own. With zero 2 the gradients of a bucket live
  /// in one of two buffers until they are summed (tied, summed and equal buckets in their own), and
  /// what a rank keeps is gradient_shards().
  void bind(Arena& parameters, Arena* gradients, DType master, DType compute,
            const Sharding& sharding);

  [[nodiscard]] Dim flat_size() const { return flat_size_; }
  [[nodiscard]] Dim shard_size() const { return flat_size_ / sharding_.ranks; }
  [[nodiscard]] const std::deque<Param>& params() const { return params_; }
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] const Sharding& sharding() const { return sharding_; }
  [[nodiscard]] bool masters_are_sharded() const { return masters_are_sharded_; }
  /// First element of this rank's shard of a bucket in the flat space and in the shard space, and
  /// its size.
  [[nodiscard]] Dim shard_in_flat(const Bucket& bucket) const {
    return bucket.begin + sharding_.rank * shard_size(bucket);
  }
  [[nodiscard]] Dim shard_in_space(const Bucket& bucket) const {
    return bucket.begin / sharding_.ranks;
  }
  [[nodiscard]] Dim shard_size(const Bucket& bucket) const {
    return bucket.size() / sharding_.ranks;
  }

  [[nodiscard]] View master() const { return master_; }      ///< (flat_size) or (shard_size)
  [[nodiscard]] View value() const { return value_; }        ///< (flat_size)
  [[nodiscard]] View gradient() const { return gradient_; }  ///< (flat_size); absent with zero 2
  /// Where backward writes the gradients of a bucket: (bucket.size()).
  [[nodiscard]] View gradient(const Bucket& bucket) const;
  /// Sums over microbatches and ranks, with zero 2: (shard_size).
  [[nodiscard]] View gradient_shards() const { return gradient_shards_; }

 private:
  struct Run {  // a pack: its members have no gaps between them
    std::size_t first = 0;
    std::size_t count = 0;
    int unit = 0;
    int last_unit = 0;  ///< that writes to its gradients
    BucketKind kind = BucketKind::parts;
  };
  [[nodiscard]] Dim size_of(const Run& run) const;
  [[nodiscard]] std::vector<Bucket> whole_buckets() const;
  [[nodiscard]] std::vector<Bucket> part_buckets(std::size_t bucket_bytes) const;
  void form_buckets(int ranks, std::size_t bucket_bytes);
  void take_ring(Arena& gradients, DType dtype);
  void bind_views(Param& param);

  std::deque<Param> params_;  // addresses are stable
  std::vector<Run> runs_;
  std::vector<Bucket> buckets_;
  int unit_ = -1;
  Dim flat_size_ = 0;
  Sharding sharding_;
  bool masters_are_sharded_ = false;
  View master_;
  View value_;
  View gradient_;
  View gradient_shards_;
  std::vector<View> ring_;  ///< with zero 2: where the gradients of every bucket are written
};

/// Fills `masters`, the bucket's part of a flat view in f32 or f64, by the parameters' rules:
/// normals are Philox of (seed, name, global element index), so every layout starts from the same
/// weights. Padding becomes zero.
void initialize(Context& ctx, const ParamTable& table, const Bucket& bucket, std::uint64_t seed,
                View masters);

/// Every part of every parameter that lies in this rank's shards: the unit of checkpoints, which
/// each element of a tensor reaches from exactly one data rank.
struct ShardPiece {
  const Param* param = nullptr;
  Hyperslab piece;   ///< relative to the rank's part of the tensor
  Dim in_flat = 0;   ///< where it begins in the flat space
  Dim in_space = 0;  ///< and in the shard space
};
[[nodiscard]] std::vector<ShardPiece> shard_pieces(const ParamTable& table);

}  // namespace hyperslab::nn
