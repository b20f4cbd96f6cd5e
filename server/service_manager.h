// What systemd is told of a daemon that it started (Type=notify, WatchdogSec=).
#ifndef EPLB_SERVER_SERVICE_MANAGER_H_
#define EPLB_SERVER_SERVICE_MANAGER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace eplb {

// Does nothing in a process that was started otherwise: the environment has no NOTIFY_SOCKET then.
// A message that cannot be sent is logged once.
// threads: one at a time.
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
  ServiceManager();

  // The daemon serves. status: a line for `systemctl status`.
  void Ready(const std::string& status);
  // The daemon drains and needs at most `grace`.
  void Stopping(absl::Duration grace);

  // Between two calls of Alive; infinite when nobody watches.
  absl::Duration alive_every() const { return alive_every_; }
  // Not ok: nothing is sent, so that systemd restarts the daemon; logged once in a row.
  void Alive(const absl::Status& status);

 private:
  void Send(const std::string& message);

  absl::Duration alive_every_ = absl::InfiniteDuration();
  bool failure_logged_ = false;
  bool was_alive_ = true;
};

}  // namespace eplb

#endif  // EPLB_SERVER_SERVICE_MANAGER_H_
