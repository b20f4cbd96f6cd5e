// The executor if CUDA's calls fail, or the device is behind: the chunk is lost and the run goes
// on. The stand-in for CUDA fails as the tests ask.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/paths/peer_path.h"
#include "client/rows/staging_thread.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/gpu/arena_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRanks = 3;
constexpr int32_t kFaulty = 1;  // the rank that it happens to

Transports MakeFaultyWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeArenaWorld(world_size, staging_bytes);
}

// Over the arena that ranks share, and over each form of the bounce through host memory.
using WorldMaker = Transports (*)(int32_t world_size, int64_t staging_bytes);

BounceQueues MakeDeviceQueues(int32_t /*rank*/) {
  return {.down = MakeDeviceQueue(), .up = MakeDeviceQueue()};
}

template <BounceWay way>
Transports MakeFaultyBounce(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOf(world_size, staging_bytes, way, &MakeDeviceQueues);
}

class GpuFaults : public ::testing::Test {
 protected:
  using Results = std::vector<absl::StatusOr<Executor::Staged>>;

  explicit GpuFaults(WorldMaker make_world = &MakeFaultyWorld) : make_world_(make_world) {
    fake_cuda::SetSeed(0);
    ep_group_.Fill(current_);
  }
  ~GpuFaults() override { fake_cuda::Revive(); }  // later destructors use the device

  // prepare: on the faulty rank's thread, before it stages by what it gives. staged: on rank 0's
  // thread, once it knows how that ended.
  Results Stage(
      const std::function<void(Executor::StageOptions&)>& prepare,
      const std::function<void()>& staged = [] {}) {
    const uint64_t post_id = ++post_id_;
    Results results(kRanks, Executor::Staged{});
    RunRanks(kRanks, [&](int32_t rank) {
      Executor::StageOptions options{.post_id = post_id,
                                     .deadline = MonotonicNow() + absl::Seconds(30)};
      if (rank == kFaulty) prepare(options);
      results[rank] = ep_group_.executor(rank).Stage(plan_, options);
      if (rank == kFaulty) num_unmet_ = fake_cuda::NumFaultsOfThisThread();
      if (rank == 0) staged();
    });
    return results;
  }

  // The vote is no: no rank's slots have changed, and all may vote and go on.
  void ExpectADroppedChunk(const std::vector<std::vector<std::vector<std::byte>>>& before) {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(ep_group_.executor(rank).may_vote()) << "rank " << rank;
    }
    ep_group_.Discard();
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(ep_group_.executor(rank).may_vote()) << "rank " << rank;
    }
    EXPECT_EQ(ep_group_.Snapshot(), before);
  }

  void ExpectThatTheNextPlanWorks() {
    for (const auto& staged : Stage([](auto&) {})) ASSERT_TRUE(staged.ok()) << staged.status();
    ep_group_.Commit();
    EXPECT_EQ(ep_group_.CountWrong(target_), 0);
  }

  const WorldMaker make_world_;
  std::mt19937 random_{11};
  const Topology topology_ = MakeTopology(2, 6, 9, kRanks);
  const Placement current_ = RandomPlacement(random_, topology_);
  const Placement target_ = RandomPlacement(random_, topology_);
  EpGroup ep_group_{
      topology_, StateResidency::kEveryReplica, make_world_, {.make_queue = &MakeDeviceQueue}};
  const MigrationPlan plan_ = ep_group_.Plan(current_, target_);
  uint64_t post_id_ = 0;
  size_t num_unmet_ = 0;
};

class GpuFaultsTest : public GpuFaults {};

