// Migrations through the hybrid path, and what either of its paths may do instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/rows/paths/bounce_path.h"
#include "client/rows/paths/fallback_path.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/hybrid_world.h"
#include "tests/client/rows/replica_contract.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Hybrid, ExecutorContractTest,
    ::testing::Values(ExecutorKind{"HostsOfTwo", &MakeHybridWorld<&HostsOfTwo>,
                                   StateResidency::kEveryReplica},
                      ExecutorKind{"ThreeAndTheRest", &MakeHybridWorld<&ThreeAndTheRest>,
                                   StateResidency::kWithPrimary},
                      ExecutorKind{"TwoAloneAndTheRest", &MakeHybridWorld<&TwoAloneAndTheRest>,
                                   StateResidency::kEveryReplica},
                      ExecutorKind{"TwoHostsInTurns", &MakeHybridWorld<&TwoHostsInTurns>,
                                   StateResidency::kWithPrimary}),
    [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(Hybrid, ReplicaContractTest,
                         ::testing::Values(&MakeHybridWorld<&HostsOfTwo>));

class HybridFaultTest : public ::testing::Test {
 protected:
  static constexpr int32_t kRanks = 4;

  HybridFaultTest()
      : topology_(MakeTopology(3, 12, 12, kRanks)),
        current_(RandomPlacement(random_, topology_)),
        target_(RandomPlacement(random_, topology_)) {}

  std::unique_ptr<EpGroup> Make(HybridWorldOptions options) {
    return std::make_unique<EpGroup>(topology_, StateResidency::kEveryReplica,
                                     [options](int32_t world_size, int64_t staging_bytes) {
                                       HybridWorldOptions world = options;
                                       world.world_size = world_size;
                                       world.staging_bytes = staging_bytes;
                                       return MakeHybridWorldOver(world);
                                     });
  }

  void Succeed(EpGroup& ep_group, uint64_t post_id) {
    ep_group.Fill(current_);
    for (const auto& staged : ep_group.Stage(ep_group.Plan(current_, target_), post_id)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    ep_group.Commit();
    EXPECT_EQ(ep_group.CountWrong(target_), 0);
  }

  std::mt19937 random_{37};
  const Topology topology_;
  const Placement current_;
  const Placement target_;
};

TEST_F(HybridFaultTest, WhatDoesNotArriveInsideAHostIsFoundByItsChecksum) {
  std::vector<std::byte> elsewhere(1 << 20);
  const auto ep_group = Make({.remap = [&elsewhere](int32_t rank, auto& mapped) {
    ASSERT_LE(mapped.begin()->second.size(), elsewhere.size());
    if (rank == 2) mapped[RankId{3}] = elsewhere;
  }});
  for (const uint64_t post_id : {1, 2}) {
    ep_group->Fill(current_);
    const auto before = ep_group->Snapshot();
    std::vector<std::string> errors;
    for (const auto& staged : ep_group->Stage(ep_group->Plan(current_, target_), post_id)) {
      if (!staged.ok()) errors.emplace_back(staged.status().message());
    }
    EXPECT_THAT(errors, Contains(AllOf(HasSubstr("rank 2"), HasSubstr("checksum differs"))));
    EXPECT_EQ(ep_group->Snapshot(), before);
    ep_group->Discard();
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(ep_group->executor(rank).may_vote()) << "rank " << rank;
    }
  }
}

TEST_F(HybridFaultTest, AfterThreeFailuresRowsGoOverTheHostIntoTheSameStaging) {
  const auto ep_group = Make({.wrap = [](int32_t, std::unique_ptr<RowPath> path) {
    return MakeFallbackPath(
        {.first = std::move(path), .make_second = [](std::span<std::byte> staging) {
           return MakeBouncePathInto(staging, cuda::MakeHostRowQueue(), cuda::MakeHostRowQueue());
         }});
  }});
  Succeed(*ep_group, 1);
  for (uint64_t post_id = 2; post_id <= 4; ++post_id) {
    ep_group->Fill(current_);
    const MigrationPlan plan = ep_group->Plan(current_, target_);
    for (const auto& staged : ep_group->Stage(plan, post_id)) {
      ASSERT_TRUE(staged.ok()) << staged.status();
    }
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ep_group->executor(rank).transport_name(), "peer+nccl");
    }
    ep_group->Discard();
  }
  Succeed(*ep_group, 5);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ep_group->executor(rank).transport_name(), "host");
  }
}

}  // namespace
}  // namespace eplb
