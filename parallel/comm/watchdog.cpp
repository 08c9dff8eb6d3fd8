// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/watchdog.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <iterator>
#include <random>
#include <ranges>
#include <sstream>
#include <thread>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "machine.hpp"
#include "watch_end.hpp"
#include "watch_link.hpp"

namespace hyperslab::comm {
namespace {

constexpr int kTowers = 2;  // ranks that everyone reports to
constexpr double kMostIntervalSeconds = 1;
constexpr double kStatusesInTimeout = 8;
constexpr double kSilentIntervals = 5;
constexpr double kFarewellSeconds = 1;

/// Where a rank is, known to all.
struct Contact {
  std::string neighbourhood;
  int process = 0;
};

/// A connection that came in, and of whom; -1: of nobody known yet.
struct Caller {
  Connection link;
  int rank = -1;
};

/// A rank that this one reports to.
struct Tower {
  int rank = 0;
  Connection link;
  double heard = 0;
};

std::uint64_t new_token() {
  std::random_device source;
  return (static_cast<std::uint64_t>(source()) << 32) | source();
}

}  // namespace

/// The thread and what it works on; the main thread only makes it and tells it to leave.
class Watchdog::Guard {
 public:
  Guard(World& world, const WatchdogOptions& options);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  Guard(Guard&&) = delete;
  Guard& operator=(Guard&&) = delete;

 private:
  void introduce(World& world, const std::string& coordinates);
  void connect(World& world);
  [[nodiscard]] std::string report_to(int tower, const std::string& address);
  void start_thread();

  void run();
  void advance_clock();
  void tell();
  void wait(double seconds);
  void receive();
  void hear(Caller& caller, const Frame& frame);
  void hear(Tower& tower, const Frame& frame);
  [[nodiscard]] bool judges() const;
  [[nodiscard]] bool grieves() const;
  [[noreturn]] void end_job(const Verdict& verdict);
  [[nodiscard]] bool is_near(int rank) const;
  void ask_to_kill(int silent);
  void take_leave_of(int silent);
  void say_last(Notice notice);
  [[nodiscard]] Frame frame_of(Notice notice) const;

  int rank_;
  std::shared_ptr<TrailBoard> board_;
  Limits limits_;
  double interval_;
  std::uint64_t token_ = 0;
  std::vector<Contact> contacts_;
  std::vector<Peer> peers_;
  Listener listener_;
  std::vector<Caller> callers_;
  std::vector<Tower> towers_;
  std::vector<pollfd> polled_;
  Descriptor wake_;
  std::atomic<bool> leaves_ = false;
  bool fails_ = false;  ///< set before leaves_
  double now_ = 0;      ///< seconds in which this process was awake
  double looked_ = now_seconds();
  std::thread thread_;
};

Watchdog::Guard::Guard(World& world, const WatchdogOptions& options)
    : rank_(world.rank()),
      board_(world.trails()),
      interval_(std::min(kMostIntervalSeconds, options.timeout_seconds / kStatusesInTimeout)),
      peers_(static_cast<std::size_t>(world.size())),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  limits_.timeout = options.timeout_seconds;
  limits_.silence = kSilentIntervals * interval_;
  introduce(world, options.coordinates);
  connect(world);
  peers_[static_cast<std::size_t>(rank_)].link = Link::connected;
  start_thread();
}

void Watchdog::Guard::introduce(World& world, const std::string& coordinates) {
  token_ = std::stoull(world.broadcast(std::to_string(new_token())));
  const auto places = world.all_gather(neighbourhood_id(world.host()));
  const auto processes = world.all_gather(std::to_string(::getpid()));
  const auto hosts = world.all_gather(world.host());
  const auto all_coordinates = world.all_gather(coordinates);
  for (std::size_t i = 0; i < places.size(); ++i) {
    contacts_.push_back({places[i], std::stoi(processes[i])});
    const std::string& at = all_coordinates[i];
    peers_[i].name =
        fmt::format("rank {}{} host {}", i, at.empty() ? "" : " (" + at + ")", hosts[i]);
  }
}