class GpuPathFaultsTest : public GpuFaults, public ::testing::WithParamInterface<WorldMaker> {
 protected:
  GpuPathFaultsTest() : GpuFaults(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Paths, GpuPathFaultsTest,
                         ::testing::Values(&MakeFaultyWorld, &MakeFaultyBounce<BounceWay::kPinned>,
                                           &MakeFaultyBounce<BounceWay::kCopied>,
                                           &MakeFaultyBounce<BounceWay::kSockets>));

TEST_P(GpuPathFaultsTest, AnErrorOfOneCallDropsTheChunkAndTheNextPlanWorks) {
  const auto before = ep_group_.Snapshot();
  for (const std::string call :
       {"cudaMemcpyAsync", "launch", "cudaEventRecord", "cudaEventQuery", "cudaStreamWaitEvent"}) {
    for (const int32_t calls_before : {0, 1, 3, 8}) {
      SCOPED_TRACE(absl::StrCat(call, " after ", calls_before));
      const Results results = Stage([&](auto&) {
        fake_cuda::FailOnThisThread({.call = call, .calls_before = calls_before});
      });
      EXPECT_TRUE(calls_before > 0 || num_unmet_ == 0);
      EXPECT_EQ(results[kFaulty].ok(), num_unmet_ > 0) << results[kFaulty].status();
      ExpectADroppedChunk(before);
    }
  }
  ExpectThatTheNextPlanWorks();
}

TEST_F(GpuFaultsTest, ALostDeviceEndsTheRun) {
  (void)Stage([](auto&) {
    fake_cuda::FailOnThisThread(
        {.call = "launch", .error = cudaErrorIllegalAddress, .sticky = true});
  });
  EXPECT_FALSE(ep_group_.executor(kFaulty).may_vote());
}

TEST_F(GpuFaultsTest, ACommitIsTriedOnceMore) {
  for (const auto& staged : Stage([](auto&) {})) ASSERT_TRUE(staged.ok()) << staged.status();
  fake_cuda::FailOnThisThread({.call = "launch"});
  fake_cuda::FailOnThisThread({.call = "cudaEventRecord", .calls_before = 3});
  ep_group_.Commit();
  EXPECT_EQ(fake_cuda::NumFaultsOfThisThread(), 0U);
  EXPECT_EQ(ep_group_.CountWrong(target_), 0);
}

TEST_F(GpuFaultsTest, TheClockOfATransferStartsWhenTheDeviceHasCaughtUp) {
  const cudaStream_t training = MakeTrainingStream();
  const absl::Time began = MonotonicNow();
  RunRanks(kRanks, [&](int32_t rank) {
    Executor::StageOptions options{.post_id = 1,
                                   .deadline = began + absl::Milliseconds(500),
                                   .begin_by = began + absl::Seconds(60)};
    if (rank == kFaulty) {
      fake_cuda::Occupy(training, std::chrono::milliseconds(1500));
      options.stream = training;
    }
    const auto staged = ep_group_.executor(rank).Stage(plan_, options);
    EXPECT_TRUE(staged.ok()) << staged.status();
  });
  EXPECT_GE(MonotonicNow() - began, absl::Milliseconds(1500));
  ep_group_.Commit();
  EXPECT_EQ(ep_group_.CountWrong(target_), 0);
}

TEST_F(GpuFaultsTest, ADeviceThatStaysBehindDropsTheChunkAndTheNextPlanWorks) {
  const auto before = ep_group_.Snapshot();
  const cudaStream_t training = MakeTrainingStream();
  std::atomic<bool> step_may_end = false;
  fake_cuda::EnqueueExternal(training, [&] { return step_may_end.load(); });
  const Results results = Stage(
      [&](Executor::StageOptions& options) {
        options.deadline = options.begin_by = MonotonicNow() + absl::Milliseconds(300);
        options.stream = training;
      },
      [&] { step_may_end = true; });
  EXPECT_THAT(results[kFaulty].status().ToString(), HasSubstr("the GPU is behind"));
  EXPECT_THAT(results[0].status().ToString(), HasSubstr("rank 1 ended it"));
  ExpectADroppedChunk(before);
  for (const auto& staged : Stage([&](Executor::StageOptions& options) {
         options.begin_by = MonotonicNow() + absl::Seconds(60);
         options.stream = training;
       })) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  ep_group_.Commit();
  EXPECT_EQ(ep_group_.CountWrong(target_), 0);
}

TEST_F(GpuFaultsTest, AStreamUnderCaptureOrOfAnotherDeviceIsRefusedAndNotTouched) {
  const auto before = ep_group_.Snapshot();
  const cudaStream_t capturing = MakeTrainingStream();
  ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
  for (const cudaStream_t stream : {capturing, MakeTrainingStream(1)}) {
    const Results results =
        Stage([&](Executor::StageOptions& options) { options.stream = stream; });
    EXPECT_TRUE(absl::IsFailedPrecondition(results[kFaulty].status())) << results[kFaulty].status();
    EXPECT_TRUE(absl::IsAborted(results[0].status())) << results[0].status();
    ExpectADroppedChunk(before);
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(capturing, &graph), cudaSuccess) << "the capture was disturbed";
  ExpectThatTheNextPlanWorks();
}

TEST_F(GpuFaultsTest, RowsThatMoveBesideAStepDisturbNoCaptureOfIt) {
  const cudaStream_t training = MakeTrainingStream();
  std::vector<std::unique_ptr<StagingThread>> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const absl::Status begun =
        ep_group_.executor(rank).BeginStage(plan_, {.post_id = 1,
                                                    .deadline = MonotonicNow() + absl::Seconds(30),
                                                    .begin_by = MonotonicNow() + absl::Seconds(60),
                                                    .stream = training});
    ASSERT_TRUE(begun.ok()) << begun;
    threads.push_back(std::make_unique<StagingThread>(ep_group_.executor(rank)));
  }
  const int64_t prohibited = fake_cuda::NumProhibitedCalls();
  ASSERT_EQ(cudaStreamBeginCapture(training, cudaStreamCaptureModeGlobal), cudaSuccess);
  for (const auto& thread : threads) thread->Begin();
  for (const auto& thread : threads) {
    const absl::StatusOr<Executor::Staged> staged = thread->Join();
    EXPECT_TRUE(staged.ok()) << staged.status();
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(training, &graph), cudaSuccess);
  EXPECT_EQ(fake_cuda::NumProhibitedCalls(), prohibited);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const absl::Status same =
        ep_group_.executor(rank).CheckSources(training, MonotonicNow() + absl::Seconds(30));
    EXPECT_TRUE(same.ok()) << same;
  }
  ep_group_.Commit();
  EXPECT_EQ(ep_group_.CountWrong(target_), 0);
}

