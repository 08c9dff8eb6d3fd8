// SPDX-License-Identifier: Apache-2.0
#include "matrix_exchange.hpp"

#include <algorithm>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/ops/columns.hpp"

namespace hyperslab::optim {
namespace {

using Round = MatrixExchange::Round;

constexpr Dim kAlignment = 64;  // elements

/// Memory of a round; every round begins at its start.
class Room {
 public:
  explicit Room(View all) : all_(all) {}
  View take(Dim size) {
    const Dim begin = round_up(used_, kAlignment);
    used_ = begin + size;
    return all_.slice(begin, size);
  }
  [[nodiscard]] Dim used() const { return used_; }

 private:
  View all_;
  Dim used_ = 0;
};

/// This rank in a group; alone without one.
struct Member {
  explicit Member(const comm::Communicator* group)
      : rank(group == nullptr ? 0 : group->rank()), size(group == nullptr ? 1 : group->size()) {}
  int rank;
  int size;
};

/// The split of a matrix over the tensor group: equal parts along one dimension, each of which
/// `replicas` neighbouring ranks hold.
struct TensorCut {
  TensorCut(const param::Param& param, int ranks) {
    const Shape& whole = param.global_shape;
    const Shape& part = param.part.count;
    dim = whole[0] == part[0] ? 1 : 0;
    parts = static_cast<int>(whole[dim] / part[dim]);
    replicas = ranks / parts;
    if (parts * replicas != ranks || whole.numel() != parts * part.numel()) {
      throw Error(ExitCode::internal, "muon: tensor ranks hold unequal parts of " + param.name);
    }
  }
  /// True if the elements of a part lie one after the other in the whole.
  [[nodiscard]] bool is_contiguous() const { return parts == 1 || dim == 0; }
  [[nodiscard]] int part_of(int rank) const { return rank / replicas; }

  int dim;
  int parts;
  int replicas;
};

/// Elements [begin, end) of a local part.
struct Range {
  Dim begin = 0;
  Dim end = 0;
  [[nodiscard]] Dim size() const { return std::max<Dim>(0, end - begin); }
};

class RoundBuilder {
 public:
  RoundBuilder(const param::ParamGroup& group, bool sharded, const UpdateGroups& groups, View room)
      : group_(group), sharded_(sharded), data_(groups.data), tensor_(groups.tensor), room_(room) {}

  Round build(const MatrixRound& matrices) {
    const std::vector<View> wholes = take_batches(matrices);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const int owner = matrices[i].owner;
      const param::Param& param = *matrices[i].param;
      const TensorCut cut(param, tensor_.size);
      const Held held = take_part(param, cut, owner, wholes[i]);
      move_over_data(param, owner / tensor_.size, held);
      if (owner / tensor_.size != data_.rank || tensor_.size == 1) continue;
      if (is_mine(owner)) {
        collect(cut, held.part, wholes[i]);
      } else {
        move_to_owner(cut, owner % tensor_.size, held.part);
      }
    }
    return std::move(round_);
  }
  [[nodiscard]] Dim used() const { return room_.used(); }

 private:
  /// Memory of a matrix on this rank, flat.
  struct Held {
    View part;   ///< this tensor rank's part; absent where only the piece comes by
    View piece;  ///< elements of the part that this data rank updates
  };
  [[nodiscard]] bool is_mine(int owner) const {
    return owner == data_.rank * tensor_.size + tensor_.rank;
  }

  /// One allocation for all of this rank's matrices of one shape; a view for every matrix, absent
  /// if another rank owns it.
  std::vector<View> take_batches(const MatrixRound& matrices) {
    std::vector<View> wholes(matrices.size());
    for (std::size_t first = 0; first < matrices.size();) {
      const Shape shape = matrices[first].param->global_shape;
      std::size_t end = first + 1;
      while (end < matrices.size() && matrices[end].owner == matrices[first].owner &&
             matrices[end].param->global_shape == shape) {
        ++end;
      }
      if (is_mine(matrices[first].owner)) {
        const auto count = static_cast<Dim>(end - first);
        const View batch = room_.take(count * shape.numel());
        round_.batches.push_back(batch.reshaped({count, shape[0], shape[1]}));
        for (std::size_t i = first; i < end; ++i) {
          wholes[i] = batch.slice(static_cast<Dim>(i - first) * shape.numel(), shape.numel())
                          .reshaped(shape);
        }
      }
      first = end;
    }
    return wholes;
  }

