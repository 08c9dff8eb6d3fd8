// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/ops/experts.hpp"

namespace hyperslab::nn {

/// The most rows that the experts of one of so many ranks get, if every rank has so many tokens: no
/// token is left out, so memory is planned for all tokens coming there.
[[nodiscard]] inline Dim most_rows_of_rank(Dim tokens, const ops::RouterRule& rule, Dim ranks) {
  return ranks * tokens * std::min(rule.active, rule.count / ranks);
}

/// The way of tokens to the ranks of their experts, and of results back. A row is a pair of a token
/// and one of its experts. An expert sees its rows ordered by rank, then by token, which is the
/// order of all tokens in a group of one. Below N are the tokens of one rank, K the experts of a
/// token, E all experts, P the ranks, C the width, "here" the rows that this rank's experts get, of
/// at most so many as ExpertGroup::most_rows() says. All members call in the same order.
class ExpertExchange {
 public:
  /// A part of the rows here that memory holds at once.
  struct Part {
    Dim first = 0;
    CView first_rows;  ///< (E / P + 1): the experts' first rows in the part
    CView used;        ///< (1): the rows in it, as Way has it
    [[nodiscard]] bool is_first() const { return first == 0; }
  };
  /// The way of the rows of a microbatch; i32. Views that an exchange does not need are absent.
  struct Way {
    View first_rows;  ///< (E / P + 1): rows here of each of this rank's experts
    View pairs;       ///< (rows): pair n K + k of a row, ops::sort_by_expert()
    View rows;        ///< (tokens, K): the row of a pair, -1 if its expert is elsewhere
    /// (1): the rows here, for a device that alone knows them; absent if the host does.
    View used;
    // all_gather
    View chosen;      ///< (P N, K): the experts of all ranks' tokens
    View part_first;  ///< (parts, E / P + 1): first_rows of each part; absent if one has all
    // all_to_all, on the host's side of memory
    View all_first_rows;  ///< (E + 1): this rank's rows of every expert
    View sent;            ///< (E): rows for every expert
    View arrived;         ///< (P, E / P): rows of every rank
    View order;           ///< (most rows): the place on arrival of an expert's row
    View inverse;         ///< (most rows): the other way round
    Dim at_once = 0;      ///< rows of a part
    /// The way of the first N tokens of each rank.
    [[nodiscard]] Way of_tokens(Dim N, Dim K, Dim ranks, Dim most_rows, Dim rows_at_once) const;
    [[nodiscard]] Part part(Dim index) const;
  };
  /// Memory that all microbatches use in turn.
  struct Room {
    // all_gather
    View tokens;    ///< (P N, C): tokens of all ranks
    View inputs;    ///< likewise, for tokens on their way beside others; with training only
    View terms;     ///< (P N, C): terms of the sums of tokens' rows
    View received;  ///< (N, C): other ranks' terms, where ranks write into each other's memory
    View weights;   ///< (P N, K): weights of all ranks' pairs, or their gradients
    // all_to_all
    View values;           ///< (N K, C): rows of this rank's tokens
    View row_weights;      ///< (N K, 1)
    View arrival;          ///< (most rows, C)
    View arrived_weights;  ///< (most rows, 1)
    [[nodiscard]] Room of_tokens(Dim N, Dim K, Dim ranks) const;
  };

  struct Sizes {
    Dim tokens;
    Dim width;
    DType compute;
    DType statistics;
    bool trains;
  };
  /// Values on their way from start_...() to the call that ends it. Other work goes beside it.
  struct Transfer {
    comm::Ticket ticket = 0;  ///< 0: nothing is on its way
    CView values;             ///< the memory that takes them, or has them
  };

  ExpertExchange() = default;
  ExpertExchange(const ExpertExchange&) = delete;
  ExpertExchange& operator=(const ExpertExchange&) = delete;
  ExpertExchange(ExpertExchange&&) = delete;
  ExpertExchange& operator=(ExpertExchange&&) = delete;
  virtual ~ExpertExchange() = default;

