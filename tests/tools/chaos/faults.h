// Faults that a proxy applies to the bytes that pass it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace eplb::chaos {

struct Faults {
  absl::Duration delay = absl::ZeroDuration();   // delay of every chunk that was read
  absl::Duration jitter = absl::ZeroDuration();  // at most so much more; the order stays
  bool drop = false;                             // bytes are read and thrown away: a black hole
  bool stall = false;                            // nothing is read: the peers' buffers fill up
  double corrupt = 0;            // probability that a chunk loses the value of one of its bits
  int64_t bytes_per_second = 0;  // limit of each direction of a connection; 0 = not limited
  int64_t cuts = 0;              // a rise resets (RST) every connection that is open
};

// One line: "delay 50ms", "jitter 10ms", "drop on|off", "stall on|off", "corrupt 0.01",
// "rate 100000", "cut", or "clear" (no fault). errors: InvalidArgument naming the word.
absl::Status ApplyLine(const std::string& line, Faults* faults);

}  // namespace eplb::chaos
