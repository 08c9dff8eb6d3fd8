// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iterator>
#include <mutex>
#include <ranges>
#include <sstream>
#include <thread>

#include "host_id.hpp"
#include "hyperslab/comm/time_limit.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/failure_notice.hpp"
#include "hyperslab/core/log.hpp"
#include "watch_clients.hpp"
#include "watch_end.hpp"
#include "watch_guard.hpp"

namespace hyperslab::comm {
namespace {

constexpr int kMonitors = 2;       // ranks that everyone reports to
constexpr int kMostAccepted = 16;  // connections at once, before their frames are read
constexpr double kMostIntervalSeconds = 1;
constexpr double kFirstStepLookSeconds = 0.1;
constexpr double kStatusesInTimeout = 8;
constexpr double kSilentIntervals = 5;
constexpr double kLastFrameSeconds = 1;
constexpr auto kRestAfterRefusal = std::chrono::milliseconds(10);

}  // namespace

Watchdog::Guard::Guard(World& world, const WatchdogOptions& options)
    : rank_(world.rank()),
      flight_recorders_(world.flight_recorders()),
      interval_(std::min(kMostIntervalSeconds, options.timeout_seconds / kStatusesInTimeout)),
      peers_(static_cast<std::size_t>(world.size())),
      clients_(static_cast<std::size_t>(world.size())),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  limits_.timeout = options.timeout_seconds;
  limits_.silence = kSilentIntervals * interval_;
  exchange_contacts(world, options.coordinates);
  peers_[static_cast<std::size_t>(rank_)].link = Link::connected;
  listen();
  start_thread();
  try {
    connect(world);
  } catch (...) {
    leave(true);
    throw;
  }
}

void Watchdog::Guard::exchange_contacts(World& world, const std::string& coordinates) {
  secret_ = Secret::of_text(world.broadcast(Secret::random().text()));
  const auto neighbourhoods = world.all_gather(neighbourhood_id(world.host()));
  const auto processes = world.all_gather(std::to_string(::getpid()));
  const auto hosts = world.all_gather(world.host());
  const auto all_coordinates = world.all_gather(coordinates);
  for (std::size_t i = 0; i < neighbourhoods.size(); ++i) {
    contacts_.push_back({neighbourhoods[i], std::stoi(processes[i])});
    const std::string& at = all_coordinates[i];
    peers_[i].name =
        fmt::format("rank {}{} host {}", i, at.empty() ? "" : " (" + at + ")", hosts[i]);
  }
}

/// Monitors answer calls from their thread, which starts next.
void Watchdog::Guard::listen() {
  const Contact& mine = contacts_[static_cast<std::size_t>(rank_)];
  const bool together = std::ranges::all_of(
      contacts_, [&](const Contact& each) { return each.neighbourhood == mine.neighbourhood; });
  if (rank_ >= kMonitors || contacts_.size() < 2) return;
  listener_ = listen_on(!together);
  port_ = listener_.port;
}

void Watchdog::Guard::connect(World& world) {
  std::string address;
  if (port_ > 0) address = fmt::format("{} {}", port_, fmt::join(own_addresses(), " "));
  const auto addresses = world.all_gather(address);
  std::string problems;
  std::vector<Monitor> called;
  for (int monitor = 0; monitor < std::min(kMonitors, world.size()); ++monitor) {
    if (monitor == rank_) continue;
    std::string problem;
    Session link = call(monitor, addresses[static_cast<std::size_t>(monitor)], problem);
    if (!link.is_open()) {
      problems += fmt::format("rank {} on {} cannot reach rank {} ({}) ", rank_, world.host(),
                              monitor, problem);
    }
    called.push_back({monitor, std::move(link)});
  }
  const auto all = world.all_gather(problems);
  {
    const std::lock_guard lock(called_mutex_);
    called_ = std::move(called);
  }
  all_called_ = true;
  ::eventfd_write(wake_.get(), 1);
  const auto first = std::ranges::find_if(all, [](const auto& each) { return !each.empty(); });
  if (first == all.end() || rank_ != 0) return;
  log::warn(
      fmt::format("the watchdog does not see all ranks: {}; hangs there end with their own "
                  "timeout, see the network and its firewall",
                  *first));
}

/// `address`: the port, then the addresses.
Session Watchdog::Guard::call(int monitor, const std::string& address, std::string& problem) const {
  std::istringstream words(address);
  int port = 0;
  words >> port;
  const std::vector<std::string> all(std::istream_iterator<std::string>(words), {});
  return call_monitor(addresses_to_call(all, own_addresses(), is_near(monitor)), port, secret_,
                      rank_, monitor, problem);
}