  [[nodiscard]] virtual Way take_way(Arena& arena, Dim tokens, const ops::RouterRule& rule,
                                     const std::string& label) const = 0;
  [[nodiscard]] virtual Room take_room(Arena& arena, const Sizes& sizes,
                                       const ops::RouterRule& rule) const = 0;
  /// Orders the rows of chosen: (N, K), and tells the others what they need to know. weights: (N,
  /// K).
  virtual void sort(Context& ctx, CView chosen, CView weights, const Way& way,
                    const Room& room) const = 0;
  /// Rows that memory is planned for, of so many tokens on each rank. With fewer than
  /// most_rows_of_rank() there may be several parts.
  [[nodiscard]] virtual Dim rows_at_once(Dim tokens, const ops::RouterRule& rule) const = 0;
  /// The rows here, or at least as many where the host does not know; of `most`, and of N K that
  /// this rank's tokens have. On `meta` they are N K, as if loads were equal.
  [[nodiscard]] virtual Dim rows_here(const Context& ctx, const Way& way, Dim own,
                                      Dim most) const = 0;
  /// weights: (N, K), as sort() got them -> here: (rows).
  virtual void weights_to_experts(Context& ctx, const Way& way, const Room& room, CView weights,
                                  View here) const = 0;
  /// Begins to bring tokens: (N, C) to the ranks of their experts, where `all`, room.tokens or
  /// room.inputs, takes them. Needs no way.
  [[nodiscard]] virtual Transfer start_to_experts(Context& ctx, CView tokens, View all) const = 0;
  /// Ends it at the first part's call. Returns the rows of a part; here: (rows, C) holds them, or
  /// will where they must lie in order.
  [[nodiscard]] virtual ops::GatheredRows to_experts(Context& ctx, const Way& way, const Room& room,
                                                     Transfer& tokens, const Part& part,
                                                     View here) const = 0;
  /// Adds up tokens' rows of a part, the first one first. here: (rows, C), free afterwards; tokens:
  /// (N, C).
  virtual void add_rows(Context& ctx, const Way& way, const Room& room, const Part& part, View here,
                        View tokens) const = 0;
  /// Begins to bring back the sums of all parts. tokens: (N, C).
  [[nodiscard]] virtual Transfer start_to_tokens(Context& ctx, const Room& room,
                                                 View tokens) const = 0;
  /// Ends it, with the same arguments.
  virtual void to_tokens(Context& ctx, const Room& room, const Transfer& sums,
                         View tokens) const = 0;
  /// Begins to bring back values of pairs. here: (rows), free afterwards; weights: (N, K).
  [[nodiscard]] virtual Transfer start_weights_to_tokens(Context& ctx, const Way& way,
                                                         const Room& room, CView here,
                                                         View weights) const = 0;
  /// Ends a transfer, once: afterwards its values are there.
  virtual void wait(Context& ctx, const Transfer& transfer) const = 0;
};

/// Every rank gets the tokens of all, takes the rows of its experts, and adds up its terms of every
/// token's sum; a reduce-scatter adds those of all ranks. Nobody waits for a count. A rank sends
/// P - 1 rows for a token, however many experts it has. Memory holds `bound` N K rows at once.
/// Null: a group of one, in which nothing is sent and N K rows are all.
[[nodiscard]] std::shared_ptr<const ExpertExchange> exchange_by_all_gather(
    comm::Communicator* group, double bound);
/// Rows travel to the ranks of their experts and back, at most K (P - 1) / P of a token. First the
/// members tell each other how many, and the host waits for the numbers: for CPU ranks. A token's
/// rows are summed in the order of its experts.
[[nodiscard]] std::shared_ptr<const ExpertExchange> exchange_by_all_to_all(
    comm::Communicator& group);

}  // namespace hyperslab::nn
