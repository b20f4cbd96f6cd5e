// How far a long command is, on stderr.
#ifndef EPLB_CLIENT_CLI_PROGRESS_H_
#define EPLB_CLIENT_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"

namespace eplb::cli {

// One line that is written over, only on a terminal, only after two seconds; gone at the end.
class Progress {
 public:
  // "window 120 of 240".
  Progress(std::string what, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Reached(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const int64_t total_;
  const bool shown_;
  Clock::time_point next_;
  bool written_ = false;
};

// Likewise for work that cannot say how far it is: the seconds since it began. Threads: has one of
// its own, which only writes the line.
class Waiting {
 public:
  // "planning".
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PROGRESS_H_
