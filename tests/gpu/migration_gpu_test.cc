// Migration of GPU memory: the contracts with ranks that are threads of one device, and the
// transports that the product chooses with ranks that are processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "client/rows/control/socket.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/bounce_world.h"
#include "tests/client/rows/paths/peer_world.h"
#include "tests/client/rows/replica_contract.h"
#include "tests/cuda/require_gpu.h"
#include "tests/gpu/arena_world.h"
#include "tests/gpu/device_queue.h"
#include "tests/gpu/migration_rank.h"
#include "tests/gpu/rank_processes.h"
#ifdef EPLB_WITH_NCCL
#include "cuda/nccl_library.h"
#endif

namespace eplb {
namespace {

// A peer's pointer is just a pointer: between threads the path is the one that NVLink takes.
Transports MakeDevicePeerWorld(int32_t world_size, int64_t staging_bytes) {
  return MakePeerWorldOver(world_size, staging_bytes, &MakeDeviceQueue);
}
// Staging as processes hand it over, each peer's mapped here by its descriptor.
Transports MakeArenaPeerWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeArenaWorld(world_size, staging_bytes);
}
Transports MakeDeviceBounceWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOver<BounceWay::kPinned>(world_size, staging_bytes, &MakeDeviceQueue);
}
Transports MakeDeviceCopiedWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOver<BounceWay::kCopied>(world_size, staging_bytes, &MakeDeviceQueue);
}
Transports MakeDeviceSocketsWorld(int32_t world_size, int64_t staging_bytes) {
  return MakeBounceWorldOver<BounceWay::kSockets>(world_size, staging_bytes, &MakeDeviceQueue);
}

INSTANTIATE_TEST_SUITE_P(DevicePeer, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeDevicePeerWorld, &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(ArenaPeer, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeArenaPeerWorld, &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(ArenaPeer, ReplicaContractTest,
                         ::testing::Values(TransportKind(&MakeArenaPeerWorld, &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(Arena, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"PeerEveryReplica", MakeArenaPeerWorld,
                                                        StateResidency::kEveryReplica,
                                                        &MakeDeviceQueue}),
                         [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(DeviceBounce, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeDeviceBounceWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(DeviceBounceCopied, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeDeviceCopiedWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(DeviceBounceSockets, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeDeviceSocketsWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(DevicePeer, ReplicaContractTest,
                         ::testing::Values(TransportKind(&MakeDevicePeerWorld, &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(DeviceBounce, ReplicaContractTest,
                         ::testing::Values(TransportKind(&MakeDeviceBounceWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(
    Device, ExecutorContractTest,
    ::testing::Values(ExecutorKind{"PeerEveryReplica", MakeDevicePeerWorld,
                                   StateResidency::kEveryReplica, &MakeDeviceQueue},
                      ExecutorKind{"PeerWithPrimary", MakeDevicePeerWorld,
                                   StateResidency::kWithPrimary, &MakeDeviceQueue},
                      ExecutorKind{"BounceEveryReplica", MakeDeviceBounceWorld,
                                   StateResidency::kEveryReplica, &MakeDeviceQueue}),
    [](const auto& kind) { return kind.param.name; });

class MigrationProcessesTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kRankDeadline = absl::Seconds(120);

  // Every rank must say that all went well, but for one that is killed. hosts: each rank is one of
  // its own for NCCL.
  void RunJob(MigrationJob job, bool hosts = false, const std::vector<std::string>& more = {}) {
    auto listener = ListenTcp("127.0.0.1", 0);
    ASSERT_TRUE(listener.ok()) << listener.status();
    uint32_t port = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port));
    job.port = static_cast<uint16_t>(port);
    listener = absl::CancelledError("rank 0 listens there");
    RankProcesses ranks;
    for (job.rank = 0; job.rank < job.num_ranks; ++job.rank) {
      std::vector<std::string> variables;
      if (hosts) variables = NcclVariables(absl::StrCat("eplb-r", job.rank));
      variables.insert(variables.end(), more.begin(), more.end());
      ASSERT_TRUE(ranks.Start(ToArguments(job), std::move(variables)));
    }
    const std::vector<int> ends = ranks.Ends(kRankDeadline);
    int32_t well = 0;
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      if (static_cast<int32_t>(rank) == job.killed_rank) {
        EXPECT_TRUE(WIFSIGNALED(ends[rank]) && WTERMSIG(ends[rank]) == SIGKILL) << ends[rank];
        continue;
      }
      ASSERT_TRUE(WIFEXITED(ends[rank])) << ends[rank];
      const int code = WEXITSTATUS(ends[rank]);
      EXPECT_THAT(code, ::testing::AnyOf(kRankIsWell, kRankHadAllRows));
      well += code == kRankIsWell ? 1 : 0;
    }
    // All rows of a rank that dies midway may have come.
    const bool all_may_have_come = job.killed_midway && job.transport != "nccl";
    EXPECT_GT(well, all_may_have_come ? -1 : 0) << "nobody missed what the killed rank owed";
  }
};

// Shows without a GPU that the ranks are started and compared rightly.
TEST_F(MigrationProcessesTest, HostMemoryIsMoved) {
  RunJob({.num_ranks = 2, .transport = "host", .on_device = false});
}

TEST_F(MigrationProcessesTest, ARankThatIsKilledInHostMemoryLeavesTheOthersTheirOldSlots) {
  RunJob({.num_ranks = 3, .transport = "host", .on_device = false, .killed_rank = 1});
}

TEST_F(MigrationProcessesTest, ARankThatIsKilledOnADeviceLeavesTheOthersTheirOldSlots) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 3, .transport = "peer", .killed_rank = 1});
}

TEST_F(MigrationProcessesTest, ARankThatIsKilledBetweenItsRowsLeavesTheOthersTheirOldSlots) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 3, .transport = "peer", .killed_rank = 1, .killed_midway = true});
}

TEST_F(MigrationProcessesTest, TwoProcessesMoveRowsThroughStagingThatIsADescriptor) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 2, .transport = "peer"});
}

TEST_F(MigrationProcessesTest, FourProcessesMoveRowsThroughStagingThatIsADescriptor) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 4, .transport = "peer"});
}

