#include "server/core/state/memory.h"

#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <vector>

#include "server/core/values/config.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {

namespace {

using ::testing::HasSubstr;

constexpr absl::Time kMovedAside = absl::FromUnixSeconds(1'795'000'000);

// Version 1 is in flight, and rank 1 computed another digest for it.
void Quarantined(TestJob& job) {
  job.Propose(Exchanged({0, 1}));
  job.daemon.Say(job.ranks[1].session, wire::Nack{1, wire::NackCode::kWrongDigest, "abc"});
  job.Deliver();
  ASSERT_EQ(job.daemon.state(), "QUARANTINE");
}

// New processes, after the ones before have failed.
void RelaunchWithMemory(TestJob& job, const std::string& name) {
  job.ConnectAll();
  job.Fail(0);
  job.Relaunch(name);
  job.ConnectAll();
}

// New processes, which begin at a checkpoint from before version 1.
void BeginAnew(TestJob& job) {
  for (FakeRank& rank : job.ranks) {
    job.Fail(rank.identity.rank);
    rank = FakeRank(rank.identity.rank);
    rank.Relaunch("run-2");
  }
}

// A window of every ten steps up to `last_step`, none of which is decided on but as settings say.
void ReportThrough(TestJob& job, int64_t first_step, int64_t last_step) {
  for (int64_t step = first_step; step < last_step; step += 10) job.Report(step, step + 9);
}

TEST(MemoryTest, RanksThatWentToAnotherDaemonAndComeBackAreInQuarantineStill) {
  TestJob job;
  Quarantined(job);
  for (const FakeRank& rank : job.ranks) {
    job.daemon.Say(rank.session, wire::Moved{7, "10.0.0.2:7750"});
  }
  ASSERT_EQ(job.daemon.state(), "LOST");
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
  ReportThrough(job, 20, 100);
  EXPECT_EQ(job.daemon.num_solves(), 1);
}

TEST(MemoryTest, ARestartKeepsAQuarantineUntilAnOperatorResumes) {
  TestJob job;
  Quarantined(job);
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.state(), "QUARANTINE") << "before any rank has come";
  job.ConnectAll();
  ReportThrough(job, 20, 100);
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
  EXPECT_EQ(job.daemon.num_solves(), 1);
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(MemoryTest, AResumeBeforeAnyRankHasComeEndsARestoredQuarantine) {
  TestJob job;
  Quarantined(job);
  job.daemon.Restart();
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(MemoryTest, ANewRunEndsARestoredQuarantine) {
  TestJob job;
  Quarantined(job);
  job.daemon.Restart();
  RelaunchWithMemory(job, "run-2");
  EXPECT_EQ(job.daemon.state(), "IDLE");
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.state(), "RECOVERING");
}

TEST(MemoryTest, ALostStoreComesBackFromTheRanks) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"mode", "observe"}, {"every_steps", 70}}}).ok());
  const std::string reason = job.daemon.View().pause_reason();
  job.Deliver();
  job.daemon.LoseStore();
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_TRUE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().pause_reason(), reason);
  EXPECT_EQ(job.daemon.View().policy().mode(), "observe");
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 70);
  EXPECT_THAT(job.daemon.LastReason("memory_recalled"), HasSubstr("paused"));
  EXPECT_TRUE(job.daemon.stored().at(kJob).memory.paused) << "and is stored again";
}

TEST(MemoryTest, AQuarantineComesBackFromTheRanksAndCanBeEnded) {
  TestJob job;
  Quarantined(job);
  job.daemon.LoseStore();
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
  ReportThrough(job, 20, 100);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(MemoryTest, OfTwoRanksTheOneWithTheNewerMemoryIsBelieved) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  const wire::Hello paused = job.ranks[2].Hello();
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.Deliver();
  job.ranks[2].identity.memory = paused.memory;  // it was away meanwhile
  for (const std::vector<int32_t>& order : {std::vector<int32_t>{2, 0, 1}, {0, 1, 2}}) {
    job.daemon.LoseStore();
    for (const int32_t rank : order) job.Connect(rank);
    EXPECT_EQ(job.daemon.state(), "IDLE");
    EXPECT_FALSE(job.daemon.View().paused());
  }
}

TEST(MemoryTest, ARankNeitherLiftsAPauseNorAQuarantineThatTheStoreRemembers) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  for (FakeRank& rank : job.ranks) {
    rank.identity.memory.value->serial += 5;
    rank.identity.memory.value->paused = false;
    rank.identity.memory.value->settings["every_steps"] = 90;
  }
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_TRUE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 90);

  TestJob other;
  Quarantined(other);
  for (FakeRank& rank : other.ranks) {
    rank.identity.memory.value->serial += 5;
    rank.identity.memory.value->quarantine.clear();
  }
  other.daemon.Restart();
  other.ConnectAll();
  EXPECT_EQ(other.daemon.state(), "QUARANTINE");
}

