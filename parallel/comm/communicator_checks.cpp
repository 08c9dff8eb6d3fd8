// SPDX-License-Identifier: Apache-2.0
// The arguments that a communicator refuses.
#include <fmt/format.h>

#include <cstdint>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::comm {
namespace {

std::uintptr_t address(CView view) { return reinterpret_cast<std::uintptr_t>(view.raw()); }

bool overlap(CView a, CView b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  return address(a) < address(b) + b.bytes() && address(b) < address(a) + a.bytes();
}

}  // namespace

void Communicator::check_view(Device device, Call call, CView view, std::string_view what) const {
  if (device != Device::meta && device != device_) {
    refuse(name_of(call), fmt::format("the stream is on {}, expected {}",
                                      hyperslab::name_of(device), hyperslab::name_of(device_)));
  }
  if (!view) refuse(name_of(call), fmt::format("{} is missing", what));
  if (view.device() != device) {
    refuse(name_of(call),
           fmt::format("{} is on {}, its stream on {}", what, hyperslab::name_of(view.device()),
                       hyperslab::name_of(device)));
  }
}

void Communicator::check_reducible(Call call, CView view) const {
  if (view.dtype() == DType::u16 || view.dtype() == DType::u8) {
    refuse(name_of(call), fmt::format("cannot reduce {}, expected f64, f32, bf16, f16, i64 or i32",
                                      hyperslab::name_of(view.dtype())));
  }
}

void Communicator::check_shard(Call call, CView full, CView shard) const {
  if (full.dtype() != shard.dtype()) {
    refuse(name_of(call), fmt::format("full holds {}, shard {}", hyperslab::name_of(full.dtype()),
                                      hyperslab::name_of(shard.dtype())));
  }
  if (full.numel() != size_ * shard.numel()) {
    refuse(name_of(call),
           fmt::format("full has {} elements, expected {} members x {} of shard = {}", full.numel(),
                       size_, shard.numel(), size_ * shard.numel()));
  }
  const auto own = address(full) + static_cast<std::size_t>(rank_) * shard.bytes();
  if (full.device() != Device::meta && overlap(full, shard) && address(shard) != own) {
    refuse(name_of(call), fmt::format("shard overlaps full at byte {}, its own part is at byte {}",
                                      static_cast<std::int64_t>(address(shard) - address(full)),
                                      own - address(full)));
  }
}

void Communicator::check_member(Call call, int member, std::string_view what) const {
  if (member < 0 || member >= size_) {
    refuse(name_of(call),
           fmt::format("{} {} is not a member, expected 0 to {}", what, member, size_ - 1));
  }
}

void Communicator::check_piece(Call call, CView full, Dim begin, Dim count) const {
  const Dim part = full.numel() / size_;
  if (begin < 0 || count < 0 || begin + count > part || full.numel() % size_ != 0) {
    refuse(name_of(call),
           fmt::format("piece of {} elements from {} on of parts of {} of a view of {}", count,
                       begin, part, full.numel()));
  }
  check_shared(call, full);
}

void Communicator::check_shared(Call call, CView view) const {
  if (view.device() != Device::meta && is_shared(view)) return;
  refuse(name_of(call), "members do not share the memory of this view");
}

void Communicator::check_parts(Call call, CView sent, CView received) const {
  if (sent.dtype() != received.dtype() || sent.numel() != received.numel()) {
    refuse(name_of(call), fmt::format("{} elements of {} are sent, {} of {} received", sent.numel(),
                                      hyperslab::name_of(sent.dtype()), received.numel(),
                                      hyperslab::name_of(received.dtype())));
  }
  if (sent.numel() % size_ != 0) {
    refuse(name_of(call),
           fmt::format("{} elements are no equal parts for {} members", sent.numel(), size_));
  }
  if (sent.device() != Device::meta && overlap(sent, received)) {
    refuse(name_of(call), "the views overlap");
  }
}

void Communicator::check_rows(CView sent, std::span<const Dim> sent_rows, CView received,
                              std::span<const Dim> received_rows) const {
  const std::string_view call = "all_to_all_rows";
  if (in_group_) refuse(call, "called between group_begin and group_end");
  const auto check = [&](CView view, std::span<const Dim> rows, std::string_view what) {
    if (std::ssize(rows) != size_) {
      refuse(call, fmt::format("{} counts of rows {} for {} members", rows.size(), what, size_));
    }
    Dim sum = 0;
    for (std::size_t member = 0; member < rows.size(); ++member) {
      if (rows[member] < 0) {
        refuse(call, fmt::format("{} rows are {} for member {}", rows[member], what, member));
      }
      sum += rows[member];
    }
    if (sum > view.shape()[0]) {
      refuse(call, fmt::format("{} rows are {}, and the view has {}", sum, what, view.shape()[0]));
    }
  };
  check(sent, sent_rows, "sent");
  check(received, received_rows, "received");
  const auto elements = [](CView view) { return view.slice(0, 1).numel(); };
  const bool have_rows = sent.shape()[0] > 0 && received.shape()[0] > 0;
  if (sent.dtype() != received.dtype() || (have_rows && elements(sent) != elements(received))) {
    refuse(call, fmt::format("rows of {} of {} are sent, of {} of {} received", sent.shape().str(),
                             hyperslab::name_of(sent.dtype()), received.shape().str(),
                             hyperslab::name_of(received.dtype())));
  }
  const auto own = static_cast<std::size_t>(rank_);
  if (sent_rows[own] != received_rows[own]) {
    refuse(call, fmt::format("member {} sends {} rows to itself and receives {}", rank_,
                             sent_rows[own], received_rows[own]));
  }
  if (sent.device() != Device::meta && overlap(sent, received)) refuse(call, "the views overlap");
}

void Communicator::check_message(Device device, Call call, CView buffer, int peer) const {
  if (!in_group_) refuse(name_of(call), "called outside group_begin and group_end");
  check_view(device, call, buffer, "buffer");
  check_member(call, peer, "peer");
  if (device == Device::meta) return;
  for (const Message& other : messages_) {
    const bool shared = other.recv ? overlap(other.recv, buffer)
                                   : call == Call::recv && overlap(other.send, buffer);
    if (shared) refuse(name_of(call), "buffer overlaps another one of the group");
  }
}

}  // namespace hyperslab::comm
