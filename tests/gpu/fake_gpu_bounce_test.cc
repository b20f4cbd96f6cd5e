// Rows that bounce over host memory, on the stand-in for CUDA: nothing is allocated between steps,
// one call that fails costs a chunk, and a device that hangs holds up neither an abort nor the end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

int64_t NumCallsOf(std::initializer_list<const char*> calls) {
  int64_t sum = 0;
  for (const char* const call : calls) sum += fake_cuda::NumCalls(call);
  return sum;
}

BounceQueues MakeDeviceQueues(int32_t /*rank*/) {
  return {.down = testing::MakeDeviceQueue(), .up = testing::MakeDeviceQueue()};
}

class FakeGpuBounceTest : public ::testing::TestWithParam<BounceWay> {
 protected:
  FakeGpuBounceTest() { fake_cuda::SetSeed(0); }
  ~FakeGpuBounceTest() override { fake_cuda::Revive(); }  // later destructors use the device

  EpGroup MakeEpGroup() const {
    const BounceWay way = GetParam();
    return {topology_,
            StateResidency::kEveryReplica,
            [way](int32_t world_size, int64_t staging_bytes) {
              return MakeBounceWorldOf(world_size, staging_bytes, way, &MakeDeviceQueues);
            },
            {.make_queue = &testing::MakeDeviceQueue}};
  }

  std::mt19937 random_{11};
  const Topology topology_ = MakeTopology(2, 6, 9, 3);
};

INSTANTIATE_TEST_SUITE_P(Ways, FakeGpuBounceTest, ::testing::ValuesIn(kBounceWays), &NameBounceWay);

TEST_P(FakeGpuBounceTest, NothingIsAllocatedOnceRanksAreConnected) {
  EpGroup ep_group = MakeEpGroup();
  Placement current = RandomPlacement(random_, topology_);
  ep_group.Fill(current);
  const auto num_allocations = [] {
    return NumCallsOf({"cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost",
                       "cudaHostRegister", "cudaHostUnregister", "cudaEventCreateWithFlags",
                       "cudaStreamCreateWithPriority"});
  };
  const int64_t before = num_allocations();
  for (uint64_t post_id = 1; post_id <= 4; ++post_id) {
    const Placement target = RandomPlacement(random_, topology_);
    const MigrationPlan plan = ep_group.Plan(current, target);
    for (const auto& staged : ep_group.Stage(plan, post_id)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    ep_group.Commit();
    current = target;
    EXPECT_EQ(num_allocations(), before) << "post " << post_id;
    EXPECT_EQ(ep_group.CountWrong(current), 0);
  }
}

TEST_P(FakeGpuBounceTest, AnErrorOfOneCallDropsTheChunkAndTheNextPlanWorks) {
  EpGroup ep_group = MakeEpGroup();
  const Placement current = RandomPlacement(random_, topology_);
  const Placement target = RandomPlacement(random_, topology_);
  ep_group.Fill(current);
  const auto before = ep_group.Snapshot();
  const MigrationPlan plan = ep_group.Plan(current, target);
  uint64_t post_id = 0;
  for (const std::string call :
       {"cudaMemcpyAsync", "launch", "cudaEventRecord", "cudaEventQuery", "cudaStreamWaitEvent"}) {
    for (const int32_t calls_before : {0, 2, 9}) {
      SCOPED_TRACE(absl::StrCat(call, " after ", calls_before));
      ++post_id;
      RunRanks(3, [&](int32_t rank) {
        if (rank == 1) fake_cuda::FailOnThisThread({.call = call, .calls_before = calls_before});
        const auto staged = ep_group.executor(rank).Stage(
            plan, {.post_id = post_id, .deadline = MonotonicNow() + absl::Seconds(30)});
        if (rank == 1) {
          const bool was_met = fake_cuda::NumFaultsOfThisThread() == 0;
          EXPECT_TRUE(was_met || calls_before > 0);
          EXPECT_FALSE(was_met && staged.ok());
        }
        EXPECT_TRUE(ep_group.executor(rank).may_vote());
      });
      ep_group.Discard();
      EXPECT_EQ(ep_group.Snapshot(), before);
    }
  }
  for (const auto& staged : ep_group.Stage(plan, ++post_id)) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  ep_group.Commit();
  EXPECT_EQ(ep_group.CountWrong(target), 0);
}

TEST_P(FakeGpuBounceTest, RowsAreWhatTheStreamWroteBeforeThePost) {
  constexpr int64_t kNumBytes = 600'000;
  constexpr uint32_t kSeeds = 16;
  QueueMemory memory(&testing::MakeDeviceQueue);
  const std::span<std::byte> row = memory.Put(std::vector<std::byte>(kNumBytes, std::byte{1}));
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&training, cudaStreamNonBlocking, 0), cudaSuccess);
  const Transports transports = MakeBounceWorldOf(2, kNumBytes, GetParam(), &MakeDeviceQueues);
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    fake_cuda::SetSeed(seed);
    const auto value = static_cast<int>(seed);
    ASSERT_EQ(cudaMemsetAsync(row.data(), value, row.size(), training), cudaSuccess);
    RowMoves sends = SendOne(RankId{0}, seed, row);
    sends.stream = training;
    const Ticket send = MustPost(*transports[1], sends);
    const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, seed, kNumBytes));
    for (const auto& result : Drive(transports, {receive, send})) {
      ASSERT_TRUE(result.ok()) << result.status();
    }
    EXPECT_TRUE(memory.Holds(transports[0]->staging(),
                             std::vector<std::byte>(kNumBytes, static_cast<std::byte>(seed))));
  }
}

TEST_P(FakeGpuBounceTest, ADeviceThatHangsHoldsUpNeitherTheAbortNorTheEnd) {
  constexpr int64_t kNumBytes = 600'000;
  QueueMemory memory(&testing::MakeDeviceQueue);
  const std::span<std::byte> row = memory.Put(std::vector<std::byte>(kNumBytes, std::byte{7}));
  cudaStream_t training = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&training, cudaStreamNonBlocking, 0), cudaSuccess);
  Transports transports = MakeBounceWorldOf(2, kNumBytes, GetParam(), &MakeDeviceQueues,
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
    return NumCallsOf({"cudaFree", "cudaFreeHost", "cudaHostUnregister", "cudaStreamDestroy"});
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
