#include "cuda/status.h"

#include <gtest/gtest.h>

namespace eplb::cuda {
namespace {

TEST(ToStatusTest, SuccessIsOk) { EXPECT_TRUE(ToStatus(cudaSuccess, "cudaMalloc").ok()); }

TEST(ToStatusTest, MessageHasCallNameAndText) {
  EXPECT_EQ(ToStatus(cudaErrorMemoryAllocation, "cudaMalloc").message(),
            "cudaMalloc: cudaErrorMemoryAllocation (2): out of memory");
}

TEST(ToStatusTest, CodeSaysWhatTheCallerCanDo) {
  EXPECT_EQ(ToStatus(cudaErrorMemoryAllocation, "").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ToStatus(cudaErrorNoDevice, "").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ToStatus(cudaErrorInsufficientDriver, "").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ToStatus(cudaErrorNotReady, "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ToStatus(cudaErrorIllegalAddress, "").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace eplb::cuda
