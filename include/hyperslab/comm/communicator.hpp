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

#include "hyperslab/comm/group_role.hpp"
#include "hyperslab/core/context.hpp"

namespace hyperslab::comm {

enum class ReduceOp : std::uint8_t { sum, max };

/// Kinds of calls. The first kCalls are counted; the watchdog names all.
enum class Call : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier,
  share,
};
inline constexpr int kCalls = 8;
[[nodiscard]] std::string_view name_of(Call call);

/// The traffic of one communicator on this rank. Bytes count the buffer handed in: the whole
/// buffer for all_reduce and broadcast, the full (unsharded) side for reduce_scatter and
/// all_gather, what is sent for all_to_all, the message for send and recv.
struct Traffic {
  std::array<std::int64_t, kCalls> calls{};
  std::array<std::int64_t, kCalls> bytes{};
  /// From an operation's call to the moment it was first seen complete (by progress(), wait() or
  /// barrier()), summed over operations and added at wait(); operations that overlap count each. On
  /// CUDA: seconds of the device, of the operations that are timed, up to the newest
  /// collect_seconds().
  double seconds = 0;
  /// Operations that the CPU's host called, and the sum of the moments of these calls on the
  /// monotonic clock: each stamps the end of the computation before it. None on other devices.
  std::int64_t stamped = 0;
  double call_moments = 0;
  double newest_end = 0;  ///< when the operation that was waited for last was complete
  /// The host's time in wait() and barrier(). On CUDA a wait costs the host nothing: its stream's
  /// waiting is charged by the recorder's device timer to the phase around wait().
  double exposed_seconds = 0;
};

/// Names an enqueued operation of one communicator; tickets start at 1 and grow by one per
/// operation.
using Ticket = std::uint64_t;

class FlightRecorder;  ///< records calls and waits for the watchdog

/// One send or receive of a group; exactly one of the two views is present.
struct Message {
  CView send;
  View recv;
  int peer = 0;
};

/// Elements [begin, begin + count) of every member's part of a view.
struct Piece {
  Dim begin = 0;
  Dim count = 0;
};

/// Collectives over one group, called in the same order by every member. A call enqueues an
/// operation that starts after everything enqueued so far on the stream `after`, which is the
/// compute stream if a context is given; the buffers belong to the communicator until `wait` of its
/// ticket. On the CPU the host does not block, unless `after` has a thread: then the call first
/// waits for its work, with progress. Example: a sum of a copy's values, beside computation:
///   (void)copy_async(ctx, from, x);
///   const Ticket sum = comm.all_reduce(ctx.copy_stream(), x, ReduceOp::sum);
///   ... ops ...
///   comm.wait(ctx, sum);
///
/// Views must be on the stream's device; dtypes f64, f32, bf16, f16, i64, i32 (also u16 and u8 if
/// nothing is reduced). Sums of bf16 and f16 round once per addition. Operations of one
/// communicator complete in any order, but every one of them must be waited for, once, and at most
/// kMaxUnderWay may be in progress. On `meta` calls are only counted. On CUDA an operation may be
/// captured into a graph (GraphSegment), by all members alike, together with its wait; graphs are
/// to be destroyed before the communicators in them. A call that breaks these rules throws an
/// internal Error and enqueues nothing.
class Communicator : public Background {
 public:
  static constexpr std::size_t kMaxUnderWay = 1024;

  ~Communicator() override = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;

  [[nodiscard]] GroupRole role() const { return role_; }
  /// The name of the role, for errors, logs and files.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// The device of the buffers; streams of `meta` are accepted besides.
  [[nodiscard]] Device device() const { return device_; }

