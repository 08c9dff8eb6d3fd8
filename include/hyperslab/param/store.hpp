// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/mesh/position.hpp"
#include "hyperslab/param/parametrization.hpp"
#include "hyperslab/param/quantized_weight.hpp"
#include "hyperslab/param/spec.hpp"

namespace hyperslab::param {

/// A parameter's part that this rank holds, and where it lies. The views have the shape
/// `part.count`; ParamGroup::bind sets them.
struct Param {
  std::string name;
  Shape global_shape;
  Hyperslab part;       ///< part of the global tensor
  Dim stored_rows = 0;  ///< first dimension in memory; rows beyond part.count[0] are padding, zero
  Role role = Role::matrix;
  Init init = Init::zeros;
  float init_std = 0;
  float rate = 1;       ///< factor of the learning rate
  float muon_rate = 1;  ///< factor of the learning rate if Muon updates it
  Placements placement;
  int replicas = 1;
  int replica = 0;
  int unit = 0;        ///< index in the stage: embedding, block or head that it belongs to
  bool owned = true;   ///< this rank counts and stores the part, of those that hold it
  Dim flat_begin = 0;  ///< elements from the start of the group's flat space
  View master;         ///< f32 (f64 for f64); absent if frozen, or if masters are sharded
  View value;          ///< in the compute dtype; the master itself if that is f32; absent if the
                       ///< parameter is stored quantized
  View gradient;       ///< f32 (f64 for f64) or bf16; absent if frozen, and in a forward-only run
  [[nodiscard]] Dim numel() const { return part.numel(); }
  [[nodiscard]] Dim stored_numel() const;
};

/// Parameters that lie one after the other, so that several named tensors with equal inner sizes
/// are one operand: query|key|value, gate|up. Layers hold these, never memory.
class FusedParam {
 public:
  FusedParam() = default;
  explicit FusedParam(std::vector<Param*> members, const QuantizedWeight* quantized = nullptr)
      : members_(std::move(members)), quantized_(quantized) {}
  [[nodiscard]] explicit operator bool() const { return !members_.empty(); }
  [[nodiscard]] const std::vector<Param*>& members() const { return members_; }
  /// The first dimension is the sum of the members', padding included.
  [[nodiscard]] Shape shape() const;
  /// The operand of layers: the members' values as one view of shape(); dequantized where they are
  /// quantized.
  [[nodiscard]] CView value() const;
  /// Null if layers compute with the values.
  [[nodiscard]] const QuantizedWeight* quantized() const { return quantized_; }
  /// quantized() if products take the quantized values, else null.
  [[nodiscard]] const QuantizedWeight* codes() const {
    return quantized_ != nullptr && quantized_->multiplies_codes() ? quantized_ : nullptr;
  }
  /// Absent if the parameter is frozen.
  [[nodiscard]] View gradient() const;

 private:
  /// One view of all members from `first`, the first one's.
  [[nodiscard]] View joined(const View& first) const;

  std::vector<Param*> members_;
  const QuantizedWeight* quantized_ = nullptr;
};

/// A matrix whose FP8 values are present for a step, beside or in place of its values. The views
/// are absent until sharding::Presence takes memory for them, which it does in a training run.
struct KeptFp8 {
  FusedParam matrix;
  Dim bytes = 0;          ///< size of `memory`; 0: it has none, as `values` are there for a pass
  bool gathered = false;  ///< data ranks gather `values` in place of values (sharding::Fp8Gather)
  View memory{};          ///< (bytes) u8: FP8 values that the layer rounds, or transposes
  View values{};          ///< if gathered: u8, of the shape of the matrix, perhaps in a room
  View amax{};            ///< (1) f32: the amax of the values that were rounded
  View scale{};           ///< (1) f32, of `values`
  /// True if every pass finds `values` there, and no pass the values of the matrix.
  [[nodiscard]] bool replaces_values() const { return values && !memory; }
};

/// A contiguous range of a group's flat space whose gradients are reduced by one call. Its members
/// agree in `placement`, which says over which axes besides data they are summed. It closes when
/// backward of `first_unit` is done.
struct Bucket {
  int first_unit = 0;
  int last_unit = 0;
  Dim begin = 0;  ///< elements
  Dim end = 0;
  Placements placement;
  bool gathers_fp8 = false;  ///< it has matrices with KeptFp8::gathered
  Dim shards_begin = 0;      ///< elements of the shards before this rank's own in its shard space
  [[nodiscard]] Dim size() const { return end - begin; }
  [[nodiscard]] bool contains(const Param& param) const {
    return param.flat_begin >= begin && param.flat_begin < end;
  }
  /// True if members are parts of tensors that no other tensor or pipeline rank holds.
  [[nodiscard]] bool is_sharded() const {
    return placement.tensor.is_shard() && placement.pipeline.is_shard();
  }
  /// True if ranks along Axis::expert hold other tensors.
  [[nodiscard]] bool is_of_experts() const { return placement.expert.is_shard(); }
  /// Ranks along these have terms of its gradients.
  [[nodiscard]] mesh::AxisSet summed_axes() const {
    return is_of_experts() ? mesh::kExpertGradients : mesh::kGradients;
  }
  /// Its state is cut along these.
  [[nodiscard]] mesh::AxisSet cut_axes() const {
    return is_of_experts() ? mesh::kExpertShards : mesh::kShards;
  }
};

/// Elements of a group: where they begin in its flat space and in this rank's shard space.
struct ElementRange {
  Dim in_flat = 0;
  Dim in_shards = 0;
  Dim size = 0;
};

/// A buffer with one entry for every element of a group's flat space or, if sharded, of this rank's
/// shards of it: masters, moments, gradients.
struct StateView {
  View data;
  bool sharded = false;
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(data); }
  [[nodiscard]] Dim index(const ElementRange& range) const {
    return sharded ? range.in_shards : range.in_flat;
  }
  [[nodiscard]] View at(const ElementRange& range) const {
    return data.slice(index(range), range.size);
  }
};