  /// Takes room for this rank's part, in the whole where that is possible, and for its piece.
  Held take_part(const param::Param& param, const TensorCut& cut, int owner, const View& whole) {
    const Range mine = range_of(param, data_.rank);
    Held held;
    if (!sharded_ || owner / tensor_.size == data_.rank) {
      held.part = is_mine(owner) && cut.is_contiguous() ? rows_of(cut, tensor_.rank, whole)
                                                        : room_.take(param.numel());
      held.piece = held.part.slice(mine.begin, mine.size());
    } else {
      held.piece = room_.take(mine.size());
    }
    if (mine.size() > 0) add_piece({element_range(param, mine), held.piece});
    return held;
  }

  /// Elements of this rank's part, flat, that lie in a data rank's shard; all without shards.
  [[nodiscard]] Range range_of(const param::Param& param, int data_rank) const {
    if (!sharded_) return {0, param.numel()};
    const param::Bucket& bucket = group_.bucket_of(param);
    const Dim shard = bucket.size() / data_.size;
    const Dim begin = bucket.begin + data_rank * shard - param.flat_begin;
    const Range range = {std::max<Dim>(0, begin), std::min(param.numel(), begin + shard)};
    return range.size() > 0 ? range : Range{};
  }

  [[nodiscard]] param::ElementRange element_range(const param::Param& param,
                                                  const Range& range) const {
    const Dim in_flat = param.flat_begin + range.begin;
    if (!sharded_) return {in_flat, 0, range.size()};
    const param::ElementRange shard = group_.shard(group_.bucket_of(param));
    return {in_flat, shard.in_shards + in_flat - shard.in_flat, range.size()};
  }

  /// Joins a piece that follows the last one in both memories: query, key and value are one launch.
  void add_piece(const MatrixExchange::Piece& piece) {
    if (!round_.pieces.empty()) {
      auto& [range, numbers] = round_.pieces.back();
      const auto* end = static_cast<const std::byte*>(numbers.raw()) + numbers.bytes();
      const bool follows = range.in_flat + range.size == piece.range.in_flat &&
                           (!sharded_ || range.in_shards + range.size == piece.range.in_shards) &&
                           end == piece.numbers.raw();
      if (follows) {
        range.size += piece.range.size;
        numbers = View(numbers.raw(), numbers.dtype(), numbers.device(), {range.size});
        return;
      }
    }
    round_.pieces.push_back(piece);
  }

  /// Data ranks that hold everything need nothing of others, and get the result.
  void move_over_data(const param::Param& param, int owner, const Held& held) {
    const auto move = [&](const View& numbers, int peer, bool sends) {
      if (numbers.numel() == 0) return;
      if (sharded_) round_.to_data_rank.push_back({numbers, peer, sends});
      round_.from_data_rank.push_back({numbers, peer, !sends});
    };
    if (owner != data_.rank) return move(held.piece, owner, true);
    for (int rank = 0; rank < data_.size; ++rank) {
      const Range theirs = range_of(param, rank);
      if (rank != data_.rank) move(held.part.slice(theirs.begin, theirs.size()), rank, false);
    }
  }

  static View rows_of(const TensorCut& cut, int rank, const View& whole) {
    const Dim size = whole.numel() / cut.parts;
    return whole.flat().slice(cut.part_of(rank) * size, size);
  }

  void add_columns(const TensorCut& cut, int part, const View& numbers, const View& whole) {
    const Dim width = whole.shape()[1] / cut.parts;
    round_.columns.push_back({numbers.reshaped({whole.shape()[0], width}), part * width, whole});
  }