TEST_F(MigrationProcessesTest, TwoProcessesMoveRowsThroughIpcHandles) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 2, .transport = "peer", .use_ipc_handles = true});
}

TEST_F(MigrationProcessesTest, FourProcessesMoveRowsThroughIpcHandles) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 4, .transport = "peer", .use_ipc_handles = true});
}

TEST_F(MigrationProcessesTest, RowsOfADeviceBounceOverTheHost) {
  EPLB_REQUIRE_GPU_OR_SKIP();
  RunJob({.num_ranks = 3, .transport = "host"});
}

#ifdef EPLB_FAKE_CUDA
TEST_F(MigrationProcessesTest, PeersThatLoseWhatIsWrittenArePassedOverAtTheStart) {
  RunJob({.num_ranks = 3, .transport = "auto"}, /*hosts=*/false,
         {"EPLB_FAKE_CUDA_LOST_WRITES=1", "EPLB_NCCL_PATH=/there/is/none"});
}
#ifdef EPLB_FAKE_NCCL
// The communicator is made and no row goes by it, for nothing stands in for CUDA in NCCL.
TEST_F(MigrationProcessesTest, RanksOfOneHostMoveAllRowsByPeerWhereBothAreAskedFor) {
  RunJob({.num_ranks = 3, .transport = "peer+nccl"}, /*hosts=*/false,
         {absl::StrCat("EPLB_NCCL_PATH=", EPLB_FAKE_NCCL)});
}
#endif
#endif

// NCCL brings its own CUDA, for which nothing stands in.
#if defined(EPLB_WITH_NCCL) && !defined(EPLB_FAKE_CUDA)
class NcclMigrationProcessesTest : public MigrationProcessesTest {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    const auto library = cuda::NcclLibrary::Load();
    if (library.ok()) return;
    ASSERT_FALSE(cuda::testing::GpuIsRequired()) << "EPLB_REQUIRE_GPU=1: " << library.status();
    GTEST_SKIP() << library.status();
  }
};

TEST_F(NcclMigrationProcessesTest, MoveRowsAsRanksThatSayTheyAreHosts) {
  RunJob({.num_ranks = 2, .transport = "nccl"}, /*hosts=*/true);
}

TEST_F(NcclMigrationProcessesTest, RowsOfTwoHostsGoByPeerInsideAndByNcclBetweenThem) {
  RunJob({.num_ranks = 4, .transport = "peer+nccl", .ranks_per_host = 2}, /*hosts=*/true);
}

TEST_F(NcclMigrationProcessesTest, ARankThatIsKilledLeavesTheOthersTheirOldSlots) {
  RunJob({.num_ranks = 3, .transport = "nccl", .killed_rank = 1}, /*hosts=*/true);
}

TEST_F(NcclMigrationProcessesTest, ARankThatIsKilledBetweenItsRowsLeavesTheOthersTheirOldSlots) {
  RunJob({.num_ranks = 3, .transport = "nccl", .killed_rank = 1, .killed_midway = true},
         /*hosts=*/true);
}
#endif

}  // namespace
}  // namespace eplb

int main(int argc, char** argv) {
  if (const auto job = eplb::MigrationJobFrom(argc, argv)) {
    return eplb::RunMigrationRank(*job);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
