#include "cuda/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>

namespace eplb::cuda {

namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(ToStatusTest, AMissingKernelImageNamesWhatIsThereAndWhatIsNeeded) {
  for (const cudaError_t error :
       {cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion}) {
    const absl::Status status = ToStatus(error, "launch of the copy kernel");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                ContainsRegex("this build has kernels for the architectures [0-9]+(, [0-9]+)*"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("CMAKE_CUDA_ARCHITECTURES"));
  }
  EXPECT_THAT(std::string(ToStatus(cudaErrorIllegalAddress, "").message()),
              Not(HasSubstr("architectures")));
}

TEST(ToStatusTest, AnOldDriverNamesBothVersionsAndThePage) {
  EXPECT_THAT(std::string(ToStatus(cudaErrorInsufficientDriver, "cudaMalloc").message()),
              ContainsRegex("this build has the runtime of CUDA 1[0-9]\\.[0-9]+, .*driver.*"
                            "\\(docs/installing.md, \"GPUs and drivers\"\\)$"));
  EXPECT_THAT(std::string(ToStatus(cudaErrorIllegalAddress, "").message()),
              Not(HasSubstr("installing.md")));
}

int32_t destroyed = 0;
int CountDestroyed(int* handle) {
  destroyed += *handle;
  return 0;
}

TEST(HandlesTest, HandleIsOnePointerAndDestroyedOnce) {
  using Handle = std::unique_ptr<int*, HandleDeleter<int*, CountDestroyed>>;
  static_assert(sizeof(Handle) == sizeof(int*));
  static_assert(sizeof(Stream) == sizeof(cudaStream_t));
  static_assert(!std::is_copy_constructible_v<DeviceMemory>);
  int one = 1;
  {
    Handle first(&one);
    const Handle second = std::move(first);
    EXPECT_EQ(destroyed, 0);
  }
  EXPECT_EQ(destroyed, 1);
}

TEST(HandlesTest, EitherThereIsADeviceOrTheStatusSaysSo) {
  const auto stream = MakeStream();
  if (stream.ok()) {
    EXPECT_NE(stream->get(), nullptr);
  } else {
    EXPECT_EQ(stream.status().code(), absl::StatusCode::kFailedPrecondition) << stream.status();
  }
}

}  // namespace

}  // namespace eplb::cuda
