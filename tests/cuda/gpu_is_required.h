// True if a test must fail, not skip, without a device. Needs no CUDA.
#pragma once

#include <cstdlib>
#include <string_view>

namespace eplb::cuda::testing {

inline bool GpuIsRequired() {
  const char* value = std::getenv("EPLB_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace eplb::cuda::testing