  /// In place; every member ends with the same bits.
  Ticket all_reduce(Stream& after, View buffer, ReduceOp op);
  Ticket all_reduce(Context& ctx, View buffer, ReduceOp op) {
    return all_reduce(ctx.stream(), buffer, op);
  }
  /// Member r gets elements [r n, (r+1) n) of the sum, n = shard.numel(). full: size() * n
  /// elements; shard may be its own part of `full`, else they must not overlap. The rest of `full`
  /// is undefined afterwards.
  Ticket reduce_scatter(Stream& after, View full, View shard);
  Ticket reduce_scatter(Context& ctx, View full, View shard) {
    return reduce_scatter(ctx.stream(), full, shard);
  }
  /// A piece of a reduce_scatter without this member's own term: shard[i] = the sum of the others'
  /// values in element i of this member's part of `full`, for i in [begin, begin + count). The
  /// shard, its own part or a view of that size outside of `full`, lies there on all members alike;
  /// for views that is_shared() holds of, which no view on `meta` is: plans count the whole sum
  /// instead, which sends as many bytes.
  Ticket reduce_scatter_others(Context& ctx, View full, View shard, Dim begin, Dim count);
  /// A piece of an all_gather in place: elements [begin, begin + count) of every member's part. For
  /// views that is_shared() holds of.
  Ticket all_gather_piece(Context& ctx, View full, Dim begin, Dim count);
  /// full[r n, (r+1) n) = shard of member r; shard may be its own part of `full`, else they must
  /// not overlap.
  Ticket all_gather(Stream& after, CView shard, View full);
  Ticket all_gather(Context& ctx, CView shard, View full) {
    return all_gather(ctx.stream(), shard, full);
  }
  /// received[r n, (r+1) n) = sent[q n, (q+1) n) of member r, for this member q and n = numel /
  /// size(). The views have as many elements and do not overlap.
  Ticket all_to_all(Stream& after, CView sent, View received);
  Ticket all_to_all(Context& ctx, CView sent, View received) {
    return all_to_all(ctx.stream(), sent, received);
  }
  /// all_to_all of parts that differ in size, of whole rows (all elements of one first index): this
  /// member sends sent_rows[q] rows to member q, from its first rows on, one part after the other,
  /// and receives received_rows[r] rows of member r in that order. The counts are on the host, of
  /// every member, and agree with the other member's; the views may have more rows, which are left
  /// alone. They have rows of one size and do not overlap. A graph would repeat the counts.
  Ticket all_to_all_rows(Stream& after, CView sent, std::span<const Dim> sent_rows, View received,
                         std::span<const Dim> received_rows);
  Ticket all_to_all_rows(Context& ctx, CView sent, std::span<const Dim> sent_rows, View received,
                         std::span<const Dim> received_rows) {
    return all_to_all_rows(ctx.stream(), sent, sent_rows, received, received_rows);
  }
  Ticket broadcast(Stream& after, View buffer, int root);
  Ticket broadcast(Context& ctx, View buffer, int root) {
    return broadcast(ctx.stream(), buffer, root);
  }

  /// Between group_begin and group_end, sends and receives are collected; group_end starts them all
  /// at once, so that two members that both send first cannot deadlock. Messages between two
  /// members match in the order of their calls; sizes and dtypes must agree. A received buffer must
  /// not overlap another buffer of the group. A group may be empty.
  void group_begin();
  void send(Context& ctx, CView buffer, int peer);
  void recv(Context& ctx, View buffer, int peer);
  Ticket group_end(Stream& after);
  Ticket group_end(Context& ctx) { return group_end(ctx.stream()); }

  /// Announces to the other members that this one has arrived here. The operation of the ticket is
  /// complete once all of them have: wait() returns when, so that a late member can be told from a
  /// long transfer. Moves no data and counts in no traffic. 0, with nothing to wait for, if
  /// arrivals are not announced: in a group of one, on CUDA and on `meta`.
  [[nodiscard]] Ticket arrive(Context& ctx);

  /// Makes work that is enqueued on `before` after this call run after the operation; on the CPU it
  /// blocks, progressing everything that is in progress. Recorded in the context's recorder as
  /// kCommunicationComponent. Returns when the operation was first seen complete, on the monotonic
  /// clock; 0 if the host does not see its end (CUDA, `meta`).
  double wait(Context& ctx, Stream& before, Ticket ticket);
  /// wait for the compute stream.
  double wait(Context& ctx, Ticket ticket) { return wait(ctx, ctx.stream(), ticket); }
  /// Lets nonblocking operations advance; on the CPU called between ops, never blocks.
  void progress() override = 0;
  /// Blocks the host until every member has arrived.
  void barrier();

  /// Lets members write into each other's memory of `arena`, from which all of them have taken the
  /// same views: calls with one of these are given the same one by all members, and as shard of a
  /// reduce_scatter all give their own part of it, or none does. Ends when the result is destroyed:
  /// on all members, before the arena and this communicator. Null where members cannot,
  /// or took other views. Collective.
  [[nodiscard]] std::shared_ptr<void> share(const Arena& arena);
  /// True if pieces of this view are written right where they belong on the other members, beside
  /// computation: then products are worth cutting into pieces. Alike on all members.
  [[nodiscard]] virtual bool is_shared(CView /*view*/) const { return false; }

  /// A communicator over the members with the same color (at least 0), ordered by key; collective.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color, int key, GroupRole role) = 0;

  /// Switches the timing of all_reduce and reduce_scatter; on at first. On the CPU wait() adds them
  /// to the recorder's reduce_seconds (from the call to the moment the operation was first seen
  /// complete), on CUDA collect_seconds() returns them.
  void report_reductions(bool report) { report_reductions_ = report; }
  /// CUDA: true to time every operation; off unless switched on. The two marks of one cost
  /// about 10 us.
  void time_operations(bool time) { time_operations_ = time; }
  /// CUDA: from now on calls are added to `recorder` as operations on its traced steps, without
  /// their times, which the profiler finds; null: nowhere. It must outlive the calls.
  void record_operations(Recorder* recorder) { recorder_ = recorder; }
  /// CUDA: device seconds of the timed operations that the GPU finished since the last call, in
  /// graphs or not: from the moment their stream came to them to their end, waiting for other
  /// members included. Never blocks; operations in progress are part of a later call's seconds. 0
  /// on other devices. They are added to traffic().seconds.
  [[nodiscard]] double collect_seconds();
  /// CUDA: the address in device memory of the nanoseconds of the timed operations that the device
  /// has finished; complete for work that reads it after wait(). Null on other devices.
  [[nodiscard]] virtual const std::uint64_t* device_nanoseconds() const { return nullptr; }

