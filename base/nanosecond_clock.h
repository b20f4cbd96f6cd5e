// A clock in nanoseconds for code that runs on the CPU and on the GPU.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/host_device.h"

namespace eplb {

// Returns the time since a fixed moment of this machine's CPU, or of its GPU.
EPLB_HOST_DEVICE inline int64_t NowInNanoseconds() {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return static_cast<int64_t>(now);
#else
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
#endif
}

}  // namespace eplb
