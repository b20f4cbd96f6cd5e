#include "tests/client/rows/executor_contract.h"

#include <gmock/gmock.h>

#include <array>
#include <random>

namespace eplb {
namespace {

using ::testing::HasSubstr;

TEST_P(ExecutorContractTest, EverySlotHoldsWhatTheTargetSaysAfterRandomSwitches) {
  const uint32_t seed = 20240518;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const auto& [gpus, experts, slots] : std::vector<std::array<int32_t, 3>>{
           {1, 4, 6}, {2, 4, 4}, {3, 6, 8}, {4, 8, 12}, {8, 16, 19}}) {
    const Topology topology = MakeTopology(3, experts, slots, gpus);
    EpGroup ep_group = MakeEpGroup(topology);
    Placement current = RandomPlacement(random, topology);
    ep_group.Fill(current);
    for (uint64_t version = 1; version <= 4; ++version) {
      const Placement target = RandomPlacement(random, topology);
      const MigrationPlan plan = ep_group.Plan(current, target);
      int64_t sent = 0;
      int64_t received = 0;
      const auto before = ep_group.Snapshot();
      for (const auto& staged : ep_group.Stage(plan, version)) {
        ASSERT_TRUE(staged.ok()) << staged.status();
        sent += staged->sent_bytes;
        received += staged->received_bytes;
      }
      EXPECT_EQ(sent, plan.link_bytes);
      EXPECT_EQ(received, plan.link_bytes);
      EXPECT_EQ(ep_group.Snapshot(), before) << "a slot was written before the commit";
      ep_group.Commit();
      EXPECT_EQ(ep_group.CountWrong(target), 0) << gpus << " GPUs, version " << version;
      current = target;
    }
  }
}

TEST_P(ExecutorContractTest, DiscardLeavesSlotsAndTheNextPlanWorks) {
  std::mt19937 random(5);
  const Topology topology = MakeTopology(2, 8, 9, 4);
  EpGroup ep_group = MakeEpGroup(topology);
  const Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const auto before = ep_group.Snapshot();
  const MigrationPlan dropped = ep_group.Plan(current, RandomPlacement(random, topology));
  for (const auto& staged : ep_group.Stage(dropped, 1)) ASSERT_TRUE(staged.ok()) << staged.status();
  ep_group.Discard();
  ep_group.Commit();  // nothing is staged any more
  EXPECT_EQ(ep_group.Snapshot(), before);
  const Placement target = RandomPlacement(random, topology);
  for (const auto& staged : ep_group.Stage(ep_group.Plan(current, target), 2)) {
    ASSERT_TRUE(staged.ok()) << staged.status();
  }
  ep_group.Commit();
  EXPECT_EQ(ep_group.CountWrong(target), 0);
}

TEST_P(ExecutorContractTest, SilentRankIsNamedNoSlotChangesAndTheNextPlanWorks) {
  std::mt19937 random(6);
  const Topology topology = MakeTopology(2, 9, 9, 3);
  EpGroup ep_group = MakeEpGroup(topology);
  const Placement current = RandomPlacement(random, topology);
  ep_group.Fill(current);
  const auto before = ep_group.Snapshot();
  const Placement target = RandomPlacement(random, topology);
  const MigrationPlan plan = ep_group.Plan(current, target);
  // A rank whose deadline comes a moment later may see another one end the post first, where all
  // rows wait for the silent one.
  int32_t num_late = 0;
  const auto results = ep_group.Stage(plan, 1, /*absent=*/1, absl::Milliseconds(800));
  for (const int32_t rank : {0, 2}) {
    const absl::Status& status = results[rank].status();
    if (status.code() == absl::StatusCode::kAborted) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 ")) << "and nobody else";
    ++num_late;
  }
  EXPECT_GT(num_late, 0);
  EXPECT_EQ(ep_group.Snapshot(), before);
  ep_group.Discard();
  for (const auto& staged : ep_group.Stage(plan, 2)) ASSERT_TRUE(staged.ok()) << staged.status();
  ep_group.Commit();
  EXPECT_EQ(ep_group.CountWrong(target), 0);
}

TEST_P(ExecutorContractTest, RowsStayInsideTheirEpGroup) {
  std::mt19937 random(7);
  const Topology topology = MakeTopology(2, 6, 6, 3);
  EpGroup ep_groups = MakeEpGroup(topology, /*num_ep_groups=*/2);
  const Placement current = RandomPlacement(random, topology);
  const Placement target = RandomPlacement(random, topology);
  ep_groups.Fill(current);
  const auto results = ep_groups.Stage(ep_groups.Plan(current, target), 1);
  for (int32_t gpu = 0; gpu < 3; ++gpu) {
    ASSERT_TRUE(results[gpu].ok() && results[gpu + 3].ok());
    EXPECT_EQ(results[gpu]->sent_bytes, results[gpu + 3]->sent_bytes);
  }
  ep_groups.Commit();
  EXPECT_EQ(ep_groups.CountWrong(target), 0);
}

}  // namespace
}  // namespace eplb
