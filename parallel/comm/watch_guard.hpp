// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hyperslab/comm/watchdog.hpp"
#include "watch_clients.hpp"

namespace hyperslab::comm {

/// The process of a rank, as every rank knows it.
struct Contact {
  std::string neighbourhood;
  int process = 0;
};

/// A rank that this one reports to.
struct Monitor {
  int rank = 0;
  Session link;
  double heard = 0;
};

/// The watchdog of one rank: client of the monitors, and monitor if its rank is one. Everything
/// after the constructor runs in its thread, until the destructor ends it.
class Watchdog::Guard : private Clients::Owner {
 public:
  Guard(World& world, const WatchdogOptions& options);
  ~Guard() override;
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  Guard(Guard&&) = delete;
  Guard& operator=(Guard&&) = delete;

 private:
  void exchange_contacts(World& world, const std::string& coordinates);
  void listen();
  void connect(World& world);
  [[nodiscard]] Session call(int monitor, const std::string& address, std::string& problem) const;
  void start_thread();
  void leave(bool fails);

  void run();
  void advance_clock();
  void report_status();
  void wait(double seconds);
  void receive();
  void accept_clients();
  void end_connecting();
  void on_arrival(int rank) override;
  [[nodiscard]] bool on_frame(int rank, const Frame& frame) override;
  void on_loss(int rank) override;
  void on_monitor_frame(Monitor& monitor, const Frame& frame);
  [[nodiscard]] bool is_active_monitor() const;
  [[nodiscard]] bool has_break() const;
  [[nodiscard]] const Status& reported() const;
  [[nodiscard]] bool is_news() const;
  [[noreturn]] void end_on_request();
  [[noreturn]] void end_job(const Diagnosis& diagnosis);
  [[nodiscard]] bool is_near(int rank) const;
  void ask_to_kill(int silent);
  void disconnect(int silent);
  void close_links(Notice last);
  [[nodiscard]] Frame frame_of(Notice notice) const;

  int rank_;
  std::shared_ptr<FlightRecorders> flight_recorders_;
  Limits limits_;
  double interval_;
  Secret secret_;
  std::vector<Contact> contacts_;
  std::vector<Peer> peers_;
  Listener listener_;
  int port_ = 0;  ///< port of listener_
  Clients clients_;
  std::vector<Monitor> monitors_;
  std::mutex called_mutex_;
  std::vector<Monitor> called_;           ///< made by the main thread, for monitors_
  std::atomic<bool> all_called_ = false;  ///< every rank has called its monitors
  bool connects_ = true;                  ///< all_called_ is still to be acted on
  std::vector<pollfd> polled_;
  Descriptor wake_;
  std::atomic<bool> leaves_ = false;
  bool fails_ = false;  ///< set before leaves_
  double now_ = 0;      ///< seconds in which this process was awake
  double looked_ = now_seconds();
  std::thread thread_;
};

}  // namespace hyperslab::comm