TEST_F(GpuFaultsTest, ADeviceThatIsBehindWhenRowsAreReadAgainDropsTheChunk) {
  const auto before = ep_group_.Snapshot();
  const cudaStream_t training = MakeTrainingStream();
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const absl::Status begun = ep_group_.executor(rank).BeginStage(
        plan_, {.post_id = 1, .deadline = MonotonicNow() + absl::Seconds(30)});
    ASSERT_TRUE(begun.ok()) << begun;
  }
  post_id_ = 1;
  RunRanks(kRanks, [&](int32_t rank) {
    const auto staged = ep_group_.executor(rank).FinishStage();
    EXPECT_TRUE(staged.ok()) << staged.status();
  });
  fake_cuda::Occupy(training, std::chrono::milliseconds(3000));
  const absl::Status same =
      ep_group_.executor(kFaulty).CheckSources(training, MonotonicNow() + absl::Milliseconds(300));
  EXPECT_TRUE(absl::IsDeadlineExceeded(same)) << same;
  EXPECT_THAT(same.ToString(), HasSubstr("the GPU is behind"));
  // No kernel of ours stands behind the step, so that nothing is waited for.
  ExpectADroppedChunk(before);
  ExpectThatTheNextPlanWorks();
}

TEST_P(GpuPathFaultsTest, NothingIsAllocatedOnceRanksAreConnected) {
  const int64_t allocations = fake_cuda::NumAllocations();
  ExpectThatTheNextPlanWorks();
  ep_group_.Discard();
  EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
}

// Memory that peers have mapped, or that queues may still write, is kept if the device does not
// finish.
TEST(PeerPathFaultsTest, ADeviceThatHangsHoldsUpNeitherTheAbortNorTheEnd) {
  constexpr size_t kNumBytes = 600'000;
  fake_cuda::SetSeed(0);
  QueueMemory memory(&MakeDeviceQueue);
  const std::span<std::byte> row = memory.Put(std::vector<std::byte>(kNumBytes, std::byte{7}));
  const std::span<std::byte> own = memory.Put(std::vector<std::byte>(kNumBytes));
  const std::span<std::byte> theirs = memory.Put(std::vector<std::byte>(kNumBytes));
  const cudaStream_t training = MakeTrainingStream();
  const auto num_waits = [] {
    return fake_cuda::NumCalls("cudaFree") + fake_cuda::NumCalls("cudaFreeHost") +
           fake_cuda::NumCalls("cudaStreamDestroy");
  };
  static bool freed;  // by what outlives the test
  for (const bool hangs : {false, true}) {
    SCOPED_TRACE(hangs);
    freed = false;
    auto path = MakePeerPath(
        {.owner = std::shared_ptr<void>(static_cast<void*>(nullptr), [](void*) { freed = true; }),
         .staging = own,
         .mapped = {{RankId{1}, theirs}},
         .queue = MakeDeviceQueue(),
         .check_queue = MakeDeviceQueue(),
         .settle_timeout = hangs ? absl::Milliseconds(50) : absl::Seconds(20)});
    std::vector<PeerLink> peers;
    peers.push_back(PeerLink({.rank = RankId{1}, .fd = Fd(), .staging_bytes = kNumBytes}));
    peers.front().posted = 1;
    LinkSet links(std::move(peers));
    RowMoves moves = SendOne(RankId{1}, 1, row);
    moves.stream = training;
    TransferLedger ledger(moves);
    if (hangs) fake_cuda::Occupy(training, std::chrono::minutes(1));
    ASSERT_TRUE(path->Open(moves, ledger, links).ok());
    ASSERT_TRUE(path->Advance().ok());
    EXPECT_TRUE(path->busy());
    const int64_t before = num_waits();
    EXPECT_EQ(absl::IsDeadlineExceeded(path->Close(/*done=*/false)), hangs);
    path.reset();
    EXPECT_EQ(freed, !hangs);
    EXPECT_EQ(num_waits() == before, hangs) << "each of them would wait for the device";
  }
  fake_cuda::Revive();
}

}  // namespace
}  // namespace eplb
