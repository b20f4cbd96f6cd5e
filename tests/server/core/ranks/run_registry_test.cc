#include "server/core/ranks/run_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

std::vector<FakeRank> OtherRun(const TestJob& job, const std::string& name) {
  std::vector<FakeRank> others = job.ranks;
  for (FakeRank& rank : others) rank.Relaunch(name);
  return others;
}

// Two runs of one job on one daemon. `job` has the ranks of the one that speaks.
class RunRegistryTest : public ::testing::Test {
 protected:
  void Speak(std::vector<FakeRank>& ranks) { std::swap(job_.ranks, ranks); }
  // Lets the ranks of another run speak from now on. Returns those that spoke before.
  std::vector<FakeRank> Begin(const std::string& name) {
    return std::exchange(job_.ranks, OtherRun(job_, name));
  }

  // Windows of 10 steps, one a second, until `last_step`.
  void Train(int64_t last_step) {
    for (int64_t step = job_.ranks[0].identity.step + 10; step <= last_step; step += 10) {
      job_.daemon.Advance(absl::Seconds(1));
      job_.Report(step - 9, step);
    }
  }

  std::string current() const { return job_.daemon.View().run_id(); }
  absl::Status Closed(int32_t rank) const {
    return job_.ClosedWith(rank).value_or(absl::OkStatus());
  }

  TestJob job_;
};

TEST_F(RunRegistryTest, ItsNumberRisesAndIsGivenToTheRanksThatSayItAgain) {
  job_.ConnectAll();
  EXPECT_EQ(job_.daemon.View().run_number(), 1);
  for (const FakeRank& rank : job_.ranks) EXPECT_EQ(rank.identity.run_number, 1);
  job_.Fail(0);
  std::vector<FakeRank> second = Begin("run-2");
  job_.ConnectAll();
  EXPECT_EQ(job_.daemon.View().run_number(), 2);
  EXPECT_EQ(job_.ranks[2].identity.run_number, 2);
  EXPECT_EQ(job_.daemon.stored().at(kJob).memory.run_number, 2);
}

TEST_F(RunRegistryTest, ANewcomerWaitsWhileTheStepsOfTheOneInForceAdvance) {
  job_.ConnectAll();
  Train(40);
  std::vector<FakeRank> other = Begin("run-2");
  for (int32_t rank = 0; rank < 3; ++rank) job_.Connect(rank);
  const auto welcome = Only<wire::Welcome>(job_.SentTo(2));
  ASSERT_EQ(welcome.size(), 1U);
  EXPECT_EQ(welcome[0].waits,
            "waits for the end of run 1 (run-1), whose steps advance (at step 40); end that "
            "one, or "
            "start this one with take_over");
  EXPECT_EQ(current(), "run-1");
  const v1::JobStatus view = job_.daemon.View();
  ASSERT_TRUE(view.has_candidate());
  EXPECT_EQ(view.candidate().run_id(), "run-2");
  EXPECT_EQ(view.candidate().registered_ranks(), 3);
  EXPECT_EQ(view.candidate().connected_ranks(), 3);
  EXPECT_THAT(view.candidate().waits(), HasSubstr("whose steps advance"));
  EXPECT_TRUE(view.take_over_refused());
  Speak(other);
  Train(200);
  EXPECT_EQ(current(), "run-1");
}

TEST_F(RunRegistryTest, ACandidateThatGathersIsShownWithTheRanksThatAreMissing) {
  job_.ConnectAll();
  Train(20);
  std::vector<FakeRank> other = Begin("run-2");
  job_.Connect(1);
  EXPECT_EQ(Only<wire::Welcome>(job_.SentTo(1)).at(0).waits, "waits for ranks 0, 2 to register");
  job_.daemon.Advance(absl::Seconds(2));
  const v1::JobStatus view = job_.daemon.View();
  ASSERT_TRUE(view.has_candidate());
  EXPECT_EQ(view.candidate().world_size(), 3);
  EXPECT_EQ(view.candidate().registered_ranks(), 1);
  EXPECT_EQ(view.candidate().seconds(), 2);
  EXPECT_EQ(view.candidate().waits(), "ranks 0, 2 to register");
  EXPECT_FALSE(view.take_over_refused());
}

TEST_F(RunRegistryTest, AHungOneIsReplacedWithinTenSecondsAndItsSessionsEnd) {
  job_.ConnectAll();
  Train(60);
  const SessionId hung = job_.ranks[1].session;
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  ASSERT_EQ(current(), "run-1");
  job_.daemon.AdvanceSeconds(10);
  EXPECT_EQ(current(), "run-2");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  EXPECT_EQ(job_.daemon.ClosedWith(hung)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job_.daemon.View().took_over(), "run-1");
  EXPECT_FALSE(job_.daemon.View().has_candidate());
}