/// Parameters that agree in whether they are trained and stored as values: one flat space that
/// masters, values, gradients and optimizer state share.
///
/// Every bucket is split into equal shards, one for each rank along Bucket::cut_axes(). A rank's
/// shards, one after the other, are its shard space: the state of the flat element
/// `bucket.begin + rank * size / ranks + i` lies there at `bucket.shards_begin + i`.
class ParamGroup {
 public:
  explicit ParamGroup(bool trainable) : trainable_(trainable) {}
  [[nodiscard]] bool trainable() const { return trainable_; }
  [[nodiscard]] const mesh::Position& position() const { return position_; }
  [[nodiscard]] const std::vector<Param*>& params() const { return params_; }
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] Dim flat_size() const { return flat_size_; }
  [[nodiscard]] Dim shard_size() const { return shard_size_; }
  [[nodiscard]] ElementRange all() const { return {0, 0, flat_size_}; }
  /// This rank's shard of a bucket.
  [[nodiscard]] ElementRange shard(const Bucket& bucket) const;
  [[nodiscard]] const Bucket& bucket_of(const Param& param) const;
  /// True if it is of experts that no other rank has shards of.
  [[nodiscard]] bool is_of_own_experts(const Bucket& bucket) const {
    return bucket.is_of_experts() && position_.size(bucket.cut_axes()) == 1;
  }

  /// Memory of a group. `gradients`: by bucket, of its size, where backward writes; may be empty.
  /// `present`: by bucket, where layers read the values; empty: in `value`.
  struct Memory {
    StateView master;
    StateView value;
    std::vector<View> gradients;
    std::vector<View> present = {};
  };
  /// Sets the views of all parameters.
  void bind(Memory memory);
  [[nodiscard]] const StateView& master() const { return memory_.master; }
  [[nodiscard]] const StateView& value() const { return memory_.value; }
  [[nodiscard]] View gradient(const Bucket& bucket) const;
  /// The values of a bucket where layers read them; absent if they read FP8 values instead.
  [[nodiscard]] View present(const Bucket& bucket) const;
  /// True if values are copies of the masters, in another dtype or memory.
  [[nodiscard]] bool has_own_values() const {
    return master() && value().data.raw() != master().data.raw();
  }

 private:
  friend class ParamStore;
  bool trainable_;
  mesh::Position position_;
  std::vector<Param*> params_;
  std::vector<Bucket> buckets_;
  Dim flat_size_ = 0;
  Dim shard_size_ = 0;
  Memory memory_;
};

/// All parameters of a stage in forward order. Setup: declare everything, lay out, bind the groups
/// to memory (sharding::Presence::allocate).
class ParamStore {
 public:
  /// `trains`: true for roles of trained parameters; the others are frozen: they have no gradient,
  /// no master copy and no optimizer state. `parametrization`: changes the
  /// standard deviations that layers ask for.
  explicit ParamStore(
      const mesh::Position& position = {},
      const std::function<bool(Role)>& trains = [](Role) { return true; },
      const MatrixStorage& storage = {}, const Parametrization& parametrization = {});
  ParamStore(ParamStore&&) = default;  // parameters keep their addresses
  ParamStore& operator=(ParamStore&&) = delete;
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;
  ~ParamStore() = default;

  /// Starts the next unit; the tensors declared from now on belong to it.
  void begin_unit() { ++unit_; }
  /// Declares tensors of one role and placement that are to lie one after the other.
  FusedParam declare(std::span<const ParamSpec> specs);
  FusedParam declare(const ParamSpec& spec) { return declare({&spec, 1}); }
  /// The current unit also computes with tensors of an earlier one.
  void share(const FusedParam& fused);

