// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/core/context.hpp"

namespace hyperslab::comm {

enum class ReduceOp : std::uint8_t { sum, max };

/// Kinds of calls, for counting.
enum class Call : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  send,
  recv,
  barrier,
};
inline constexpr int kCalls = 7;
[[nodiscard]] std::string_view name_of(Call call);

/// What went through one communicator on this rank. Bytes are those of the buffer handed in: the
/// whole buffer for all_reduce and broadcast, the full (unsharded) side for reduce_scatter and
/// all_gather, the message for send and recv.
struct Traffic {
  std::array<std::int64_t, kCalls> calls{};
  std::array<std::int64_t, kCalls> bytes{};
  /// From an operation's call to the moment it was first seen complete (by progress(), wait() or
  /// barrier()), summed over operations and added at wait(); those under way together count each.
  /// On CUDA the host sees no end: seconds of the device, of the operations that are timed, as far
  /// as collect_seconds() has told them.
  double seconds = 0;
  /// The host's time in wait() and barrier(). On CUDA a wait costs the host nothing: what its
  /// stream waits for is charged by the recorder's device timer to the phase around wait().
  double exposed_seconds = 0;
};

/// Names an enqueued operation of one communicator; tickets start at 1 and grow by one per
/// operation.
using Ticket = std::uint64_t;

class Trail;  ///< what the watchdog sees of a communicator

/// One send or receive of a group; exactly one of the two views is present.
struct Message {
  CView send;
  View recv;
  int peer = 0;
};

/// Collectives over one group, called in the same order by every member. A call only enqueues: it
/// starts after everything enqueued on `ctx`'s stream so far, the buffers belong to the
/// communicator until `wait` of its ticket. Views must be on the context's device; dtypes f64, f32,
/// bf16, f16, i64, i32 (u16 and u8 where nothing is reduced). Sums of bf16 and f16 round once per
/// addition. Operations of one communicator complete in any order, but every one of them must be
/// waited for, once, and at most kMaxUnderWay may be under way. On `meta` calls are only counted.
/// On CUDA an operation may be captured into a graph (GraphSegment), by all members alike, together
/// with its wait; graphs are to be destroyed before the communicators in them.
/// A call that breaks these rules throws an internal Error and enqueues nothing.
class Communicator : public Background {
 public:
  static constexpr std::size_t kMaxUnderWay = 1024;

  ~Communicator() override = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Where the buffers are; contexts on `meta` are taken besides.
  [[nodiscard]] Device device() const { return device_; }

  /// In place; every member ends with the same bits.
  Ticket all_reduce(Context& ctx, View buffer, ReduceOp op);
  /// Member r gets elements [r n, (r+1) n) of the sum, n = shard.numel(). full: size() * n
  /// elements; shard may be its own part of `full`, else they must not overlap. The rest of `full`
  /// is undefined afterwards.
  Ticket reduce_scatter(Context& ctx, View full, View shard);
  /// full[r n, (r+1) n) = shard of member r; shard may be its own part of `full`, else they must
  /// not overlap.
  Ticket all_gather(Context& ctx, CView shard, View full);
  Ticket broadcast(Context& ctx, View buffer, int root);

  /// Between group_begin and group_end, sends and receives are collected; group_end starts them all
  /// at once, so that two members that both send first cannot deadlock. Messages between two
  /// members match in the order of their calls; sizes and dtypes must agree. A received buffer must
  /// not overlap another buffer of the group. A group may be empty.
  void group_begin();
  void send(Context& ctx, CView buffer, int peer);
  void recv(Context& ctx, View buffer, int peer);
  Ticket group_end(Context& ctx);

  /// Tells the other members that this one has come here. The operation of the ticket is complete
  /// once all of them have: wait() says when, so that a late member can be told from a long
  /// transfer. Moves no data and counts in no traffic. 0, with nothing to wait for, if members
  /// cannot tell: in a group of one, on CUDA and on `meta`.
  [[nodiscard]] Ticket arrive(Context& ctx);

  /// What is enqueued on ctx's stream after this call runs after the operation; on the CPU it
  /// blocks, progressing everything that is under way. Recorded as kCommunicationComponent.
  /// Returns when the operation was first seen complete, on the monotonic clock; 0 if the host does
  /// not see its end (CUDA, `meta`).
  double wait(Context& ctx, Ticket ticket);
  /// Lets nonblocking operations advance; on the CPU called between ops, never blocks.
  void progress() override = 0;
  /// Blocks the host until every member has arrived.
  void barrier();