  [[nodiscard]] const Traffic& traffic() const { return traffic_; }

 protected:
  Communicator(GroupRole role, int rank, int size, Device device);

  [[nodiscard]] bool times(Call call) const {
    const bool reduction = call == Call::all_reduce || call == Call::reduce_scatter;
    return time_operations_ || (reduction && report_reductions_);
  }
  /// Operations not yet waited for.
  [[nodiscard]] std::size_t under_way() const { return under_way_; }
  /// From now on every call and wait is recorded there.
  void record_calls(std::shared_ptr<FlightRecorder> recorder) {
    flight_recorder_ = std::move(recorder);
  }
  /// Throws an internal Error that names the communicator, the member and the call.
  [[noreturn]] void refuse(std::string_view call, const std::string& reason) const;

 private:
  /// An operation between its call and its wait.
  struct Open {
    Ticket ticket = 0;  ///< 0 once it was waited for
    Call call = Call::barrier;
    Device device = Device::cpu;
    double start_seconds = 0;
    std::int64_t bytes = 0;
  };

  // Called with checked arguments, and never for a stream of meta. On the CPU the work of `after`
  // is done.
  virtual void do_all_reduce(Stream& after, View buffer, ReduceOp op, Ticket ticket) = 0;
  virtual void do_reduce_scatter(Stream& after, View full, View shard, Ticket ticket) = 0;
  virtual void do_all_gather(Stream& after, CView shard, View full, Ticket ticket) = 0;
  virtual void do_reduce_scatter_others(Stream& after, View full, View shard, Piece piece,
                                        Ticket ticket);
  virtual void do_all_gather_piece(Stream& after, View full, Piece piece, Ticket ticket);
  virtual void do_all_to_all(Stream& after, CView sent, View received, Ticket ticket) = 0;
  /// own: what this member keeps, of as many elements. Messages to and from others have elements.
  virtual void do_all_to_all_rows(Stream& after, CView own_sent, View own_received,
                                  std::span<const Message> others, Ticket ticket);
  virtual void do_broadcast(Stream& after, View buffer, int root, Ticket ticket) = 0;
  virtual void do_exchange(Stream& after, std::span<const Message> messages, Ticket ticket) = 0;
  /// Returns when the operation finished on the monotonic clock; 0 if it did so at its call or the
  /// host does not see its end (CUDA).
  virtual double do_wait(Stream& before, Ticket ticket) = 0;
  virtual void do_barrier() = 0;
  [[nodiscard]] virtual std::shared_ptr<void> do_share(const Arena& /*arena*/) { return nullptr; }
  /// True if do_arrive is implemented.
  [[nodiscard]] virtual bool announces_arrivals() const { return false; }
  virtual void do_arrive(Ticket /*ticket*/) {}
  [[nodiscard]] virtual double do_collect_seconds() { return 0; }

  void check_view(Device device, Call call, CView view, std::string_view what) const;
  void check_reducible(Call call, CView view) const;
  void check_shard(Call call, CView full, CView shard) const;
  void check_piece(Call call, CView full, Dim begin, Dim count) const;
  void check_shared(Call call, CView view) const;
  void check_parts(Call call, CView sent, CView received) const;
  void check_rows(CView sent, std::span<const Dim> sent_rows, CView received,
                  std::span<const Dim> received_rows) const;
  void check_member(Call call, int member, std::string_view what) const;
  void check_message(Device device, Call call, CView buffer, int peer) const;
  void count(Call call, std::size_t bytes);
  void await(Stream& after);
  template <class Work>
  void meet(Call call, Work&& work);
  void record(Stream& after, Call call, std::size_t bytes) const;
  Ticket open(Stream& after, Call call, std::size_t bytes);
  void trace(Recorder& recorder, const Open& operation, Ticket ticket, double wait_seconds,
             double end_seconds) const;

  GroupRole role_;
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
  Recorder* recorder_ = nullptr;                     ///< records operations on CUDA; or null
  std::shared_ptr<FlightRecorder> flight_recorder_;  ///< null if there is no other member
};

/// A group of one on the CPU or on CUDA: every collective is the identity, or a copy that is
/// enqueued on the stream `after`. A message that a group sends to itself it must receive in the
/// same group, in order.
[[nodiscard]] std::unique_ptr<Communicator> make_self_communicator(GroupRole role,
                                                                   Device device = Device::cpu);

/// Member `rank` of a group of `size` that exists only in a plan: takes contexts on `meta`, counts
/// calls and moves nothing. It cannot be split, except into itself if size is 1: a plan makes the
/// communicator of each group by its role, rank and size.
[[nodiscard]] std::unique_ptr<Communicator> make_meta_communicator(GroupRole role, int rank,
                                                                   int size);

}  // namespace hyperslab::comm