// A node's link is away for longer than session_grace: the other ranks train on, unbalanced.
TEST_F(RunRegistryTest, ALostOneWhoseOtherRanksTrainKeepsTheJob) {
  job_.ConnectAll();
  Train(60);
  job_.Disconnect(2);
  for (int64_t step = 70; step <= 200; step += 10) {
    job_.daemon.Advance(absl::Seconds(1));
    for (int32_t rank = 0; rank < 2; ++rank) job_.ReportOf(rank, step - 9, step);
  }
  ASSERT_EQ(job_.daemon.View().ending(), v1::RUN_ENDING_LOST);
  std::vector<FakeRank> other = Begin("run-2");
  for (int32_t rank = 0; rank < 3; ++rank) job_.Connect(rank);
  job_.daemon.Advance(absl::Seconds(1));
  EXPECT_EQ(current(), "run-1");
  EXPECT_TRUE(job_.daemon.View().take_over_refused());
  Speak(other);
  job_.Connect(2);
  EXPECT_EQ(current(), "run-1");
  EXPECT_EQ(job_.daemon.View().ending(), v1::RUN_ENDING_UNSPECIFIED);
}

TEST_F(RunRegistryTest, ALostOneComesBackUntilAllRanksOfAnotherAreThere) {
  job_.ConnectAll();
  Train(60);
  std::vector<FakeRank> other = Begin("run-2");
  job_.Connect(0);
  job_.Connect(1);  // and its third rank never comes
  Speak(other);
  job_.DisconnectAll();
  job_.daemon.Advance(absl::Seconds(45));
  ASSERT_EQ(current(), "run-1");
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-1");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
}

TEST_F(RunRegistryTest, ACheckpointThatCameTwiceBeforeGivesTheJobToNoOtherAlsoAfterARestart) {
  for (const bool restart : {false, true}) {
    TestJob job;
    job.ConnectAll();
    for (const int64_t step : {1, 101, 201}) {
      if (step > 1) job.daemon.Advance(absl::Seconds(60));
      job.Train({0, 1, 2}, step, 10);
    }
    if (restart) {
      job.daemon.Restart();
      job.ConnectAll();
    }
    job.ranks = OtherRun(job, "run-2");
    job.ConnectAll();
    job.daemon.AdvanceSeconds(60);
    EXPECT_EQ(job.daemon.View().run_id(), "run-1");
    job.daemon.AdvanceSeconds(60);
    EXPECT_EQ(job.daemon.View().run_id(), "run-2") << "run-1 hangs";
  }
}