void Watchdog::Guard::connect(World& world) {
  const Contact& mine = contacts_[static_cast<std::size_t>(rank_)];
  const bool together = std::ranges::all_of(
      contacts_, [&](const Contact& each) { return each.neighbourhood == mine.neighbourhood; });
  std::string address;
  if (rank_ < kTowers && world.size() > 1) {
    listener_ = listen_on(!together);
    address = fmt::format("{} {}", listener_.port, fmt::join(own_addresses(), " "));
  }
  const auto addresses = world.all_gather(address);
  std::string problems;
  for (int tower = 0; tower < std::min(kTowers, world.size()); ++tower) {
    if (tower == rank_) continue;
    const std::string problem = report_to(tower, addresses[static_cast<std::size_t>(tower)]);
    if (problem.empty()) continue;
    problems += fmt::format("rank {} on {} cannot reach rank {} ({}) ", rank_, world.host(), tower,
                            problem);
  }
  const auto all = world.all_gather(problems);
  const auto first = std::ranges::find_if(all, [](const auto& each) { return !each.empty(); });
  if (first == all.end() || rank_ != 0) return;
  log::warn(
      fmt::format("the watchdog does not see all ranks: {}; hangs there end with their own "
                  "timeout, see the network and its firewall",
                  *first));
}

/// `address`: the port, then the addresses. Returns what went wrong, or nothing.
std::string Watchdog::Guard::report_to(int tower, const std::string& address) {
  std::istringstream words(address);
  int port = 0;
  words >> port;
  std::vector<std::string> wanted(std::istream_iterator<std::string>(words), {});
  if (is_near(tower)) wanted = {"127.0.0.1"};
  std::string problem;
  towers_.push_back({tower, connect_to(wanted, port, problem)});
  if (!towers_.back().link.is_open()) return problem;
  Frame hello = frame_of(Notice::hello);
  hello.token = token_ + static_cast<std::uint64_t>(tower);
  towers_.back().link.send(hello);
  return {};
}

/// Signals are the main thread's.
void Watchdog::Guard::start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::Guard::~Guard() {
  fails_ = std::uncaught_exceptions() > 0;
  leaves_ = true;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Watchdog::Guard::run() {
  double next = 0;
  while (!leaves_) {
    advance_clock();
    if (now_ >= next) {
      tell();
      next = now_ + interval_;
    }
    if (judges()) {
      const Verdict verdict = judge(peers_, limits_, now_);
      if (verdict.ends) end_job(verdict);
    }
    wait(std::min(next - now_, grieves() ? limits_.grief / 5 : interval_));
    receive();
  }
  eventfd_t woken = 0;
  ::eventfd_read(wake_.get(), &woken);  // else nothing would wait any more
  say_last(fails_ ? Notice::failure : Notice::farewell);
}

/// While this process was stopped nobody could tell it anything.
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

/// Everyone learns how far this rank is.
void Watchdog::Guard::tell() {
  peers_[static_cast<std::size_t>(rank_)].hear(Status::of(*board_), now_);
  const Frame frame = frame_of(Notice::status);
  for (Tower& tower : towers_) tower.link.send(frame);
  for (Caller& caller : callers_) caller.link.send(frame);
}

/// A break waits to be reported.
bool Watchdog::Guard::grieves() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.link == Link::broken; });
}

/// Whose turn it is: the first tower that lives.
bool Watchdog::Guard::judges() const {
  return std::ranges::none_of(towers_, [this](const Tower& tower) {
    return tower.rank < rank_ && tower.link.is_open() && now_ - tower.heard <= limits_.silence;
  });
}

void Watchdog::Guard::wait(double seconds) {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  polled_.push_back({listener_.socket.get(), POLLIN, 0});
  for (const Caller& caller : callers_) polled_.push_back({caller.link.get(), POLLIN, 0});
  for (const Tower& tower : towers_) polled_.push_back({tower.link.get(), POLLIN, 0});
  const int milliseconds = 1 + static_cast<int>(1e3 * std::max(0.0, seconds));
  (void)::poll(polled_.data(), polled_.size(), milliseconds);
}

void Watchdog::Guard::receive() {
  advance_clock();
  if (listener_.socket) {
    for (auto link = accept_from(listener_); link.has_value(); link = accept_from(listener_)) {
      callers_.push_back({std::move(link.value()), -1});
    }
  }
  Frame frame;
  for (Caller& caller : callers_) {
    while (caller.link.receive(frame)) hear(caller, frame);
    if (caller.link.is_open() || caller.rank < 0) continue;
    Peer& peer = peers_[static_cast<std::size_t>(caller.rank)];
    if (peer.link != Link::connected) continue;
    peer.link = Link::broken;
    peer.broken = now_;
  }
  std::erase_if(callers_, [](const Caller& caller) { return !caller.link.is_open(); });
  for (Tower& tower : towers_) {
    while (tower.link.receive(frame)) hear(tower, frame);
  }
}

