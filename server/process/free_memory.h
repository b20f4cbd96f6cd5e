// Returns freed memory to the system. The C library keeps what was freed between blocks in use, so
// that a daemon whose jobs have left would stay as large as it was at its busiest.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstdint>

namespace eplb {

class FreeMemory {
 public:
  static constexpr int64_t kWorthwhile = int64_t{16} << 20;

  // held: bytes that the process holds of what varies most. Returns true if memory was returned:
  // `held` is kWorthwhile below its most since the last time. cost: milliseconds then.
  bool Note(int64_t held) {
    most_ = std::max(most_, held);
    if (most_ - held < kWorthwhile) return false;
    most_ = held;
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    return true;
  }

 private:
  int64_t most_ = 0;
};

}  // namespace eplb
