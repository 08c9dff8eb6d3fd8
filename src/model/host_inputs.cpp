// SPDX-License-Identifier: Apache-2.0
#include "host_inputs.hpp"

#include <utility>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::model {

HostInputs::HostInputs(Arena& device, Arena& host, DType dtype, const Shape& stream)
    : host_(&host), dtype_(dtype), stream_(stream) {
  for (Room& room : rooms_) room.memory = device.take(dtype, stream, "room of a block's input");
}

int HostInputs::plan(const std::string& label) {
  inputs_.push_back({.on_host = host_->take(dtype_, stream_, label)});
  return static_cast<int>(inputs_.size()) - 1;
}

HostInputs::Links& HostInputs::links(Context& ctx) {
  if (!links_) links_ = std::make_unique<Links>(ctx.device());
  return *links_;
}

/// The room that was not given out last.
HostInputs::Room& HostInputs::next_room() {
  newest_ = (newest_ + 1) % rooms_.size();
  return rooms_.at(newest_);
}

HostInputs::Room* HostInputs::find(int id) {
  for (Room& room : rooms_) {
    if (room.id == id) return &room;
  }
  return nullptr;
}

View HostInputs::fill(Context& ctx, int id) {
  if (Room* earlier = find(id)) earlier->id = kNone;  // it has the values of an earlier step
  Room& room = next_room();
  room.id = id;
  ctx.stream().wait(room.taken);
  ctx.stream().wait(std::exchange(room.arrived, {}));
  return room.memory;
}

void HostInputs::take_away(Context& ctx, int id) {
  Room& room = *find(id);
  Stream& link = links(ctx).to_host;
  link.wait(ctx.stream().record());
  copy(link, room.memory, input(id).on_host);
  room.taken = input(id).taken = link.record();
}

/// Begins to bring an input to the room that was not given out last, whose readers are enqueued.
void HostInputs::start(Context& ctx, int id) {
  Room& room = next_room();
  room.id = id;
  Stream& link = links(ctx).to_device;
  link.wait(ctx.stream().record());
  link.wait(room.taken);
  link.wait(input(id).taken);
  copy(link, input(id).on_host, room.memory);
  ctx.stream().list_transfer(link, room.memory.bytes());
  room.arrived = link.record();
}

CView HostInputs::bring(Context& ctx, int id) {
  if (find(id) == nullptr) start(ctx, id);
  Room& room = *find(id);
  ctx.stream().wait(std::exchange(room.arrived, {}));
  newest_ = static_cast<std::size_t>(&room - rooms_.data());
  if (id > 0 && find(id - 1) == nullptr) start(ctx, id - 1);
  return room.memory;
}

}  // namespace hyperslab::model
