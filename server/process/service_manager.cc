// The protocol of sd_notify.
#include "server/process/service_manager.h"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "absl/strings/str_cat.h"

#include "server/process/log.h"

namespace eplb {

ServiceManager::ServiceManager() {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(0, &microseconds) > 0) {
    // Three times within the limit, so that one late wake-up causes no restart.
    alive_every_ = std::max(absl::Microseconds(microseconds) / 3, absl::Milliseconds(1));
  }
}

void ServiceManager::Ready(const std::string& status) {
  Send(absl::StrCat("READY=1\nSTATUS=", status));
}

void ServiceManager::Stopping(absl::Duration grace) {
  Send(absl::StrCat("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=",
                    absl::ToInt64Microseconds(grace)));
}

void ServiceManager::Alive(const absl::Status& status) {
  if (status.ok()) {
    was_alive_ = true;
    Send("WATCHDOG=1");
    return;
  }
  if (was_alive_) Log(LogLevel::kError, "not_alive", {{"reason", status.ToString()}});
  was_alive_ = false;
}

void ServiceManager::Send(const std::string& message) {
  const int result = sd_notify(0, message.c_str());
  if (result >= 0 || failure_logged_) return;
  failure_logged_ = true;
  Log(LogLevel::kWarn, "notify_failed",
      {{"reason",
        absl::StrCat("systemd cannot be notified: ", std::generic_category().message(-result))}});
}

}  // namespace eplb
