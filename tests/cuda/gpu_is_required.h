// True if a test must fail, not skip, without a device. Needs no CUDA.
#ifndef EPLB_TESTS_CUDA_GPU_IS_REQUIRED_H_
#define EPLB_TESTS_CUDA_GPU_IS_REQUIRED_H_

#include <cstdlib>
#include <string_view>

namespace eplb::cuda::testing {

inline bool GpuIsRequired() {
  const char* value = std::getenv("EPLB_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace eplb::cuda::testing

#endif  // EPLB_TESTS_CUDA_GPU_IS_REQUIRED_H_
