// What operators and the daemon did to a job: `eplbctl get events -o json`, kept beside a run.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_EVENTS_FILE_H_
#define EPLB_CLIENT_FILES_EVENTS_FILE_H_

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
  std::string actor;        // the operator who asked for it; empty: the daemon itself
  std::string before;       // of a change
  std::string after;
};

struct LoggedEvents {
  std::string job;
  std::vector<LoggedEvent> events;  // oldest first
};

// errors, beginning with the path: NotFound; InvalidArgument naming the key.
absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_EVENTS_FILE_H_