void Watchdog::Guard::hear(Caller& caller, const Frame& frame) {
  if (caller.rank < 0) {
    const bool known = frame.notice == Notice::hello && frame.rank >= 0 &&
                       frame.rank < static_cast<int>(peers_.size()) && frame.rank != rank_ &&
                       frame.token == token_ + static_cast<std::uint64_t>(rank_);
    if (!known) return caller.link.close();
    caller.rank = frame.rank;
    peers_[static_cast<std::size_t>(frame.rank)].link = Link::connected;
    peers_[static_cast<std::size_t>(frame.rank)].moved = now_;
  }
  Peer& peer = peers_[static_cast<std::size_t>(caller.rank)];
  peer.hear(frame.status, now_);
  if (frame.notice == Notice::end) end_process();
  if (frame.notice != Notice::farewell && frame.notice != Notice::failure) return;
  peer.link = frame.notice == Notice::farewell ? Link::left : Link::failed;
  peer.moved = now_;
  caller.link.close();
}

void Watchdog::Guard::hear(Tower& tower, const Frame& frame) {
  if (frame.rank < 0 || frame.rank >= static_cast<int>(peers_.size())) return;
  tower.heard = now_;
  if (rank_ >= kTowers) {  // the others' progress is the tower's matter until it falls silent
    Peer& peer = peers_[static_cast<std::size_t>(tower.rank)];
    peer.link = Link::left;
    peer.moved = now_;
  }
  switch (frame.notice) {
    case Notice::hello:
    case Notice::status: break;
    case Notice::farewell:
    case Notice::failure: tower.link.close(); break;
    case Notice::kill: kill_later(contacts_[static_cast<std::size_t>(frame.rank)].process); break;
    case Notice::end: end_process();
  }
}

bool Watchdog::Guard::is_near(int rank) const {
  return contacts_[static_cast<std::size_t>(rank)].neighbourhood ==
         contacts_[static_cast<std::size_t>(rank_)].neighbourhood;
}

/// A rank on the machine of the silent one can end it.
void Watchdog::Guard::ask_to_kill(int silent) {
  const std::string& there = contacts_[static_cast<std::size_t>(silent)].neighbourhood;
  const auto helper = std::ranges::find_if(callers_, [&](const Caller& caller) {
    return caller.link.is_open() && caller.rank >= 0 && caller.rank != silent &&
           contacts_[static_cast<std::size_t>(caller.rank)].neighbourhood == there;
  });
  if (helper == callers_.end()) return;
  Frame frame = frame_of(Notice::kill);
  frame.rank = silent;
  helper->link.send(frame);
}

/// A silent rank that mpirun wakes to end it must not report the others; nobody waits for it.
void Watchdog::Guard::take_leave_of(int silent) {
  const Frame frame = frame_of(Notice::end);
  for (Caller& caller : callers_) {
    if (caller.rank != silent) continue;
    caller.link.send(frame);
    caller.link.close();
  }
  for (Tower& tower : towers_) {
    if (tower.rank != silent) continue;
    tower.link.send(frame);
    tower.link.close();
  }
}

void Watchdog::Guard::end_job(const Verdict& verdict) {
  print_line(verdict.line);
  for (const int silent : verdict.silent) {
    take_leave_of(silent);
    if (!is_near(silent)) ask_to_kill(silent);
  }
  say_last(Notice::end);
  for (const int silent : verdict.silent) {
    if (is_near(silent)) kill_later(contacts_[static_cast<std::size_t>(silent)].process);
  }
  end_process();
}

/// Goes on until the others have closed: what they have not read may else be lost.
void Watchdog::Guard::say_last(Notice notice) {
  const Frame last = frame_of(notice);
  const auto finish = [&](Connection& link) {
    link.send(last);
    link.finish();
  };
  const auto drain = [](Connection& link) {
    Frame ignored;
    while (link.receive(ignored)) {
    }
  };
  for (Caller& caller : callers_) finish(caller.link);
  for (Tower& tower : towers_) finish(tower.link);
  listener_.socket.close();
  const double end = now_seconds() + kFarewellSeconds;
  const auto is_open = [](const auto& each) { return each.link.is_open(); };
  while (now_seconds() < end &&
         (std::ranges::any_of(callers_, is_open) || std::ranges::any_of(towers_, is_open))) {
    wait(kFarewellSeconds / 10);
    for (Caller& caller : callers_) drain(caller.link);
    for (Tower& tower : towers_) drain(tower.link);
  }
}

Watchdog::Watchdog(World& world, const WatchdogOptions& options) {
  if (options.timeout_seconds > 0) guard_ = std::make_unique<Guard>(world, options);
}

Watchdog::~Watchdog() = default;

}  // namespace hyperslab::comm