/// Signals are the main thread's.
void Watchdog::Guard::start_thread() {
  failure_notice::listen(wake_.get());
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::Guard::~Guard() { leave(std::uncaught_exceptions() > 0); }

void Watchdog::Guard::leave(bool fails) {
  failure_notice::listen(-1);
  fails_ = fails;
  leaves_ = true;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Watchdog::Guard::run() {
  double next = 0;
  while (!leaves_ && !failure_notice::is_given()) {
    advance_clock();
    if (now_ >= next || is_news()) {
      report_status();
      next = now_ + interval_;
    }
    if (!connects_ && is_active_monitor()) {
      const Diagnosis diagnosis = diagnose(peers_, limits_, now_);
      if (diagnosis.ends_job) end_job(diagnosis);
    }
    const double first_steps = reported().ended_step == 0 ? kFirstStepLookSeconds : interval_;
    wait(std::min({next - now_, first_steps, has_break() ? limits_.grace / 5 : interval_}));
    receive();
  }
  eventfd_t woken = 0;
  ::eventfd_read(wake_.get(), &woken);         // poll() would return at once for ever
  const bool fails = leaves_ ? fails_ : true;  // a signal handler is about to end this process
  close_links(fails ? Notice::failure : Notice::leave);
  failure_notice::answer();
}

/// While this process was stopped, no other could report to it.
void Watchdog::Guard::advance_clock() {
  const double real = now_seconds();
  now_ += std::min(real - looked_, 2 * interval_);
  looked_ = real;
}

Frame Watchdog::Guard::frame_of(Notice notice) const {
  Frame frame;
  frame.notice = notice;
  frame.rank = rank_;
  frame.status = peers_[static_cast<std::size_t>(rank_)].status;
  return frame;
}

/// The report that this rank has sent.
const Status& Watchdog::Guard::reported() const {
  return peers_[static_cast<std::size_t>(rank_)].status;
}

/// True if the first step began or ended since: the timeout depends on it.
bool Watchdog::Guard::is_news() const {
  const Activity& activity = flight_recorders_->activity();
  return (reported().step == 0 && activity.step > 0) ||
         (reported().ended_step == 0 && activity.ended_step > 0);
}

/// Monitors and clients learn how far this rank is.
void Watchdog::Guard::report_status() {
  peers_[static_cast<std::size_t>(rank_)].update(Status::of(*flight_recorders_), now_);
  const Frame frame = frame_of(Notice::status);
  for (Monitor& monitor : monitors_) monitor.link.send(frame);
  clients_.send(frame);
}

/// True if a rank was lost whose grace period may still run.
bool Watchdog::Guard::has_break() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.link == Link::broken; });
}

/// The monitor of the lowest rank that answers is the active one; a rank that reaches none is its
/// own.
bool Watchdog::Guard::is_active_monitor() const {
  return std::ranges::none_of(monitors_, [this](const Monitor& monitor) {
    return monitor.rank < rank_ && monitor.link.is_open() &&
           now_ - monitor.heard <= limits_.silence;
  });
}

void Watchdog::Guard::wait(double seconds) {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  polled_.push_back({listener_.socket.get(), POLLIN, 0});
  for (const Session& client : clients_.sessions()) polled_.push_back({client.get(), POLLIN, 0});
  for (const Monitor& monitor : monitors_) polled_.push_back({monitor.link.get(), POLLIN, 0});
  const int milliseconds = 1 + static_cast<int>(1e3 * std::max(0.0, seconds));
  (void)::poll(polled_.data(), polled_.size(), milliseconds);
}

void Watchdog::Guard::receive() {
  advance_clock();
  if (listener_.socket) accept_clients();
  clients_.receive(*this);
  if (connects_ && all_called_) end_connecting();
  Frame frame;
  for (Monitor& monitor : monitors_) {
    while (monitor.link.receive(frame)) on_monitor_frame(monitor, frame);
  }
}

void Watchdog::Guard::accept_clients() {
  int accepted = 0;
  while (auto link = accept_from(listener_)) {
    clients_.add(Session::of_monitor(std::move(*link), secret_, rank_));
    if (++accepted == kMostAccepted) return;
  }
  const bool refused = accepted == 0 && polled_.size() > 1 && polled_[1].revents != 0;
  if (refused) std::this_thread::sleep_for(kRestAfterRefusal);  // no more files may be opened
}

/// Every rank has connected, so that no one has a reason to call any more.
void Watchdog::Guard::end_connecting() {
  eventfd_t woken = 0;
  ::eventfd_read(wake_.get(), &woken);
  connects_ = false;
  listener_.socket.close();
  clients_.close_strangers();
  const std::lock_guard lock(called_mutex_);
  monitors_ = std::move(called_);
  for (Monitor& monitor : monitors_) monitor.heard = now_;
}

