// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::comm {
namespace {

/// On the CPU the work of `after` is done, so the host copies at once.
void copy_unless_same(Stream& after, CView from, View to) {
  if (from.raw() == to.raw() || from.bytes() == 0) return;
  if (after.device() == Device::cpu) {
    std::memcpy(to.raw(), from.raw(), from.bytes());
  } else {
    copy(after, from, to);
  }
}

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(GroupRole role, Device device)
      : Communicator(role, 0, 1, device), streams_(device == Device::cuda ? kMaxUnderWay : 0) {}

  void progress() override {}
  std::unique_ptr<Communicator> split(int color, int /*key*/, GroupRole role) override {
    if (color < 0) {
      refuse("split", fmt::format("color {} of {} is negative", color, name_of(role)));
    }
    return make_self_communicator(role, device());
  }

 private:
  void do_all_reduce(Stream& after, View, ReduceOp, Ticket ticket) override {
    note_stream(after, ticket);
  }
  void do_reduce_scatter(Stream& after, View full, View shard, Ticket ticket) override {
    note_stream(after, ticket);
    copy_unless_same(after, full, shard);
  }
  void do_all_gather(Stream& after, CView shard, View full, Ticket ticket) override {
    note_stream(after, ticket);
    copy_unless_same(after, shard, full);
  }
  void do_all_to_all(Stream& after, CView sent, View received, Ticket ticket) override {
    note_stream(after, ticket);
    copy_unless_same(after, sent, received);
  }
  void do_broadcast(Stream& after, View, int, Ticket ticket) override {
    note_stream(after, ticket);
  }
  void do_exchange(Stream& after, std::span<const Message> messages, Ticket ticket) override;
  void do_all_to_all_rows(Stream& after, CView own_sent, View own_received,
                          std::span<const Message> /*others*/, Ticket ticket) override {
    note_stream(after, ticket);
    copy_unless_same(after, own_sent, own_received);
  }
  double do_wait(Stream& before, Ticket ticket) override;
  void do_barrier() override {}
  void note_stream(Stream& after, Ticket ticket) {
    if (!streams_.empty()) streams_[ticket % kMaxUnderWay] = &after;
  }

  std::vector<Stream*> streams_;  ///< CUDA: on which operations are enqueued, by ticket
};

double SelfCommunicator::do_wait(Stream& before, Ticket ticket) {
  if (streams_.empty()) return 0;
  Stream* const after = std::exchange(streams_[ticket % kMaxUnderWay], nullptr);
  if (after != &before) before.wait(after->record());
  return 0;
}

/// The n-th send meets the n-th receive.
void SelfCommunicator::do_exchange(Stream& after, std::span<const Message> messages,
                                   Ticket ticket) {
  note_stream(after, ticket);
  const auto is_send = [](const Message& message) { return static_cast<bool>(message.send); };
  const auto is_recv = [](const Message& message) { return static_cast<bool>(message.recv); };
  const auto sends = std::ranges::count_if(messages, is_send);
  const auto recvs = std::ranges::count_if(messages, is_recv);
  if (sends != recvs) {
    refuse("group_end", fmt::format("{} sends to itself and {} receives", sends, recvs));
  }
  auto recv = messages.begin();
  for (const Message& message : messages) {
    if (!message.send) continue;
    recv = std::find_if(recv, messages.end(), is_recv);
    if (message.send.dtype() != recv->recv.dtype() || message.send.numel() != recv->recv.numel()) {
      refuse("group_end",
             fmt::format("a send of {} {} meets a receive of {} {}", message.send.numel(),
                         hyperslab::name_of(message.send.dtype()), recv->recv.numel(),
                         hyperslab::name_of(recv->recv.dtype())));
    }
    copy_unless_same(after, message.send, recv->recv);
    ++recv;
  }
}

/// The base class only counts on meta, so nothing is left to do.
class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(GroupRole role, int rank, int size)
      : Communicator(role, rank, size, Device::meta) {}

  void progress() override {}
  std::unique_ptr<Communicator> split(int color, int /*key*/, GroupRole role) override {
    if (size() > 1 || color < 0) {
      refuse("split", fmt::format("{} cannot be found without its members; make it by its rank "
                                  "and size",
                                  name_of(role)));
    }
    return make_meta_communicator(role, 0, 1);
  }

 private:
  void do_all_reduce(Stream&, View, ReduceOp, Ticket) override {}
  void do_reduce_scatter(Stream&, View, View, Ticket) override {}
  void do_all_gather(Stream&, CView, View, Ticket) override {}
  void do_all_to_all(Stream&, CView, View, Ticket) override {}
  void do_broadcast(Stream&, View, int, Ticket) override {}
  void do_exchange(Stream&, std::span<const Message>, Ticket) override {}
  double do_wait(Stream&, Ticket) override { return 0; }
  void do_barrier() override {}
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(GroupRole role, Device device) {
  require(device != Device::meta, "a self communicator is on the CPU or on CUDA");
  return std::make_unique<SelfCommunicator>(role, device);
}

std::unique_ptr<Communicator> make_meta_communicator(GroupRole role, int rank, int size) {
  return std::make_unique<MetaCommunicator>(role, rank, size);
}

}  // namespace hyperslab::comm