TEST(MemoryTest, WhatARankMakesUpIsNoMemory) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  const wire::JobMemory good = *job.ranks[0].identity.memory.value;
  const auto after = [&job, &good](const auto& change) {
    wire::JobMemory memory = good;
    change(memory);
    for (FakeRank& rank : job.ranks) rank.identity.memory.value = memory;
    job.daemon.LoseStore();
    job.ConnectAll();
    EXPECT_EQ(job.daemon.state(), "IDLE") << "a Hello is not refused for its memory";
    return job.daemon.View().paused();
  };
  EXPECT_TRUE(after([](wire::JobMemory&) {}));
  // A daemon may have it from a rank of another run.
  EXPECT_TRUE(after([](wire::JobMemory& memory) { memory.run_id = "run-0"; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.serial = int64_t{1} << 61; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.serial = 0; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.term = int64_t{1} << 61; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.run_number = int64_t{1} << 61; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.last_decision_step = 1 << 30; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.back_off_length = 1 << 20; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.settings["min_gain"] = 7.0; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.report_seconds = 1e9; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.report_seconds = -1; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.next_version = int64_t{1} << 61; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.run_id = "\x1b[2J"; }));
  EXPECT_FALSE(after([](wire::JobMemory& memory) { memory.gone = {{"\x1b[2J", 1}}; }));
}

TEST(MemoryTest, APauseThatOneRankBroughtBackOutlivesTheNextRestart) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  job.daemon.LoseStore();
  job.Connect(1);  // the others never come back, and so no rank says what runs
  job.daemon.Restart();
  EXPECT_TRUE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().version(), 0);
  for (FakeRank& rank : job.ranks) rank.identity.memory = {};
  job.Connect(1);
  EXPECT_TRUE(job.daemon.View().paused());
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.daemon.Restart();
  EXPECT_FALSE(job.daemon.View().paused());
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

// After a lost store a run that was replaced comes back first, and is led with a new term.
TEST(MemoryTest, WhatALaterRunCarriesCountsAfterAnEarlierOneWasLedAgain) {
  ConnectedJob job;
  std::vector<FakeRank> earlier = job.ranks;
  BeginAnew(job);
  job.ConnectAll();
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  job.daemon.LoseStore();
  std::swap(job.ranks, earlier);
  job.ConnectAll();
  ASSERT_FALSE(job.daemon.View().paused());
  std::swap(job.ranks, earlier);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_TRUE(job.daemon.View().paused());
}

// A run that began at a checkpoint has not seen the versions after it.
TEST(MemoryTest, AVersionThatOnlyAnEarlierRunSawIsNotGivenAgainAfterALostStore) {
  PreparedJob job(Exchanged({0, 1}));
  ASSERT_TRUE(job.Vote(12));
  const int64_t committed = job.ranks[0].version;
  ASSERT_GT(committed, 0);
  BeginAnew(job);
  job.ConnectAll();
  job.daemon.LoseStore();
  for (FakeRank& rank : job.ranks) rank.identity.step = 0;
  job.Propose(Exchanged({2}));
  job.Deliver();
  ASSERT_FALSE(job.ranks[0].proposals.empty());
  EXPECT_GT(job.ranks[0].proposals.back().version, committed);
}

TEST(MemoryTest, AJobThatAStoreMovedAsideDoesNotKnowStartsPaused) {
  ConnectedJob job;
  job.Deliver();
  for (FakeRank& rank : job.ranks) rank.identity.run_number = 3;
  job.daemon.LoseStore(kMovedAside);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_TRUE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().pause_reason(),
            "the store was moved aside at 2026-11-18 11:06:40 UTC and did not know this job; look "
            "at the job, then use eplbctl resume");
  EXPECT_EQ(job.daemon.CountEvents("unknown_job_paused"), 1);
  EXPECT_TRUE(job.daemon.View().paused_by_lost_store());
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_TRUE(job.daemon.View().paused_by_lost_store()) << "a restart changes nothing";
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  EXPECT_FALSE(job.daemon.View().paused_by_lost_store()) << "now it is an operator's choice";
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_FALSE(job.daemon.View().paused()) << "somebody has looked";
}

TEST(MemoryTest, AJobThatComesLongAfterTheStoreWasMovedAsideIsNotPaused) {
  Config config = TestConfig();
  TestJob probe(config);
  config.pauses_unknown_until = probe.daemon.now() + absl::Seconds(5);
  ConnectedJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.run_number = 3;
  job.daemon.LoseStore(kMovedAside);
  job.daemon.Advance(absl::Seconds(6));
  job.ConnectAll();
  EXPECT_FALSE(job.daemon.View().paused());
}

TEST(MemoryTest, TheTimeOfUnknownPausesIsCountedFromWhenTheStoreWasMovedAside) {
  // Time of a clock that begins elsewhere.
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_EQ(UnknownPausesEnd(absl::ZeroDuration(), now), now + absl::Hours(24));
  EXPECT_EQ(UnknownPausesEnd(absl::Hours(20), now), now + absl::Hours(4))
      << "a restart does not begin it anew";
  EXPECT_LT(UnknownPausesEnd(absl::Hours(24 * 365), now), now) << "a copy of last year";
  EXPECT_EQ(UnknownPausesEnd(std::nullopt, now), absl::InfinitePast());
}