void Watchdog::Guard::on_arrival(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.link = Link::connected;
  peer.moved = now_;
}

bool Watchdog::Guard::on_frame(int rank, const Frame& frame) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.update(frame.status, now_);
  if (frame.notice == Notice::end) end_on_request();
  if (frame.notice != Notice::leave && frame.notice != Notice::failure) return true;
  peer.link = frame.notice == Notice::leave ? Link::left : Link::failed;
  peer.moved = now_;
  return false;
}

/// While ranks still connect, one that closes has given this monitor up, and warns of that itself.
void Watchdog::Guard::on_loss(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.link != Link::connected) return;
  peer.link = connects_ ? Link::none : Link::broken;
  peer.broken = now_;
}

void Watchdog::Guard::on_monitor_frame(Monitor& monitor, const Frame& frame) {
  if (frame.rank < 0 || frame.rank >= static_cast<int>(peers_.size())) return;
  monitor.heard = now_;
  if (rank_ >=
      kMonitors) {  // others are diagnosed by the monitor; this rank does so only when it is silent
    Peer& peer = peers_[static_cast<std::size_t>(monitor.rank)];
    peer.link = Link::left;
    peer.moved = now_;
  }
  switch (frame.notice) {
    case Notice::hello:
    case Notice::proof:
    case Notice::status: break;
    case Notice::leave:
    case Notice::failure: monitor.link.close(); break;
    case Notice::kill: kill_later(contacts_[static_cast<std::size_t>(frame.rank)].process); break;
    case Notice::end: end_on_request();
  }
}

/// Another rank has ended the job. One rank of every host sees to its launcher.
void Watchdog::Guard::end_on_request() {
  int first = 0;
  while (!is_near(first)) ++first;
  if (first == rank_) end_launcher_later();
  end_process();
}

bool Watchdog::Guard::is_near(int rank) const {
  return contacts_[static_cast<std::size_t>(rank)].neighbourhood ==
         contacts_[static_cast<std::size_t>(rank_)].neighbourhood;
}

/// A rank on the machine of the silent one can end it.
void Watchdog::Guard::ask_to_kill(int silent) {
  const std::string& there = contacts_[static_cast<std::size_t>(silent)].neighbourhood;
  for (std::size_t helper = 0; helper < contacts_.size(); ++helper) {
    const int rank = static_cast<int>(helper);
    if (rank == silent || !clients_.has(rank) || contacts_[helper].neighbourhood != there) continue;
    Frame frame = frame_of(Notice::kill);
    frame.rank = silent;
    return clients_.send_to(rank, frame);
  }
}

/// A silent rank that mpirun wakes in order to end it must not report the others; no one waits for
/// it.
void Watchdog::Guard::disconnect(int silent) {
  const Frame frame = frame_of(Notice::end);
  clients_.send_to(silent, frame);
  clients_.close(silent);
  for (Monitor& monitor : monitors_) {
    if (monitor.rank != silent) continue;
    monitor.link.send(frame);
    monitor.link.close();
  }
}

void Watchdog::Guard::end_job(const Diagnosis& diagnosis) {
  print_line(diagnosis.line);
  for (const int silent : diagnosis.silent) {
    disconnect(silent);
    if (!is_near(silent)) ask_to_kill(silent);
  }
  close_links(Notice::end);
  for (const int silent : diagnosis.silent) {
    if (is_near(silent)) kill_later(contacts_[static_cast<std::size_t>(silent)].process);
  }
  end_launcher_later();
  end_process();
}

/// Sends the last frame and waits until the others have closed: frames that they have not read may
/// else be lost.
void Watchdog::Guard::close_links(Notice notice) {
  clients_.close_strangers();
  std::vector<Session*> links;
  for (Session& client : clients_.sessions()) links.push_back(&client);
  for (Monitor& monitor : monitors_) links.push_back(&monitor.link);
  const Frame last = frame_of(notice);
  for (Session* link : links) {
    link->send(last);
    link->finish();
  }
  listener_.socket.close();
  const double end = now_seconds() + kLastFrameSeconds;
  while (now_seconds() < end && std::ranges::any_of(links, &Session::is_open)) {
    wait(kLastFrameSeconds / 10);
    Frame ignored;
    for (Session* link : links) {
      while (link->receive(ignored)) {
      }
    }
  }
}

Watchdog::Watchdog(World& world, const WatchdogOptions& options) {
  if (options.timeout_seconds > 0) guard_ = std::make_unique<Guard>(world, options);
  TimeLimit::lift();
}

Watchdog::~Watchdog() = default;

}  // namespace hyperslab::comm
