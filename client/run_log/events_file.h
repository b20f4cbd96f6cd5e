// Events of a job, as `eplbctl get events -o json` prints them, in a file of the run's directory.
#ifndef EPLB_CLIENT_RUN_LOG_EVENTS_FILE_H_
#define EPLB_CLIENT_RUN_LOG_EVENTS_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

// One line of the daemon's audit log.
struct LoggedEvent {
  int64_t sequence = 0;
  int64_t unix_micros = 0;  // the daemon's wall clock
  std::string name;         // committed, pause, set_policy, ..
  std::string reason;       // one sentence
  std::string actor;        // operator who asked for it; empty: the daemon itself
  std::string before;       // value before a change
  std::string after;
};

struct LoggedEvents {
  std::string job;
  std::vector<LoggedEvent> events;  // oldest first
};

// errors, beginning with the path: NotFound; InvalidArgument naming the key.
absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path);

}  // namespace eplb

#endif  // EPLB_CLIENT_RUN_LOG_EVENTS_FILE_H_