// From a second daemon, while answers are due here.
TEST(MemoryTest, AQuarantineThatARankBringsDuringAProposalIsInForceBehindIt) {
  PreparedJob job(Exchanged({0, 1}));
  wire::JobMemory memory = job.daemon.stored().at(kJob).memory;
  memory.term += 1;
  memory.quarantine = "rank 1 dropped version 9 after it had applied it";
  job.Disconnect(2);
  job.ranks[2].identity.memory.value = memory;
  job.ranks[2].identity.highest_term = memory.term;
  job.Connect(2);
  job.Deliver();
  (void)job.Vote(12);
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "QUARANTINE");
}

TEST(MemoryTest, AJobWithoutARunBeforeIsNotPausedByAStoreThatWasMovedAside) {
  TestJob job;
  job.daemon.LoseStore(kMovedAside);
  job.ConnectAll();
  EXPECT_FALSE(job.daemon.View().paused());
}

TEST(MemoryTest, CadenceSurvivesARestartAndALostStore) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"every_steps", 100}}}).ok());
  job.Report(0, 9);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  job.Deliver();
  for (const bool lost : {false, true}) {
    lost ? job.daemon.LoseStore() : job.daemon.Restart();
    job.ConnectAll();
    ReportThrough(job, lost ? 60 : 10, lost ? 100 : 60);
    EXPECT_EQ(job.daemon.num_solves(), 1) << "lost: " << lost;
  }
  ReportThrough(job, 100, 110);
  EXPECT_EQ(job.daemon.num_solves(), 2);
}

TEST(MemoryTest, BackOffSurvivesARestart) {
  PreparedJob job(Exchanged({0, 1}));
  job.VoteAndDeliver(12, /*transfer_works=*/false);
  ASSERT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.stored().at(kJob).memory.back_off_to_skip, 1);
  job.daemon.Restart();
  job.ConnectAll();
  ReportThrough(job, 20, 40);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("backing off"));
}

TEST(MemoryTest, TheAccountGoesOnAfterARestart) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  for (int64_t step = 12; step < 16; step += 2) {
    job.Deliver();
    job.Vote(step);
  }
  job.Deliver();
  ASSERT_EQ(job.daemon.View().commits(), 2);
  const double spent = job.daemon.View().spent_seconds();
  EXPECT_EQ(spent, 0.5);
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().spent_seconds(), spent);
  RelaunchWithMemory(job, "run-2");
  EXPECT_EQ(job.daemon.View().run_id(), "run-2");
  EXPECT_EQ(job.daemon.View().spent_seconds(), 0) << "the tokens of the first run had no price";
}

TEST(MemoryTest, AKeptDecisionIsOneWriteOfTheJobAndFourRanksAreTold) {
  AskedJob job;
  const int64_t writes = job.daemon.num_job_writes();
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_EQ(job.daemon.num_job_writes(), writes + 1);
  EXPECT_EQ(Only<wire::Keep>(job.SentTo(0)).size(), 1u);
  ReportThrough(job, 10, 20);
  EXPECT_EQ(job.daemon.num_job_writes(), writes + 1) << "a window is no decision";
}

TEST(MemoryTest, TheTimeBetweenReportsIsWrittenOnceAndAgainWhenItIsAnother) {
  ConnectedJob job;
  const auto report = [&job](int64_t last_step, absl::Duration after) {
    job.daemon.Advance(after);
    job.daemon.Say(job.ranks[0].session, TestReport(last_step - 9, last_step));
    return job.daemon.stored().at(kJob).memory.report_seconds;
  };
  EXPECT_EQ(report(9, absl::Seconds(2)), 0);
  EXPECT_EQ(report(19, absl::Seconds(2)), 0);
  EXPECT_NEAR(report(29, absl::Seconds(2)), 2, 1e-9) << "three rises";
  const int64_t writes = job.daemon.num_job_writes();
  int64_t step = 29;
  for (int window = 0; window < 20; ++window) report(step += 10, absl::Seconds(3));
  EXPECT_EQ(job.daemon.num_job_writes(), writes) << "less than twice as long";
  double last = 0;
  for (int window = 0; window < 20; ++window) last = report(step += 10, absl::Seconds(5));
  EXPECT_NEAR(last, 5, 1e-9);
  EXPECT_EQ(job.daemon.num_job_writes(), writes + 1);
}

TEST(MemoryTest, AMemoryThatCannotBeStoredIsNotToldUntilItIs) {
  AskedJob job;
  job.Deliver();
  job.daemon.store_works = false;
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  EXPECT_TRUE(Only<wire::Keep>(job.SentTo(0)).empty());
  job.daemon.store_works = true;
  job.daemon.Advance(absl::Seconds(11));
  EXPECT_EQ(Only<wire::Keep>(job.SentTo(0)).size(), 1u);
}

}  // namespace

}  // namespace eplb::core
