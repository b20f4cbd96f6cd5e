#include "client/rows/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/paths/peer_world.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Kinds, ExecutorContractTest,
    ::testing::Values(
        ExecutorKind{"SharedEveryReplica", MakeSharedMemoryWorld, StateResidency::kEveryReplica},
        ExecutorKind{"SharedWithPrimary", MakeSharedMemoryWorld, StateResidency::kWithPrimary},
        ExecutorKind{"PeerEveryReplica", MakePeerWorld, StateResidency::kEveryReplica},
        ExecutorKind{"PeerWithPrimary", MakePeerWorld, StateResidency::kWithPrimary},
        ExecutorKind{"TcpWithPrimary", MakeTcpWorld, StateResidency::kWithPrimary}),
    [](const auto& kind) { return kind.param.name; });

TEST(ExecutorFaultTest, PlanAboveStagingIsResourceExhaustedBeforeAnythingMoves) {
  std::mt19937 random(9);
  const Topology topology = MakeTopology(4, 12, 12, 3);
  EpGroup ep_group(topology, StateResidency::kEveryReplica, MakeSharedMemoryWorld,
                   {.layers_per_chunk = 1});
  const Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const MigrationPlan plan = ep_group.Plan(current, RandomPlacement(random, topology));
  const absl::Status status = ep_group.executor(0).CheckFits(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("are missing"));
  for (const auto& staged : ep_group.Stage(plan, 1)) {
    EXPECT_EQ(staged.status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(ep_group.CountWrong(current), 0);
}

TEST(ExecutorFaultTest, SecondStageNeedsACommitOrADiscard) {
  const Topology topology = MakeTopology(1, 2, 2, 1);
  EpGroup ep_group(topology, StateResidency::kEveryReplica, MakeSharedMemoryWorld);
  const MigrationPlan plan =
      ep_group.Plan(Placement::Static(topology), Placement::Static(topology));
  ASSERT_TRUE(ep_group.Stage(plan, 1)[0].ok());
  EXPECT_EQ(ep_group.Stage(plan, 2)[0].status().code(), absl::StatusCode::kFailedPrecondition);
  ep_group.Discard();
  EXPECT_TRUE(ep_group.Stage(plan, 2)[0].ok());
}

TEST(ExecutorFaultTest, ArenaBelowStagingBytesIsRefused) {
  const Topology topology = MakeTopology(1, 2, 2, 1);
  const ExpertMemory memory(topology, GpuId{0}, Shapes());
  Transports transports = MakeSharedMemoryWorld(1, 100);
  const absl::Status status =
      Executor::Make({.topology = topology, .gpu = GpuId{0}}, memory.tensors(),
                     std::move(transports[0]), cuda::MakeHostRowQueue())
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("arena has 100"));
}

}  // namespace

}  // namespace eplb
