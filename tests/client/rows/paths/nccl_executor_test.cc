// Migrations through the nccl path, and everything that NCCL may do instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/paths/nccl_world.h"
#include "tests/client/rows/replica_contract.h"

namespace eplb {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Kinds, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"NcclEveryReplica", MakeSmallPieceNcclWorld,
                                                        StateResidency::kEveryReplica},
                                           ExecutorKind{"NcclWithPrimary", MakeLargePieceNcclWorld,
                                                        StateResidency::kWithPrimary}),
                         [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(Nccl, ReplicaContractTest, ::testing::Values(&MakeSmallPieceNcclWorld));

// Faults of the communicators that begin during its life.
class Faults {
 public:
  explicit Faults(const std::string& text) { setenv("EPLB_FAKE_NCCL_FAULTS", text.c_str(), 1); }
  ~Faults() { unsetenv("EPLB_FAKE_NCCL_FAULTS"); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

class NcclFaultTest : public ::testing::Test {
 protected:
  static constexpr int32_t kRanks = 4;
  // Groups of a communicator before the first row: each pair is connected once.
  static constexpr int32_t kWarmGroups = kRanks - 1;

  NcclFaultTest()
      : topology_(MakeTopology(3, 12, 12, kRanks)),
        current_(RandomPlacement(random_, topology_)),
        target_(RandomPlacement(random_, topology_)) {}

  // A fault in the communicator that the EP group begins with: the plan is not staged on every rank
  // within `timeout`, no slot has changed, and after the vote's no the next attempt, on a new
  // communicator, succeeds. returns: what the ranks said.
  std::vector<std::string> FailAndTryAgain(const std::string& faults, absl::Duration timeout) {
    std::unique_ptr<EpGroup> ep_group;
    {
      const Faults scripted(faults);
      ep_group = std::make_unique<EpGroup>(topology_, StateResidency::kEveryReplica,
                                           MakeSmallPieceNcclWorld);
    }
    ep_group->Fill(current_);
    const auto before = ep_group->Snapshot();
    const MigrationPlan plan = ep_group->Plan(current_, target_);
    const absl::Time begin = absl::Now();
    std::vector<std::string> errors;
    for (const auto& result : ep_group->Stage(plan, 1, /*absent=*/-1, timeout)) {
      if (!result.ok()) errors.emplace_back(result.status().ToString());
    }
    EXPECT_LT(absl::Now() - begin, timeout + absl::Seconds(10));
    EXPECT_FALSE(errors.empty());
    EXPECT_EQ(ep_group->Snapshot(), before);
    ep_group->Discard();
    for (int32_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(ep_group->executor(rank).may_vote());
    for (const auto& staged : ep_group->Stage(plan, 2)) EXPECT_TRUE(staged.ok()) << staged.status();
    ep_group->Commit();
    EXPECT_EQ(ep_group->CountWrong(target_), 0);
    return errors;
  }

  std::mt19937 random_{31};
  const Topology topology_;
  const Placement current_;
  const Placement target_;
};

TEST_F(NcclFaultTest, AsyncErrorInEachOfTheFirstGroupsIsToldAndTheNextAttemptSucceeds) {
  for (int32_t group = kWarmGroups; group < kWarmGroups + 6; ++group) {
    SCOPED_TRACE(group);
    const auto errors = FailAndTryAgain(absl::StrCat("rank=1,group=", group, ",kind=async_error"),
                                        absl::Seconds(20));
    EXPECT_THAT(errors,
                ::testing::Contains(AnyOf(HasSubstr("INTERNAL"), HasSubstr("UNAVAILABLE"))));
  }
}

TEST_F(NcclFaultTest, AGroupThatNeverEndsIsGivenUpAtTheDeadline) {
  const auto errors = FailAndTryAgain(absl::StrCat("rank=2,group=", kWarmGroups + 1, ",kind=hang"),
                                      absl::Seconds(1));
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr("DEADLINE_EXCEEDED")));
}

TEST_F(NcclFaultTest, AWrongBitIsFoundByItsChecksum) {
  const auto errors = FailAndTryAgain(
      absl::StrCat("rank=0,group=", kWarmGroups + 2, ",kind=corrupt"), absl::Seconds(20));
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr("checksum differs")));
}

TEST_F(NcclFaultTest, ANoKeepsACommunicatorWhoseGroupsHaveEnded) {
  EpGroup ep_group(topology_, StateResidency::kEveryReplica, MakeSmallPieceNcclWorld);
  ep_group.Fill(current_);
  const MigrationPlan plan = ep_group.Plan(current_, target_);
  for (const auto& staged : ep_group.Stage(plan, 1)) ASSERT_TRUE(staged.ok()) << staged.status();
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ep_group.executor(rank).Discard(/*all_whole=*/true);
    EXPECT_TRUE(ep_group.executor(rank).is_whole());
  }
  for (const auto& staged : ep_group.Stage(plan, 2)) ASSERT_TRUE(staged.ok()) << staged.status();
  ep_group.Commit();
  EXPECT_EQ(ep_group.CountWrong(target_), 0);
}

TEST_F(NcclFaultTest, ARankWhoseGroupDidNotEndIsNotWhole) {
  const Faults scripted(absl::StrCat("rank=2,group=", kWarmGroups + 1, ",kind=hang"));
  EpGroup ep_group(topology_, StateResidency::kEveryReplica, MakeSmallPieceNcclWorld);
  ep_group.Fill(current_);
  (void)ep_group.Stage(ep_group.Plan(current_, target_), 1, /*absent=*/-1, absl::Seconds(3));
  EXPECT_FALSE(ep_group.executor(2).is_whole());
}

}  // namespace
}  // namespace eplb
