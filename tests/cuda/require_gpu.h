// GPU tests skip without a device, with the reason, and fail where EPLB_REQUIRE_GPU=1 says that
// there must be one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cuda/runtime.h"
#include "tests/cuda/gpu_is_required.h"

namespace eplb::cuda::testing {

// "" when a device can be used, else why not.
inline std::string WhyNoGpu() {
  int count = 0;
  const absl::Status status = ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!status.ok()) return std::string(status.message());
  return count > 0 ? "" : "cudaGetDeviceCount found no device";
}

}  // namespace eplb::cuda::testing

// First line of every GPU test, or of its fixture's SetUp. StreamTest below has it.
#define EPLB_REQUIRE_GPU_OR_SKIP()                                                         \
  do {                                                                                     \
    if (const std::string why = ::eplb::cuda::testing::WhyNoGpu(); !why.empty()) {         \
      if (::eplb::cuda::testing::GpuIsRequired()) FAIL() << "EPLB_REQUIRE_GPU=1: " << why; \
      GTEST_SKIP() << why;                                                                 \
    }                                                                                      \
  } while (false)

namespace eplb::cuda::testing {

// A fixture with a stream of device 0. Base: ::testing::Test, or one with a parameter.
template <class Base = ::testing::Test>
class StreamTest : public Base {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  void Synchronize() { ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess); }

  Stream stream_;
};

}  // namespace eplb::cuda::testing