  /// The owner's side in the tensor group: of several ranks with one part the first one sends.
  void collect(const TensorCut& cut, const View& mine, const View& whole) {
    const int my_part = cut.part_of(tensor_.rank);
    std::vector<View> parts(static_cast<std::size_t>(cut.parts));
    for (int part = 0; part < cut.parts; ++part) {
      View& numbers = parts[static_cast<std::size_t>(part)];
      const int first = part * cut.replicas;
      numbers = part == my_part       ? mine
                : cut.is_contiguous() ? rows_of(cut, first, whole)
                                      : room_.take(mine.numel());
      if (part != my_part) round_.to_owner.push_back({numbers, first, false});
      if (!cut.is_contiguous()) add_columns(cut, part, numbers, whole);
    }
    for (int rank = 0; rank < tensor_.size; ++rank) {
      if (rank == tensor_.rank) continue;
      const auto part = static_cast<std::size_t>(cut.part_of(rank));
      round_.from_owner.push_back({parts[part], rank, true});
    }
  }

  void move_to_owner(const TensorCut& cut, int owner, const View& part) {
    const int mine = cut.part_of(tensor_.rank);
    const bool sends = tensor_.rank == mine * cut.replicas && mine != cut.part_of(owner);
    if (sends) round_.to_owner.push_back({part, owner, true});
    round_.from_owner.push_back({part, owner, false});
  }

  const param::ParamGroup& group_;
  bool sharded_;
  Member data_;
  Member tensor_;
  Room room_;
  Round round_;
};

/// All members call it, also those without a message.
void exchange(Context& ctx, comm::Communicator* group,
              const std::vector<MatrixExchange::Move>& moves) {
  if (group == nullptr || group->size() == 1) return;
  group->group_begin();
  for (const auto& [numbers, peer, sends] : moves) {
    if (sends) {
      group->send(ctx, numbers, peer);
    } else {
      group->recv(ctx, numbers, peer);
    }
  }
  group->wait(ctx, group->group_end(ctx));
}

}  // namespace

MatrixExchange::MatrixExchange(const param::ParamGroup& group, bool of_experts, bool sharded,
                               const UpdateGroups& groups, Arena& arena)
    : groups_(groups), sharded_(sharded) {
  if (of_experts) groups_.data = groups.expert_data;
  const Member data(groups_.data);
  const Member tensor(groups_.tensor);
  // Without shards every data rank has room for the matrices of all owners.
  const Dim of_an_owner = sharded ? groups.round_elements : groups.round_elements / data.size;
  const std::vector<MatrixRound> rounds =
      plan_matrix_rounds(group, of_experts, data.size * tensor.size, of_an_owner);
  if (rounds.empty()) return;
  const DType dtype = group.master().data.dtype();
  const View unlimited(nullptr, dtype, Device::meta, {Dim{1} << 56});
  Dim most = 0;
  for (const MatrixRound& round : rounds) {
    RoundBuilder builder(group, sharded, groups_, unlimited);
    (void)builder.build(round);
    most = std::max(most, builder.used());
  }
  const View room = arena.take(dtype, {most}, "muon matrices");
  for (const MatrixRound& round : rounds) {
    rounds_.push_back(RoundBuilder(group, sharded, groups_, room).build(round));
  }
}

void MatrixExchange::gather(Context& ctx, const Round& round) const {
  if (sharded_) exchange(ctx, groups_.data, round.to_data_rank);
  if (Member(groups_.tensor).size == 1) return;
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  exchange(ctx, groups_.tensor, round.to_owner);
  for (const auto& [part, first, whole] : round.columns) ops::put_columns(ctx, part, first, whole);
}

void MatrixExchange::scatter(Context& ctx, const Round& round) const {
  if (Member(groups_.tensor).size > 1) {
    const Scope phase(ctx.recorder(), Phase::tensor_comm);
    for (const auto& [part, first, whole] : round.columns) {
      ops::take_columns(ctx, whole, first, part);
    }
    exchange(ctx, groups_.tensor, round.from_owner);
  }
  exchange(ctx, groups_.data, round.from_data_rank);
}

}  // namespace hyperslab::optim
