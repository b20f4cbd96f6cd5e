#include "server/core/decisions/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::StartsWith;

TEST(WatchdogTest, AStateOlderThanThreeDeadlinesIsStuckAndToldOnce) {
  TestJob job;
  job.Connect(0);
  job.daemon.Advance(absl::Minutes(3));
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 0);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 181);
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 1);
  EXPECT_EQ(job.daemon.core().counters().stuck, 1);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 0);
}

TEST(WatchdogTest, AQuarantineIsNotForgotten) {
  PreparedJob job(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[1].session, wire::Applied{1, DigestOf(Exchanged({2})), 12, 0, 0});
  ASSERT_EQ(job.daemon.state(), "QUARANTINE");
  job.daemon.Advance(absl::Seconds(181));
  EXPECT_THAT(job.daemon.LastReason("stuck"),
              StartsWith("QUARANTINE for 3m1s, waiting for an operator, or a new run: rank "
                         "1 runs version 1 with digest "));
  EXPECT_THAT(job.daemon.View().waiting_for(),
              StartsWith("an operator, or a new run: rank 1 runs version 1 with digest "));
}

TEST(WatchdogTest, AnIdleJobAndAnEndedOneAreNeverStuck) {
  ConnectedJob job;
  job.daemon.Advance(absl::Hours(5));
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 0);
  job.FinishAll();
  job.daemon.Advance(absl::Hours(5));
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 0);
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 0);
}

TEST(WatchdogTest, ALostRunIsStuckUntilItIsForgottenOrComesBack) {
  ConnectedJob job;
  job.DisconnectAll();
  job.daemon.Advance(TestConfig().session_grace + absl::Seconds(1));
  ASSERT_EQ(job.daemon.state(), "LOST");
  job.daemon.Advance(absl::Seconds(181));
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 181);
  EXPECT_EQ(job.daemon.LastReason("stuck"),
            "LOST for 3m1s, waiting for its ranks to reconnect, or a new run");
}

// Ranks that stage a chunk ahead answer once they have voted again.
TEST(WatchdogTest, ACancelIsAwaitedForAFewVotesMore) {
  ProposedJob job(Exchanged({0, 1}));
  job.daemon.Advance(absl::Seconds(59));
  job.Report(10, 19);  // 5.9 s a step, and 11.8 s from vote to vote
  job.daemon.Advance(absl::Seconds(2));
  ASSERT_EQ(job.daemon.state(), "CANCELLING");
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 0);
  job.daemon.Advance(absl::Seconds(61));
  EXPECT_EQ(job.daemon.CountEvents("stuck"), 1);
  job.daemon.Advance(absl::Seconds(160));
  EXPECT_EQ(job.daemon.View().stuck_seconds(), 0);
  job.daemon.Advance(absl::Seconds(10));
  EXPECT_GT(job.daemon.View().stuck_seconds(), 0);
}

TEST(WatchdogTest, ARecoveryWaitsForAFewVotesOfRanksThatTrain) {
  const Config config = TestConfig();
  Job job;
  job.phase = Phase::kRecovering;
  const Topology topology = Exchanged({0}).topology();
  const int32_t ranks = topology.num_gpus();
  job.current.emplace(topology, RankGrid::Make({.world_size = ranks, .num_gpus = ranks}).value());
  EXPECT_EQ(DeadlineOf(config, job), config.prepare_deadline);
  job.current->vote_every = 100;
  const absl::Time began = absl::UnixEpoch();
  job.current->rate.told = {{.step = 0, .at = began}, {.step = 10, .at = began + absl::Seconds(5)}};
  EXPECT_EQ(DeadlineOf(config, job), config.prepare_deadline + absl::Seconds(150));
}

}  // namespace
}  // namespace eplb::core