// The old run hangs in a collective: the threads of its sessions live, and try again for ever.
TEST_F(RunRegistryTest, AReplacedOneNeverComesBackWhenTheNewOneIsAway) {
  job_.ConnectAll();
  std::vector<FakeRank> other = Begin("run-2");
  for (FakeRank& rank : job_.ranks) rank.identity.take_over = true;
  job_.ConnectAll();
  ASSERT_EQ(current(), "run-2");
  job_.DisconnectAll();
  job_.daemon.Advance(absl::Seconds(45));
  Speak(other);
  for (int32_t rank = 0; rank < 3; ++rank) {
    job_.Connect(rank);
    EXPECT_EQ(Closed(rank).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(std::string(Closed(0).message()), HasSubstr("belongs to run 2 (run-2)"));
  EXPECT_EQ(job_.daemon.View().refusal(), "");  // its processes live on: no alarm
  Speak(other);
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-2");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  EXPECT_EQ(job_.daemon.View().run_number(), 2);
}

TEST_F(RunRegistryTest, AReplacedOneNeverComesBackAfterARestart) {
  job_.ConnectAll();
  std::vector<FakeRank> other = Begin("run-2");
  job_.ranks[0].identity.take_over = true;
  job_.ConnectAll();
  job_.daemon.Restart();
  Speak(other);
  job_.Connect(0);
  EXPECT_EQ(Closed(0).code(), absl::StatusCode::kFailedPrecondition);
  Speak(other);
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-2");
  EXPECT_EQ(job_.daemon.View().run_number(), 2);
}

// A process of a run that failed hangs, and tries again for ever: that is no alarm of the next.
TEST_F(RunRegistryTest, AFailedOneIsNoAlarmOfTheNextAfterARestart) {
  job_.ConnectAll();
  job_.Fail(0);
  std::vector<FakeRank> other = OtherRun(job_, "run-2");
  job_.daemon.Restart();
  Speak(other);
  job_.ConnectAll();
  ASSERT_EQ(current(), "run-2");
  Speak(other);
  job_.Connect(1);
  EXPECT_EQ(Closed(1).code(), absl::StatusCode::kFailedPrecondition);
  job_.daemon.AdvanceSeconds(10);
  EXPECT_EQ(job_.daemon.View().stalled(), "");
}

TEST_F(RunRegistryTest, AfterALostStoreTheHigherNumberOwnsTheJobWhoeverComesFirst) {
  for (const bool old_first : {true, false}) {
    TestJob job;
    job.ConnectAll();
    std::vector<FakeRank> old = job.ranks;
    job.ranks = OtherRun(job, "run-2");
    job.ranks[1].identity.take_over = true;
    job.ConnectAll();
    ASSERT_EQ(job.daemon.View().run_id(), "run-2");
    for (FakeRank& rank : job.ranks) rank.identity.take_over = false;
    job.daemon.LoseStore();
    if (old_first) {
      std::swap(job.ranks, old);
      job.ConnectAll();
      EXPECT_EQ(job.daemon.View().run_id(), "run-1");
      std::swap(job.ranks, old);
    }
    job.ConnectAll();
    EXPECT_EQ(job.daemon.View().run_id(), "run-2");
    EXPECT_EQ(job.daemon.View().run_number(), 2);
    std::swap(job.ranks, old);
    job.Connect(0);
    EXPECT_EQ(job.ClosedWith(0)->code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(RunRegistryTest, AfterALostStoreTheOneThatOwnedTheJobReplacesANewcomerThatCameFirst) {
  job_.ConnectAll();
  std::vector<FakeRank> other = OtherRun(job_, "run-2");
  job_.daemon.LoseStore();
  Speak(other);
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-2");  // it has the number that the other one had
  EXPECT_EQ(job_.daemon.View().run_number(), 1);
  Speak(other);
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-1");
  EXPECT_EQ(job_.daemon.View().run_number(), 2);
  for (const FakeRank& rank : job_.ranks) EXPECT_EQ(rank.identity.run_number, 2);
  // The other one made way and is a newcomer again, which waits until the steps stand still.
  Speak(other);
  EXPECT_EQ(Closed(0).code(), absl::StatusCode::kAborted);
  for (int32_t rank = 0; rank < 3; ++rank) job_.Connect(rank);
  EXPECT_TRUE(Closed(0).ok()) << Closed(0);
  EXPECT_EQ(current(), "run-1");
  job_.daemon.Advance(absl::Minutes(2));
  EXPECT_EQ(current(), "run-2");
}

TEST_F(RunRegistryTest, ACandidateWhoseRanksAreAwayDoesNotTakeTheJob) {
  job_.ConnectAll();
  Train(40);
  std::vector<FakeRank> other = Begin("run-2");
  for (int32_t rank = 0; rank < 3; ++rank) job_.Connect(rank);
  job_.DisconnectAll();
  job_.daemon.Advance(absl::Seconds(6));  // the steps of run-1 stand still
  EXPECT_EQ(current(), "run-1");
  EXPECT_EQ(job_.daemon.View().candidate().waits(), "all 3 ranks to reconnect");
  Speak(other);
  Train(60);
  EXPECT_EQ(current(), "run-1");
}

// A second daemon on an old store had seen fewer runs.
TEST_F(RunRegistryTest, ALowerNumberOfAnotherDaemonIsNoReasonToRefuse) {
  job_.ConnectAll();
  for (const char* name : {"run-2", "run-3"}) {
    std::vector<FakeRank> next = OtherRun(job_, name);
    Speak(next);
    job_.ranks[0].identity.take_over = true;
    job_.ConnectAll();
  }
  ASSERT_EQ(job_.daemon.View().run_number(), 3);
  std::vector<FakeRank> newest = Begin("run-4");
  for (FakeRank& rank : job_.ranks) {
    rank.identity.run_number = 2;
    rank.identity.take_over = false;
  }
  for (int32_t rank = 0; rank < 3; ++rank) job_.Connect(rank);
  EXPECT_TRUE(Closed(0).ok()) << Closed(0);
  EXPECT_EQ(current(), "run-3");
  job_.daemon.Advance(absl::Minutes(2));  // the steps of run-3 stand still
  EXPECT_EQ(current(), "run-4");
  EXPECT_EQ(job_.daemon.View().run_number(), 4);
}

TEST_F(RunRegistryTest, ANewcomerThatComesFirstAfterARestartWaitsForTheOneInForce) {
  job_.ConnectAll();
  job_.daemon.Restart();
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  EXPECT_EQ(current(), "");
  EXPECT_EQ(job_.daemon.View().candidate().waits(),
            "run 1 (run-1) to reconnect, which owned the job before this daemon started, at "
            "most 10s");
  Speak(other);
  job_.ConnectAll();
  EXPECT_EQ(current(), "run-1");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  EXPECT_EQ(job_.daemon.View().candidate().run_id(), "run-2");
}

TEST_F(RunRegistryTest, ANewcomerOwnsTheJobWhenTheOneInForceDoesNotComeBackAfterARestart) {
  job_.ConnectAll();
  job_.daemon.Restart();
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  job_.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(current(), "run-2");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  Speak(other);
  job_.Connect(0);
  EXPECT_EQ(Closed(0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RunRegistryTest, AHungOneThatComesBackAfterARestartIsReplacedWithinTenSeconds) {
  job_.ConnectAll();
  Train(60);
  job_.daemon.Restart();
  job_.ConnectAll();  // the streams live on, and no step is told any more
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  ASSERT_EQ(current(), "run-1");
  job_.daemon.AdvanceSeconds(10);
  EXPECT_EQ(current(), "run-2");
}

TEST_F(RunRegistryTest, ASlowOneThatComesBackAfterARestartKeepsTheJob) {
  job_.ConnectAll();
  for (int64_t step = 10; step <= 40; step += 10) {
    job_.daemon.Advance(absl::Seconds(100));
    job_.Report(step - 9, step);
  }
  job_.daemon.Restart();
  job_.ConnectAll();
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  job_.daemon.Advance(absl::Seconds(599));
  EXPECT_EQ(current(), "run-1");
  job_.daemon.Advance(absl::Seconds(2));
  EXPECT_EQ(current(), "run-2");
}

TEST_F(RunRegistryTest, ANameThatHasEndedIsRefusedWithWhatToDoAlsoByNewProcesses) {
  job_.ConnectAll();
  job_.FinishAll();
  for (const bool restart : {false, true}) {
    if (restart) job_.daemon.Restart();
    for (FakeRank& rank : job_.ranks) {
      ++rank.identity.nonce;
      rank.identity.run_number = 0;
    }
    job_.Connect(0);
    EXPECT_EQ(Closed(0), absl::FailedPreconditionError(
                             "run run-1 of job train has ended: all 3 ranks finished; "
                             "to be balanced again, start all its ranks anew"));
    EXPECT_THAT(job_.daemon.View().refusal(), HasSubstr("has ended"));
  }
  EXPECT_EQ(job_.daemon.View().refused_hellos(), 1);  // since the restart
  job_.daemon.Advance(absl::Minutes(11));
  EXPECT_EQ(job_.daemon.View().refusal(), "");
}

TEST_F(RunRegistryTest, ACandidateThatFailedOrFinishedNeverComesBackAlsoAfterARestart) {
  for (const bool failed : {true, false}) {
    TestJob job;
    job.ConnectAll();
    job.Report(1, 10);
    std::vector<FakeRank> owner = job.ranks;
    job.ranks = OtherRun(job, "run-2");
    job.ConnectAll();
    ASSERT_EQ(job.daemon.View().candidate().registered_ranks(), 3);
    for (const FakeRank& rank : job.ranks) {
      job.daemon.Say(rank.session, wire::Goodbye{failed ? "no memory" : "finished", {}, failed});
    }
    EXPECT_FALSE(job.daemon.View().has_candidate());
    for (const bool restart : {false, true}) {
      if (restart) job.daemon.Restart();
      job.Connect(0);
      EXPECT_EQ(job.ClosedWith(0)->code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST_F(RunRegistryTest, ACandidateThatDoesNotGatherGivesWayToTheNextAndItsRanksMayComeAgain) {
  job_.ConnectAll();
  Train(60);
  std::vector<FakeRank> second = OtherRun(job_, "run-2");
  std::vector<FakeRank> third = OtherRun(job_, "run-3");
  Speak(second);
  job_.Connect(0);
  const SessionId gathering = job_.ranks[0].session;
  Speak(second);
  Speak(third);
  job_.Connect(0);
  EXPECT_EQ(Closed(0).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Closed(0).message()),
              HasSubstr("run-2 of job train registered earlier and waits "
                        "for ranks 1, 2 to register"));
  Speak(third);
  Train(700);  // more than a minute
  Speak(third);
  job_.Connect(0);
  EXPECT_EQ(Closed(0), absl::OkStatus());
  EXPECT_EQ(job_.daemon.ClosedWith(gathering)->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job_.daemon.View().candidate().run_id(), "run-3");
}

TEST_F(RunRegistryTest, ACandidateIsServedOnceTheOneInForceHasFinished) {
  job_.ConnectAll();
  Train(20);
  std::vector<FakeRank> other = Begin("run-2");
  job_.ConnectAll();
  Speak(other);
  job_.FinishAll();
  job_.daemon.Advance(absl::Milliseconds(200));
  EXPECT_EQ(current(), "run-2");
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  EXPECT_EQ(Only<wire::Keep>(job_.daemon.Take(other[1].session)).back().run_number, 2);
}

}  // namespace
}  // namespace eplb::core