  /// Gives every parameter its position. In each group tied tensors, partial and replicated ones
  /// come first, a bucket for each; the others form buckets of at least `bucket_bytes` of f32
  /// gradients from whole units, last unit first, where units with and without gathered FP8 values
  /// stay apart, and so do experts' tensors. A bucket's size is a multiple of 128 bytes for each
  /// rank along its cut_axes().
  void lay_out(std::size_t bucket_bytes);

  /// Asks for FP8 values of a matrix, with so much memory for those that the layer finds; if
  /// `gathered`, other data ranks send the FP8 values of trained ones, and frozen ones give null.
  [[nodiscard]] const KeptFp8* keep_fp8(const FusedParam& matrix, std::size_t bytes, bool gathered);
  [[nodiscard]] std::deque<KeptFp8>& kept_fp8() { return kept_fp8_; }
  [[nodiscard]] const std::deque<KeptFp8>& kept_fp8() const { return kept_fp8_; }
  /// True if FP8 values of a matrix are gathered.
  [[nodiscard]] bool gathers_fp8() const {
    return std::ranges::any_of(kept_fp8_, &KeptFp8::gathered);
  }

  [[nodiscard]] const std::deque<Param>& params() const { return params_; }
  /// Matrices that are stored quantized or trained with fake quantization.
  [[nodiscard]] std::deque<QuantizedWeight>& quantized_weights() { return quantized_weights_; }
  [[nodiscard]] const std::deque<QuantizedWeight>& quantized_weights() const {
    return quantized_weights_;
  }
  [[nodiscard]] int units() const { return unit_ + 1; }
  [[nodiscard]] ParamGroup& trained() { return groups_[0]; }
  [[nodiscard]] const ParamGroup& trained() const { return groups_[0]; }
  [[nodiscard]] ParamGroup& frozen() { return groups_[1]; }
  [[nodiscard]] const ParamGroup& frozen() const { return groups_[1]; }
  /// Those with ParamSpec::is_buffer.
  [[nodiscard]] ParamGroup& buffers() { return groups_[2]; }
  [[nodiscard]] const ParamGroup& buffers() const { return groups_[2]; }
  [[nodiscard]] const std::vector<ParamGroup>& groups() const { return groups_; }

 private:
  struct Fused {  // members have no gaps between them
    std::size_t first = 0;
    std::size_t count = 0;
    int unit = 0;
    int last_unit = 0;  ///< last unit that writes to its gradients
    std::size_t group = 0;
    Placements placement;
  };
  [[nodiscard]] Placements placement_of(const ParamSpec& spec) const;
  Param& add(const ParamSpec& spec);
  [[nodiscard]] Dim size_of(const Fused& fused) const;
  const QuantizedWeight* add_quantized(const std::vector<Param*>& members, bool trained);
  [[nodiscard]] bool has_fp8(int unit, const Placements& placement) const;
  [[nodiscard]] std::vector<Bucket> shared_buckets(std::size_t group) const;
  [[nodiscard]] std::vector<Bucket> unit_buckets(std::size_t group, const Placements& placement,
                                                 std::size_t bucket_bytes) const;
  void form_buckets(std::size_t group, std::size_t bucket_bytes);

  mesh::Position position_;
  std::function<bool(Role)> trains_;
  MatrixStorage storage_;
  Parametrization parametrization_;
  std::deque<Param> params_;  // addresses are stable
  std::deque<QuantizedWeight> quantized_weights_;
  std::deque<KeptFp8> kept_fp8_;
  std::vector<Fused> fused_;
  std::vector<ParamGroup> groups_;
  int unit_ = -1;
};

/// Fills masters and values of a group by the parameters' rules: normals are Philox of (seed, name,
/// global element index), so every layout starts from the same weights. Padding becomes zero.
/// Waits for the device.
void initialize(Context& ctx, const ParamGroup& group, std::uint64_t seed);

/// Fills the frozen matrices that are stored quantized: the same values, rounded.
void initialize_quantized(Context& ctx, const ParamStore& store, std::uint64_t seed);

/// A part of a named global tensor in a buffer of this rank.
struct ParamSlab {
  const Param* param = nullptr;
  Hyperslab part;  ///< part of the global tensor
  View data;       ///< values of that part, shape part.count
};
/// The parts of parameters in a buffer that belong to this rank.
enum class SlabsOf : std::uint8_t {
  holder,  ///< all that it has
  owner,   ///< those that it writes to checkpoints: together the ranks of the world write every
           ///< element of every tensor exactly once, the first ranks along Axis::replica in equal
           ///< shares over the bucket's cut_axes()
};
[[nodiscard]] std::vector<ParamSlab> slabs_of(const ParamGroup& group, const StateView& state,
                                              SlabsOf which);
/// The ranges of this rank's shards that it counts in the norm, without the parameters that another
/// tensor or pipeline rank owns. Together the ranks of the world count every element exactly once,
/// and zeros besides.
[[nodiscard]] std::vector<ElementRange> owned_ranges(const ParamGroup& group);

}  // namespace hyperslab::param
