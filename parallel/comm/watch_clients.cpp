// SPDX-License-Identifier: Apache-2.0
#include "watch_clients.hpp"

#include <algorithm>

namespace hyperslab::comm {

void Clients::add(Session session) {
  if (sessions_.size() >= ranks_ + kMostStrangers) {
    const auto oldest = std::ranges::find_if_not(sessions_, &Session::is_proven);
    if (oldest != sessions_.end()) sessions_.erase(oldest);
  }
  sessions_.push_back(std::move(session));
}

void Clients::receive(Owner& owner) {
  std::vector<int> closed;
  for (Session& session : sessions_) {
    read(session, owner);
    if (!session.is_open() && session.is_proven()) closed.push_back(session.peer_rank());
  }
  std::erase_if(sessions_, [](const Session& session) { return !session.is_open(); });
  for (const int rank : closed) {
    if (!has(rank)) owner.on_loss(rank);
  }
}

void Clients::read(Session& session, Owner& owner) {
  bool is_known = session.is_proven();
  const auto meet = [&] {
    if (is_known || !session.is_proven()) return;
    if (static_cast<std::size_t>(session.peer_rank()) >= ranks_) return session.close();
    is_known = true;
    owner.on_arrival(session.peer_rank());
  };
  Frame frame;
  while (session.receive(frame)) {
    meet();
    if (is_known && !owner.on_frame(session.peer_rank(), frame)) session.close();
  }
  meet();
}

void Clients::send(const Frame& frame) {
  for (Session& session : sessions_) session.send(frame);
}

void Clients::send_to(int rank, const Frame& frame) {
  for (Session& session : sessions_) {
    if (session.peer_rank() == rank) session.send(frame);
  }
}

void Clients::close(int rank) {
  std::erase_if(sessions_, [rank](const Session& session) { return session.peer_rank() == rank; });
}

void Clients::close_strangers() {
  std::erase_if(sessions_, [](const Session& session) { return !session.is_proven(); });
}

bool Clients::has(int rank) const {
  return std::ranges::any_of(sessions_, [rank](const Session& session) {
    return session.is_open() && session.peer_rank() == rank;
  });
}

}  // namespace hyperslab::comm