  /// A communicator over the members with the same color (at least 0), ordered by key; collective.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key,
                                                            const std::string& name) = 0;

  /// Whether all_reduce and reduce_scatter are timed; on unless switched off. On the CPU wait()
  /// adds them to the recorder's reduce_seconds (from the call to the moment the operation was
  /// first seen complete), on CUDA collect_seconds() tells.
  void report_reductions(bool report) { report_reductions_ = report; }
  /// CUDA: whether every operation is timed; off unless switched on. The two marks of one cost
  /// about 10 us.
  void time_operations(bool time) { time_operations_ = time; }
  /// CUDA: device seconds of the timed operations that the GPU finished since the last call, in
  /// graphs or not: from the moment their stream came to them to their end, waiting for other
  /// members included. Never blocks; what is still under way is told by a later call. Elsewhere 0.
  /// They are added to traffic().seconds.
  [[nodiscard]] double collect_seconds();
  /// CUDA: where the device keeps the nanoseconds of the timed operations that it has finished, in
  /// device memory; complete for what reads it after wait(). Elsewhere null.
  [[nodiscard]] virtual const std::uint64_t* device_nanoseconds() const { return nullptr; }

  [[nodiscard]] const Traffic& traffic() const { return traffic_; }

 protected:
  Communicator(std::string name, int rank, int size, Device device);

  [[nodiscard]] bool times(Call call) const {
    const bool reduction = call == Call::all_reduce || call == Call::reduce_scatter;
    return time_operations_ || (reduction && report_reductions_);
  }
  /// Operations not yet waited for.
  [[nodiscard]] std::size_t under_way() const { return under_way_; }
  /// Notes every call and wait there from now on.
  void leave_trail(std::shared_ptr<Trail> trail) { trail_ = std::move(trail); }
  /// Throws an internal Error that names the communicator, the member and the call.
  [[noreturn]] void refuse(std::string_view call, const std::string& reason) const;

 private:
  /// An operation between its call and its wait.
  struct Open {
    Ticket ticket = 0;  ///< 0 once it was waited for
    Call call = Call::barrier;
    Device device = Device::cpu;
    double start_seconds = 0;
  };

  // Called with checked arguments, and never for a context on meta.
  virtual void do_all_reduce(Context& ctx, View buffer, ReduceOp op, Ticket ticket) = 0;
  virtual void do_reduce_scatter(Context& ctx, View full, View shard, Ticket ticket) = 0;
  virtual void do_all_gather(Context& ctx, CView shard, View full, Ticket ticket) = 0;
  virtual void do_broadcast(Context& ctx, View buffer, int root, Ticket ticket) = 0;
  virtual void do_exchange(Context& ctx, std::span<const Message> messages, Ticket ticket) = 0;
  /// Returns when the operation finished on the monotonic clock, 0 where it did so at its call or
  /// the host does not see its end (CUDA).
  virtual double do_wait(Context& ctx, Ticket ticket) = 0;
  virtual void do_barrier() = 0;
  /// Whether do_arrive works.
  [[nodiscard]] virtual bool tells_arrivals() const { return false; }
  virtual void do_arrive(Ticket /*ticket*/) {}
  [[nodiscard]] virtual double do_collect_seconds() { return 0; }

  void check_view(const Context& ctx, Call call, CView view, std::string_view what) const;
  void check_reducible(Call call, CView view) const;
  void check_shard(Call call, CView full, CView shard) const;
  void check_member(Call call, int member, std::string_view what) const;
  void check_message(const Context& ctx, Call call, CView buffer, int peer) const;
  void count(Call call, std::size_t bytes);
  Ticket open(const Context& ctx, Call call);

  std::string name_;
  int rank_;
  int size_;
  Device device_;
  bool report_reductions_ = true;
  bool time_operations_ = false;
  bool in_group_ = false;
  Ticket next_ticket_ = 1;
  std::size_t under_way_ = 0;
  std::vector<Open> open_;
  std::vector<Message> messages_;
  Traffic traffic_;
  std::shared_ptr<Trail> trail_;  ///< null where there is nobody to wait for
};

/// A group of one on the CPU or on CUDA, where copies go to the context's stream: every collective
/// is the identity (or a copy). What a group sends to itself it must receive in the same group, in
/// order.
[[nodiscard]] std::unique_ptr<Communicator> make_self_communicator(const std::string& name,
                                                                   Device device = Device::cpu);

/// Member `rank` of a group of `size` that exists only in a plan: takes contexts on `meta`, counts
/// calls and moves nothing. It cannot be split, except into itself where size is 1: a plan makes
/// the communicator of each group by its name, rank and size.
[[nodiscard]] std::unique_ptr<Communicator> make_meta_communicator(const std::string& name,
                                                                   int rank, int size);

}  // namespace hyperslab::comm
