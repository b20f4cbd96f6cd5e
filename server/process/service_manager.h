// Notices to systemd about a daemon that it started (Type=notify, WatchdogSec=).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace eplb {

// Without NOTIFY_SOCKET in the environment systemd did not start the process, and nothing is sent.
// A message that cannot be sent is logged once. threads: one at a time.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  ServiceManager();

  // The daemon serves. status: a line for `systemctl status`.
  void Ready(const std::string& status);
  // The daemon drains and needs at most `grace`.
  void Stopping(absl::Duration grace);

  // Interval between two calls of Alive; infinite if systemd does not watch.
  absl::Duration alive_every() const { return alive_every_; }
  // Sends a sign of life. If `status` is an error, sends nothing, so that systemd restarts the
  // daemon, and logs the first error of a row.
  void Alive(const absl::Status& status);

 private:
  void Send(const std::string& message);

  absl::Duration alive_every_ = absl::InfiniteDuration();
  bool failure_logged_ = false;
  bool was_alive_ = true;
};

}  // namespace eplb
