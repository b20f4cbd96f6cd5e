// The stand-in for libnccl on the stand-in for CUDA: what it finds that NCCL would not report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/clock.h"
#include <cuda_runtime_api.h>

#include "cuda/nccl_communicator.h"
#include "cuda/runtime.h"
#include "tests/cuda/nccl_wait.h"
#include "tests/gpu/nccl_stream_world.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

class FakeNcclStreamsTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4096;

  FakeNcclStreamsTest() {
    fake_cuda::SetSeed(0);
    const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
    const auto id = cuda::MakeNcclId(**library);
    for (int32_t rank = 0; rank < 2; ++rank) {
      ranks_.push_back(
          *cuda::NcclCommunicator::Begin(**library, *id, {.rank = rank, .num_ranks = 2}));
      memory_.push_back(*cuda::MakeDeviceMemory(kBytes));
      streams_.push_back(*cuda::MakeStream());
    }
    for (const auto& rank : ranks_) EXPECT_TRUE(cuda::testing::WaitUntilReady(*rank).ok());
    EXPECT_EQ(FakeNcclViolations(), "");
  }
  ~FakeNcclStreamsTest() override {
    ranks_.clear();
    EXPECT_EQ(FakeNcclViolations(), "");
  }

  std::span<std::byte> Bytes(size_t rank) {
    return {static_cast<std::byte*>(memory_[rank].get()), kBytes};
  }
  void Send() {
    EXPECT_TRUE(ranks_[0]
                    ->SendReceive(cuda::NcclSend{.to = 1, .bytes = Bytes(0)}, std::nullopt,
                                  streams_[0].get())
                    .ok());
    EXPECT_TRUE(cuda::testing::WaitUntilReady(*ranks_[0]).ok()) << "it was launched";
  }
  void Receive() {
    EXPECT_TRUE(ranks_[1]
                    ->SendReceive(std::nullopt, cuda::NcclReceive{.from = 0, .bytes = Bytes(1)},
                                  streams_[1].get())
                    .ok());
    EXPECT_TRUE(cuda::testing::WaitUntilReady(*ranks_[1]).ok());
  }
  // Until the stream has no work, or the communicator has failed.
  absl::Status Await(size_t rank) {
    while (cudaStreamQuery(streams_[rank].get()) == cudaErrorNotReady) {
      (void)cudaGetLastError();
      if (const auto state = ranks_[rank]->Poll(); !state.ok()) return state.status();
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<cuda::NcclCommunicator>> ranks_;
  std::vector<cuda::DeviceMemory> memory_;
  std::vector<cuda::Stream> streams_;
};

TEST_F(FakeNcclStreamsTest, AGroupIsLaunchedBeforeItsBytesMoveAndEndsWithItsStream) {
  Send();
  EXPECT_EQ(cudaStreamQuery(streams_[0].get()), cudaErrorNotReady) << "nobody receives";
  (void)cudaGetLastError();
  Receive();
  EXPECT_TRUE(Await(0).ok());
  EXPECT_TRUE(Await(1).ok());
}

TEST_F(FakeNcclStreamsTest, MemoryOfAGroupThatHasNotEndedMayNotBeFreed) {
  Send();
  memory_[0].reset();
  EXPECT_EQ(FakeNcclViolations(), "memory was freed that a group still uses\n");
}

TEST_F(FakeNcclStreamsTest, RegisteredMemoryMayNotBeFreed) {
  ASSERT_TRUE(ranks_[0]->Register(Bytes(0)).ok());
  ASSERT_TRUE(ranks_[1]->Register(Bytes(1)).ok());
  ranks_[1]->Deregister();
  memory_[0].reset();
  memory_[1].reset();
  EXPECT_EQ(FakeNcclViolations(), "memory was freed that is registered\n");
}

TEST_F(FakeNcclStreamsTest, MemoryIsRegisteredAtBothEndsOrNone) {
  ASSERT_TRUE(ranks_[0]->Register(Bytes(0)).ok());
  Send();
  Receive();
  EXPECT_FALSE(Await(0).ok() && Await(1).ok());
  ranks_.clear();  // either may have found it first
  EXPECT_THAT(FakeNcclViolations(), HasSubstr("has registered its memory"));
}

TEST_F(FakeNcclStreamsTest, WhatIsSentMayNotChangeInFlight) {
  Send();
  ASSERT_EQ(cudaMemset(memory_[0].get(), 1, kBytes), cudaSuccess);
  fake_cuda::RunAll();
  Receive();
  EXPECT_FALSE(Await(0).ok());
  EXPECT_THAT(FakeNcclViolations(), HasSubstr("changed while it was in flight"));
}

TEST_F(FakeNcclStreamsTest, AStreamOfAnotherDeviceIsRefused) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  streams_[0] = *cuda::MakeStream();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_FALSE(
      ranks_[0]
          ->SendReceive(cuda::NcclSend{.to = 1, .bytes = Bytes(0)}, std::nullopt, streams_[0].get())
          .ok());
  EXPECT_EQ(FakeNcclViolations(), "rank 0 gave a stream that is not one of device 0\n");
}

}  // namespace
}  // namespace eplb
