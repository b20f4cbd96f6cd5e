// One fault at every point of a migration, between real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/fault_points/process_job.h"

namespace eplb {
namespace {

using ::testing::IsEmpty;

// The step after which the second migration comes.
constexpr int64_t kSecondMigration = 3;

std::vector<JobOutcome> RunAndCheck(const std::vector<JobSpec>& specs, Ending ending,
                                    size_t max_at_a_time = 4) {
  std::vector<JobOutcome> outcomes = RunJobs(specs, max_at_a_time);
  for (const JobOutcome& outcome : outcomes) {
    EXPECT_THAT(Violations(outcome), IsEmpty()) << outcome.Story();
    EXPECT_EQ(outcome.ending(), ending) << outcome.Story();
    if (outcome.spec.fault.strike != Strike::kNone) {
      EXPECT_TRUE(outcome.struck()) << outcome.Story();
    }
  }
  return outcomes;
}

class FaultPointsTest : public ::testing::TestWithParam<Rows> {
 protected:
  // At every point, with another number of ranks and another victim each time.
  static std::vector<JobSpec> AtEveryPoint(const JobSpec& common) {
    constexpr int32_t kWorlds[] = {4, 2, 3, 8};
    std::vector<JobSpec> specs;
    for (const Point point : kPoints) {
      JobSpec& spec = specs.emplace_back(common);
      const auto index = static_cast<int32_t>(specs.size()) - 1;
      spec.rows = GetParam();
      spec.world_size = kWorlds[index % 4];
      spec.fault.point = point;
      spec.fault.victim = (index * 5 + index / 4) % spec.world_size;
    }
    return specs;
  }
};

TEST_P(FaultPointsTest, WorldsOf2To32RanksMigrate) {
  std::vector<JobSpec> specs;
  for (const int32_t world_size : {2, 3, 4, 8, 16, 32}) {
    specs.push_back({.world_size = world_size,
                     .rows = GetParam(),
                     .transfer_deadline = absl::Seconds(30),
                     .vote_deadline = absl::Seconds(30)});
  }
  for (const JobOutcome& outcome : RunAndCheck(specs, Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 0) << outcome.Story();
  }
}

TEST_P(FaultPointsTest, KilledRankEndsAllOthersBeforeTheVoteUnderTheOldPlacement) {
  for (const JobOutcome& outcome :
       RunAndCheck(AtEveryPoint({.fault = {.strike = Strike::kKill}}), Ending::kEnded)) {
    EXPECT_EQ(outcome.switched_at(kSecondMigration), outcome.spec.fault.point >= Point::kAfterVote)
        << outcome.Story();
  }
}

bool RowsAreLate(Point point) { return point >= Point::kBeforePost && point < Point::kAfterStage; }

TEST_P(FaultPointsTest, StopPastTheTransferDeadlineDropsTheChunkAndTheJobGoesOn) {
  constexpr absl::Duration kDeadline = absl::Seconds(5);
  std::vector<JobSpec> specs = AtEveryPoint({.fault = {.strike = Strike::kStop}});
  for (JobSpec& spec : specs) {
    if (RowsAreLate(spec.fault.point)) {
      spec.fault.resume = Resume::kWhenPeersGaveUp;
      spec.fault.rows_deadline = kDeadline;
    } else {
      spec.fault.lasts = kDeadline + absl::Milliseconds(500);
      spec.transfer_deadline = kDeadline;
    }
  }
  for (const JobOutcome& outcome : RunAndCheck(specs, Ending::kFinished, /*max_at_a_time=*/8)) {
    const Point point = outcome.spec.fault.point;
    // A rank that stopped after its post may have all its rows already.
    const int32_t at_least = point == Point::kBeforePost ? 1 : 0;
    EXPECT_GE(outcome.num_dropped(), at_least) << outcome.Story();
    EXPECT_LE(outcome.num_dropped(), RowsAreLate(point) ? 1 : 0) << outcome.Story();
  }
}

TEST_P(FaultPointsTest, StopPastTheVoteDeadlineEndsTheJobOnAllRanks) {
  RunAndCheck(AtEveryPoint({.fault = {.strike = Strike::kStop,
                                      .resume = Resume::kWhenPeersEnded,
                                      .rows_deadline = absl::Seconds(3),
                                      .vote_deadline = absl::Seconds(3)}}),
              Ending::kEnded, /*max_at_a_time=*/8);
}

TEST_P(FaultPointsTest, DelayIsWaitedFor) {
  for (const JobOutcome& outcome : RunAndCheck(
           AtEveryPoint({.fault = {.strike = Strike::kDelay, .lasts = absl::Milliseconds(150)}}),
           Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 0) << outcome.Story();
  }
}

std::string NameOfRows(const ::testing::TestParamInfo<Rows>& rows) {
  return rows.param == Rows::kShared ? "Shared" : rows.param == Rows::kTcp ? "Tcp" : "Nccl";
}

INSTANTIATE_TEST_SUITE_P(Host, FaultPointsTest, ::testing::Values(Rows::kShared, Rows::kTcp),
                         NameOfRows);
#ifdef EPLB_FAKE_NCCL
INSTANTIATE_TEST_SUITE_P(Fake, FaultPointsTest, ::testing::Values(Rows::kNccl), NameOfRows);

// Groups of a communicator before the first row: each pair is connected once.
std::vector<JobSpec> InGroups(const std::string& kind, absl::Duration transfer_deadline) {
  std::vector<JobSpec> specs;
  for (const int32_t world_size : {2, 3, 4, 8}) {
    for (const int32_t group : {0, 1, 5}) {
      const int32_t victim = (world_size + group) % world_size;
      specs.push_back({.world_size = world_size,
                       .rows = Rows::kNccl,
                       .fault = {.victim = victim,
                                 .nccl = absl::StrCat("rank=", victim, ",group=",
                                                      world_size - 1 + group, ",kind=", kind)},
                       .transfer_deadline = transfer_deadline});
    }
  }
  return specs;
}

TEST(NcclFaultPointsTest, AsyncErrorDropsTheChunkAndTheNextCommunicatorCarriesOn) {
  for (const JobOutcome& outcome :
       RunAndCheck(InGroups("async_error", absl::Seconds(10)), Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 1) << outcome.Story();
  }
}

TEST(NcclFaultPointsTest, WrongBitDropsTheChunk) {
  for (const JobOutcome& outcome :
       RunAndCheck(InGroups("corrupt", absl::Seconds(10)), Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 1) << outcome.Story();
  }
}

TEST(NcclFaultPointsTest, GroupThatHangsIsGivenUpAtTheDeadline) {
  std::vector<JobSpec> specs = InGroups("hang", absl::Seconds(10));
  for (JobSpec& spec : specs) {
    spec.fault.post_id = 1;
    spec.fault.rows_deadline = absl::Seconds(1);
  }
  for (const JobOutcome& outcome : RunAndCheck(specs, Ending::kFinished, /*max_at_a_time=*/6)) {
    EXPECT_EQ(outcome.num_dropped(), 1) << outcome.Story();
  }
}

TEST(NcclFaultPointsTest, RankThatDiesInAGroupEndsTheJob) {
  RunAndCheck(InGroups("die", absl::Seconds(10)), Ending::kEnded);
}

TEST(NcclFaultPointsTest, SlowGroupsAreWaitedFor) {
  for (const JobOutcome& outcome :
       RunAndCheck(InGroups("delay,ms=100", absl::Seconds(10)), Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 0) << outcome.Story();
  }
}

TEST(NcclFaultPointsTest, CommunicatorThatCannotBeEndedEndsTheJob) {
  std::vector<JobSpec> specs = InGroups("async_error", absl::Seconds(5));
  specs.resize(4);
  for (JobSpec& spec : specs) {
    spec.vote_deadline = absl::Seconds(5);
    spec.abort_timeout = absl::Milliseconds(1500);
    absl::StrAppend(&spec.fault.nccl, ";rank=", spec.fault.victim, ",kind=slow_abort,ms=60000");
  }
  RunAndCheck(specs, Ending::kEnded);
}

TEST(NcclFaultPointsTest, AfterThreeFailuresTheRowsGoThroughHostMemory) {
  std::vector<JobSpec> specs = InGroups("async_error", absl::Seconds(10));
  for (JobSpec& spec : specs) spec.fault.nccl_stays = true;
  for (const JobOutcome& outcome : RunAndCheck(specs, Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 3) << outcome.Story();
  }
}
#endif

TEST(SharedFaultPointsTest, FlippedByteInStagingDropsTheChunk) {
  std::vector<JobSpec> specs;
  for (const int32_t world_size : {2, 3, 4, 8}) {
    specs.push_back(
        {.world_size = world_size,
         .rows = Rows::kShared,
         .fault = {
             .strike = Strike::kCorrupt, .point = Point::kAfterPost, .victim = world_size / 2}});
  }
  for (const JobOutcome& outcome : RunAndCheck(specs, Ending::kFinished)) {
    EXPECT_EQ(outcome.num_dropped(), 1) << outcome.Story();
  }
}

}  // namespace
}  // namespace eplb
