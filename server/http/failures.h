// Counters of what failed on the HTTP side since its start, for the metrics.
#pragma once

#include <cstdint>
#include <map>

namespace eplb {

// Connections that were closed without a whole answer.
struct HttpDrops {
  int64_t crowded = 0;  // too many connections waited
  int64_t late = 0;     // the request's head did not end before its deadline
  int64_t slow = 0;     // the peer did not take its answer before the deadline
};

struct HttpFailures {
  std::map<int, int64_t> answers;  // by status code, 400 and above
  HttpDrops drops;
};

}  // namespace eplb
