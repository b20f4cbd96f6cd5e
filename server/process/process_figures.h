// Resources that this process uses, for the metrics.
#pragma once

#include <cstdint>

namespace eplb {

struct ProcessFigures {
  int64_t resident_bytes = 0;
  int64_t open_descriptors = 0;
  int64_t max_descriptors = 0;
  int64_t threads = 0;
  double cpu_seconds = 0;
  double start_unix_seconds = 0;
};

// Reads the figures of this process from /proc. A figure that cannot be read is 0.
ProcessFigures ReadProcessFigures();

}  // namespace eplb
