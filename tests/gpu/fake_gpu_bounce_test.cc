// Rows that bounce over host memory, on the stand-in for CUDA: they follow the training stream, and
// a device that hangs holds up neither an abort nor the end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

BounceQueues MakeQueuesOfDevice(int32_t /*rank*/) {
  return {.down = MakeDeviceQueue(), .up = MakeDeviceQueue()};
}

class FakeGpuBounceTest : public ::testing::TestWithParam<BounceWay> {
 protected:
  FakeGpuBounceTest() { fake_cuda::SetSeed(0); }
  ~FakeGpuBounceTest() override { fake_cuda::Revive(); }  // later destructors use the device
};

INSTANTIATE_TEST_SUITE_P(Ways, FakeGpuBounceTest, ::testing::ValuesIn(kBounceWays), &NameBounceWay);

TEST_P(FakeGpuBounceTest, RowsAreWhatTheStreamWroteBeforeThePost) {
  constexpr int64_t kNumBytes = 600'000;
  constexpr uint32_t kSeeds = 16;
  QueueMemory memory(&MakeDeviceQueue);
  const std::span<std::byte> row = memory.Put(std::vector<std::byte>(kNumBytes, std::byte{1}));
  const cudaStream_t training = MakeTrainingStream();
  const Transports transports = MakeBounceWorldOf(2, kNumBytes, GetParam(), &MakeQueuesOfDevice);
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    fake_cuda::SetSeed(seed);
    const auto value = static_cast<int>(seed);
    ASSERT_EQ(cudaMemsetAsync(row.data(), value, row.size(), training), cudaSuccess);
    RowMoves sends = SendOne(RankId{0}, seed, row);
    sends.stream = training;
    const Ticket send = MustPost(*transports[1], sends);
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, seed, kNumBytes));
    MustDrive(transports, {receive, send});
    EXPECT_TRUE(memory.Holds(transports[0]->staging(),
                             std::vector<std::byte>(kNumBytes, static_cast<std::byte>(seed))));
  }
}

TEST_P(FakeGpuBounceTest, ADeviceThatHangsHoldsUpNeitherTheAbortNorTheEnd) {
  constexpr int64_t kNumBytes = 600'000;
  QueueMemory memory(&MakeDeviceQueue);
  const std::span<std::byte> row = memory.Put(std::vector<std::byte>(kNumBytes, std::byte{7}));
  const cudaStream_t training = MakeTrainingStream();
  Transports transports = MakeBounceWorldOf(2, kNumBytes, GetParam(), &MakeQueuesOfDevice,
                                            /*settle_timeout=*/absl::Milliseconds(50));
  fake_cuda::Occupy(training, std::chrono::minutes(1));
  RowMoves sends = SendOne(RankId{0}, 1, row);
  sends.stream = training;
  const Ticket send = MustPost(*transports[1], sends);
  const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 1, kNumBytes));
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(transports[0]->Poll(receive, absl::ZeroDuration()).ok());
    ASSERT_TRUE(transports[1]->Poll(send, absl::ZeroDuration()).ok());
  }
  const auto num_waits = [] {
    return fake_cuda::NumCalls("cudaFree") + fake_cuda::NumCalls("cudaFreeHost") +
           fake_cuda::NumCalls("cudaHostUnregister") + fake_cuda::NumCalls("cudaStreamDestroy");
  };
  const int64_t before = num_waits();
  EXPECT_TRUE(absl::IsDeadlineExceeded(transports[1]->Abort()));
  transports[1].reset();
  EXPECT_EQ(num_waits(), before) << "each of them would wait for the device";
  fake_cuda::Revive();
  EXPECT_TRUE(transports[0]->Abort().ok());
}

}  // namespace
}  // namespace eplb
