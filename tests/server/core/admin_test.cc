#include "server/core/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "server/core/decisions/question.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

absl::StatusCode CodeOf(const absl::StatusOr<ChangeOutcome>& outcome) {
  return outcome.status().code();
}

bool Says(const absl::StatusOr<ChangeOutcome>& outcome, const std::string& text) {
  return std::string(outcome.status().message()).find(text) != std::string::npos;
}

v1::JobEvent LastEvent(const CoreHarness& daemon, const std::string& name) {
  v1::JobEvent found;
  for (const Record& record : daemon.records()) {
    if (record.event.name() == name) found = record.event;
  }
  return found;
}

TEST(AdminTest, PauseStopsDecisionsAndResumeAllowsThemAgain) {
  ConnectedJob job;
  const ChangeOutcome paused = job.daemon.Ask(Pause{}).value();
  EXPECT_EQ(paused.state, v1::JOB_STATE_IDLE);
  EXPECT_EQ(paused.outcome, "paused by ann: why not");
  EXPECT_TRUE(job.daemon.View().paused());
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  ASSERT_TRUE(job.daemon.Ask(Resume{}).ok());
  EXPECT_FALSE(job.daemon.View().paused());
  job.Report(10, 19);
  EXPECT_EQ(job.daemon.num_solves(), 1);
  const v1::JobEvent event = LastEvent(job.daemon, "resume");
  EXPECT_EQ(event.actor(), "ann");
  EXPECT_EQ(event.before(), "paused: paused by ann: why not");
  EXPECT_EQ(event.after(), "not paused");
}

TEST(AdminTest, APauseLetsTheChunkInFlightEndAndProposesNoOther) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  const absl::StatusOr<ChangeOutcome> paused = job.daemon.Ask(Pause{});
  EXPECT_THAT(paused->outcome, HasSubstr("version 1 is in flight and ends first"));
  job.CommitAll(12);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 1);
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PARTIAL);
  EXPECT_EQ(plan.chunks_committed(), 1);
}

TEST(AdminTest, APauseSurvivesARestart) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}, {}, "once").ok());
  job.daemon.Restart();
  EXPECT_TRUE(job.daemon.View().paused());
  job.ConnectAll();
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.num_solves(), 0);
  const absl::StatusOr<ChangeOutcome> again = job.daemon.Ask(Pause{}, {}, "once");
  EXPECT_EQ(CodeOf(again), absl::StatusCode::kAlreadyExists);
}

TEST(AdminTest, ARequestIdIsUsedOnceAndARepeatToldWhatItDid) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}, {}, "r1").ok());
  const absl::StatusOr<ChangeOutcome> again = job.daemon.Ask(Resume{}, {}, "r1");
  EXPECT_EQ(CodeOf(again), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Says(again, "paused by ann")) << again.status();
  EXPECT_TRUE(job.daemon.View().paused());
  EXPECT_EQ(LastEvent(job.daemon, "refused").actor(), "ann");
}

TEST(AdminTest, ARefusedRequestMayBeAskedAgainUnderItsId) {
  ConnectedJob job;
  EXPECT_EQ(CodeOf(job.daemon.Ask(Pause{}, 7, "r1")), absl::StatusCode::kAborted);
  EXPECT_TRUE(job.daemon.Ask(Pause{}, 0, "r1").ok());
  EXPECT_EQ(job.daemon.core().counters().changes, 1);
  EXPECT_EQ(job.daemon.core().counters().changes_refused, 1);
}

TEST(AdminTest, RequestIdsAreBoundedInNumber) {
  ConnectedJob job;
  for (int i = 0; i <= kMaxDoneRequests; ++i) {
    ASSERT_TRUE(job.daemon.Ask(Pause{}, {}, absl::StrCat("r", i)).ok());
  }
  EXPECT_TRUE(job.daemon.Ask(Pause{}, {}, "r0").ok());
  EXPECT_EQ(CodeOf(job.daemon.Ask(Pause{}, {}, "r2")), absl::StatusCode::kAlreadyExists);
}

TEST(AdminTest, AStaleExpectVersionIsAbortedNamingBothVersions) {
  ProposedJob job(Exchanged({0, 1}));
  job.CommitAll(12);
  ASSERT_EQ(job.daemon.View().version(), 1);
  const absl::StatusOr<ChangeOutcome> stale = job.daemon.Ask(Pause{}, 0);
  EXPECT_EQ(CodeOf(stale), absl::StatusCode::kAborted);
  EXPECT_TRUE(Says(stale, "expect_version is 0, the current version is 1")) << stale.status();
  EXPECT_FALSE(job.daemon.View().paused());
}

TEST(AdminTest, MalformedChangesAreRefusedByField) {
  ConnectedJob job;
  const Change good{.ticket = 900,
                    .job = kJob,
                    .request_id = "r",
                    .expect_version = 0,
                    .actor = "ann",
                    .verb = Pause{}};
  const auto code = [&](void (*spoil)(Change&)) {
    Change change = good;
    change.ticket += std::ssize(job.daemon.replies());
    spoil(change);
    job.daemon.Handle(change);
    return job.daemon.replies().at(change.ticket).status().code();
  };
  for (void (*spoil)(Change&) :
       {+[](Change& c) { c.request_id = ""; }, +[](Change& c) { c.request_id = "no blanks"; },
        +[](Change& c) { c.request_id = std::string(65, 'x'); },
        +[](Change& c) { c.expect_version.reset(); },
        +[](Change& c) { c.comment = std::string(257, 'x'); }, +[](Change& c) { c.job = ""; }}) {
    EXPECT_EQ(code(spoil), absl::StatusCode::kInvalidArgument) << job.daemon.replies().size();
  }
  EXPECT_EQ(code([](Change& c) { c.job = "other"; }), absl::StatusCode::kNotFound);
  EXPECT_EQ(LastEvent(job.daemon, "refused").job(), "");
  EXPECT_FALSE(job.daemon.View().paused());
  EXPECT_EQ(code([](Change&) {}), absl::StatusCode::kOk);
}

TEST(AdminTest, AChangeThatCannotBeStoredIsUndoneAndUnavailable) {
  ConnectedJob job;
  job.daemon.store_works = false;
  const SettingsPatch patch{{"min_gain", 0.5}};
  for (const Verb& verb : {Verb(Pause{}), Verb(SetPolicy{patch})}) {
    EXPECT_EQ(CodeOf(job.daemon.Ask(verb, {}, "r1")), absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().policy().min_gain(), 0.05);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_FALSE(job.daemon.core().Readiness().ok());
  job.daemon.store_works = true;
  EXPECT_TRUE(job.daemon.Ask(Pause{}, {}, "r1").ok());
  job.daemon.Advance(absl::Seconds(1));
  EXPECT_TRUE(job.daemon.core().Readiness().ok());
}

TEST(AdminTest, ARebalanceOrRollbackThatCannotBeStoredLeavesTheJobIdle) {
  ProposedJob job(Exchanged({0, 1}));
  job.CommitAll(12);
  job.daemon.store_works = false;
  const int64_t solves = job.daemon.num_solves();
  EXPECT_EQ(CodeOf(job.daemon.Ask(Rebalance{})), absl::StatusCode::kUnavailable);
  EXPECT_EQ(job.daemon.num_solves(), solves);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(CodeOf(job.daemon.Ask(Rollback{})), absl::StatusCode::kUnavailable);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_FALSE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.core().Plans(kJob, 9)->size(), 1);
}

TEST(AdminTest, RebalanceDecidesNowOnWindowsThatWereDecidedOnBefore) {
  ConnectedJob job;
  EXPECT_EQ(CodeOf(job.daemon.Ask(Rebalance{})), absl::StatusCode::kFailedPrecondition);
  job.Report(0, 9);
  job.daemon.AnswerSolve(Exchanged({}));
  const ChangeOutcome asked = job.daemon.Ask(Rebalance{}).value();
  EXPECT_EQ(asked.state, v1::JOB_STATE_SOLVING);
  EXPECT_EQ(job.daemon.num_solves(), 2);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0})));
  EXPECT_EQ(job.daemon.state(), "PREPARING");
  EXPECT_EQ(job.NewestPlan().asked_by(), "ann");
  EXPECT_EQ(CodeOf(job.daemon.Ask(Rebalance{})), absl::StatusCode::kFailedPrecondition);
}

TEST(AdminTest, AForcedRebalanceProposesWhatDoesNotPay) {
  Config config = TestConfig();
  config.settings.min_gain = 1;
  AskedJob job(config);
  job.daemon.AnswerSolve(Exchanged({0}));
  ASSERT_EQ(job.daemon.state(), "IDLE");
  ASSERT_TRUE(job.daemon.Ask(Rebalance{.force = true}).ok());
  job.daemon.AnswerSolve(Exchanged({0}));
  EXPECT_EQ(job.daemon.state(), "PREPARING");
  EXPECT_THAT(job.daemon.LastReason("proposed"), HasSubstr("forced"));
}

TEST(AdminTest, RebalanceIsRefusedWhilePausedOrFrozen) {
  AskedJob job;
  job.daemon.AnswerSolve(Exchanged({}));
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"freeze_steps", "5:30"}}}).ok());
  EXPECT_TRUE(Says(job.daemon.Ask(Rebalance{}), "the steps 5:30 are frozen"));
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"freeze_steps", ""}}}).ok());
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  const absl::StatusOr<ChangeOutcome> paused = job.daemon.Ask(Rebalance{.force = true});
  EXPECT_EQ(CodeOf(paused), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Says(paused, " is paused by ann: why not")) << paused.status();
}

TEST(AdminTest, APreviewSaysWhatWouldBeAndNothingIsChangedStoredOrAudited) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  const int64_t version = job.daemon.View().version();
  const size_t events = job.daemon.records().size();
  const int64_t writes = job.daemon.num_job_writes();
  const ChangeOutcome pause = job.daemon.Preview(Pause{}).value();
  EXPECT_EQ(pause.outcome, "paused by ann: why not");
  EXPECT_EQ(pause.before, "not paused");
  const ChangeOutcome back = job.daemon.Preview(Rollback{}).value();
  EXPECT_EQ(back.version, version);
  EXPECT_THAT(back.outcome, HasSubstr("is proposed in 2 chunks"));
  const ChangeOutcome set = job.daemon.Preview(SetPolicy{{{"min_gain", 0.5}}}).value();
  EXPECT_EQ(set.after, "min_gain=0.5");
  EXPECT_EQ(CodeOf(job.daemon.Preview(ForgetJob{})), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_FALSE(job.daemon.View().paused());
  EXPECT_EQ(job.daemon.View().version(), version);
  EXPECT_EQ(job.daemon.records().size(), events);
  EXPECT_EQ(job.daemon.num_job_writes(), writes);
  for (const auto& rank : job.ranks) EXPECT_FALSE(job.daemon.HasMail(rank.session));
}

TEST(AdminTest, APreviewOfARebalanceIsAnObservedDecisionThatMovesNoPace) {
  ConnectedJob job;
  ASSERT_TRUE(absl::IsFailedPrecondition(job.daemon.Preview(Rebalance{}).status()));
  job.Report(0, 9);
  job.daemon.AnswerSolve(Exchanged({}));  // at step 9; the next one is due at step 29
  ASSERT_TRUE(job.daemon.Preview(Rebalance{}).ok());
  EXPECT_EQ(job.daemon.state(), "SOLVING");
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0})));
  EXPECT_EQ(job.daemon.state(), "IDLE");
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_OBSERVED);
  EXPECT_EQ(plan.asked_by(), "ann");
  EXPECT_EQ(plan.num_chunks(), 1);
  EXPECT_EQ(job.daemon.CountEvents("proposed"), 0);
  EXPECT_EQ(job.daemon.CountEvents("rebalance"), 0);
  job.Report(10, 19);
  ASSERT_TRUE(job.daemon.Preview(Rebalance{}).ok());
  job.daemon.AnswerSolve(Exchanged({0}));
  const int64_t solves = job.daemon.num_solves();
  job.Report(20, 29);  // a decision is as due as without the previews
  EXPECT_EQ(job.daemon.num_solves(), solves + 1);
}

TEST(AdminTest, RollbackProposesTheVersionBeforeTheDecisionAndPauses) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ASSERT_EQ(job.daemon.View().version(), 2);
  const ChangeOutcome back = job.daemon.Ask(Rollback{}).value();
  EXPECT_EQ(back.state, v1::JOB_STATE_PREPARING);
  EXPECT_THAT(back.outcome, HasSubstr("the placement of version 0 is proposed in 2 chunks"));
  job.CommitAll(20);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().version(), 4);  // the chunks got new versions
  EXPECT_EQ(job.ranks[0].placement, Exchanged({}));
  EXPECT_TRUE(job.daemon.View().paused());
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.policy(), "rollback");
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_COMMITTED);
  EXPECT_EQ(plan.base_version(), 2);
  EXPECT_EQ(plan.last_version(), 4);
  // And back again, by its number.
  ASSERT_TRUE(job.daemon.Ask(Rollback{.to_version = 1}).ok());
  job.CommitAll(30);
  EXPECT_EQ(job.ranks[0].placement, Exchanged({0, 1}));
}

TEST(AdminTest, ThePauseOfARollbackThatFailedTellsWhatHappenedAlsoAfterARestart) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ASSERT_TRUE(job.daemon.Ask(Rollback{}).ok());
  EXPECT_EQ(job.daemon.View().pause_reason(), "for a rollback to version 0 by ann: why not");
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(20, false));  // the transfer fails on every rank
  const std::string nothing = job.daemon.View().pause_reason();
  EXPECT_EQ(nothing.rfind("rollback to version 0 failed: rank 0 dropped it: ", 0), 0) << nothing;
  EXPECT_THAT(nothing, HasSubstr("; nothing was moved; it was asked for by ann: why not"));
  EXPECT_TRUE(job.daemon.View().paused());
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.View().pause_reason(), nothing);
}

TEST(AdminTest, ThePauseOfARollbackThatStoppedHalfWaySaysHowFarItCame) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ASSERT_TRUE(job.daemon.Ask(Rollback{}).ok());
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(20));
  ASSERT_TRUE(job.VoteAndDeliver(22, false));
  const std::string half = job.daemon.View().pause_reason();
  EXPECT_THAT(half, HasSubstr("rollback to version 0 failed: "));
  EXPECT_THAT(half, HasSubstr("; 1 of 2 chunks were moved; "));
  EXPECT_EQ(job.daemon.stored().at(kJob).memory.pause_reason, half);
}

TEST(AdminTest, APauseThatCameAfterTheRollbackKeepsItsReason) {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  ASSERT_TRUE(job.daemon.Ask(Rollback{}).ok());
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(20, false));
  EXPECT_EQ(job.daemon.View().pause_reason(), "paused by ann: why not");
}

TEST(AdminTest, ARollbackThatCannotBeIsRefusedWithItsReason) {
  ConnectedJob job;
  EXPECT_TRUE(Says(job.daemon.Ask(Rollback{}), "no decision is known"));
  EXPECT_TRUE(Says(job.daemon.Ask(Rollback{.to_version = 0}), "runs the placement"));
  EXPECT_EQ(CodeOf(job.daemon.Ask(Rollback{.to_version = 77})), absl::StatusCode::kNotFound);
  job.Disconnect(1);
  EXPECT_TRUE(Says(job.daemon.Ask(Rollback{.to_version = 0}), "2 of 3 ranks"));
  EXPECT_FALSE(job.daemon.View().paused());
}

TEST(AdminTest, SetPolicyIsInForceAtOnceAndAfterARestart) {
  ConnectedJob job;
  const SettingsPatch patch{{"name", "balanced"}, {"every_steps", 40}, {"min_gain", 0.25}};
  const ChangeOutcome set = job.daemon.Ask(SetPolicy{patch}).value();
  EXPECT_EQ(set.before, "name=incremental every_steps=20 min_gain=0.05");
  EXPECT_EQ(set.after, "name=balanced every_steps=40 min_gain=0.25");
  const v1::JobEvent event = LastEvent(job.daemon, "set_policy");
  EXPECT_EQ(event.before(), "name=incremental every_steps=20 min_gain=0.05");
  EXPECT_EQ(event.after(), "name=balanced every_steps=40 min_gain=0.25");
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"min_gain", 0.5}}}).ok());
  job.daemon.Restart();
  const v1::PolicySettings settings = job.daemon.View().policy();
  EXPECT_EQ(settings.name(), "balanced");
  EXPECT_EQ(settings.every_steps(), 40);
  EXPECT_EQ(settings.min_gain(), 0.5);
  job.ConnectAll();
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.pending_solve()->question->settings.policy.name, "balanced");
}

TEST(AdminTest, SetPolicyRefusesWhatItDoesNotKnow) {
  ConnectedJob job;
  EXPECT_TRUE(Says(job.daemon.Ask(SetPolicy{}), "settings are empty"));
  EXPECT_TRUE(Says(job.daemon.Ask(SetPolicy{{{"name", "magic"}}}), "name is \"magic\""));
  EXPECT_EQ(job.daemon.View().policy().name(), "incremental");
}

TEST(AdminTest, ResumeEndsAQuarantineAndTheRanksSayWhatTheyRun) {
  PreparedJob job(Exchanged({0, 1}));
  // One rank computed another plan.
  job.daemon.Say(job.ranks[1].session, wire::Applied{1, DigestOf(Exchanged({2})), 12, 0, 0});
  ASSERT_EQ(job.daemon.state(), "QUARANTINE");
  const ChangeOutcome resumed = job.daemon.Ask(Resume{}).value();
  EXPECT_EQ(resumed.state, v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_WITHDRAWN);
  job.ranks[1].version = 0;
  job.Disconnect(1);
  job.Connect(1);
  job.Deliver();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(AdminTest, ResumeOfAJobThatIsNotPausedIsNoErrorAndSaysSo) {
  ConnectedJob job;
  const ChangeOutcome resumed = job.daemon.Ask(Resume{}).value();
  EXPECT_EQ(resumed.outcome, "was not paused; resume was asked for by ann: why not");
  EXPECT_FALSE(job.daemon.View().paused());
  EXPECT_EQ(LastEvent(job.daemon, "resume").before(), "not paused");
}

TEST(AdminTest, AJobThatHasNotSaidWhatItRunsMayBePausedAndNothingElse) {
  AskedJob job;
  job.Deliver();
  job.daemon.LoseStore();
  job.ranks[0].identity.memory = {};
  job.Connect(0);
  EXPECT_TRUE(Says(job.daemon.Ask(Rebalance{}), "has not reported what it runs"));
  EXPECT_TRUE(Says(job.daemon.Ask(Rollback{}), "has not reported what it runs"));
  EXPECT_TRUE(
      Says(job.daemon.Ask(SetPolicy{{{"mode", "observe"}}}), "has not reported what it runs"));
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Connect(1);  // its memory knows of no pause
  job.Connect(2);
  EXPECT_TRUE(job.daemon.View().paused());
  job.daemon.Restart();
  job.ConnectAll();
  EXPECT_TRUE(job.daemon.View().paused());
}

TEST(AdminTest, ASecondPauseKeepsTheReasonOfTheFirst) {
  ConnectedJob job;
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  const std::string first = job.daemon.View().pause_reason();
  job.daemon.Handle(Change{.ticket = 100,
                           .job = kJob,
                           .request_id = "again",
                           .expect_version = 0,
                           .comment = "upgrade",
                           .actor = "bob",
                           .verb = Pause{}});
  EXPECT_EQ(job.daemon.View().pause_reason(), first);
  EXPECT_EQ(job.daemon.replies().at(100)->outcome,
            "paused before: " + first + "; asked for again by bob: upgrade");
}

TEST(AdminTest, ForgetRemovesAJobWithoutRanksAndLeavesItsAuditLog) {
  ConnectedJob job;
  EXPECT_TRUE(Says(job.daemon.Ask(ForgetJob{}), "has ranks connected"));
  EXPECT_EQ(CodeOf(job.daemon.Ask(ForgetJob{})), absl::StatusCode::kFailedPrecondition);
  job.FinishAll();
  EXPECT_EQ(CodeOf(job.daemon.Ask(ForgetJob{}, 7)), absl::StatusCode::kAborted);
  const ChangeOutcome forgotten = job.daemon.Ask(ForgetJob{}).value();
  EXPECT_EQ(forgotten.outcome, "forgotten by ann: why not");
  EXPECT_EQ(forgotten.state, v1::JOB_STATE_FINISHED);
  EXPECT_TRUE(job.daemon.core().Jobs(job.daemon.now()).empty());
  EXPECT_TRUE(job.daemon.stored().empty());
  const v1::JobEvent event = LastEvent(job.daemon, "forget");
  EXPECT_EQ(event.job(), kJob);
  EXPECT_EQ(event.actor(), "ann");
  EXPECT_EQ(event.before(), "FINISHED");
  EXPECT_EQ(CodeOf(job.daemon.Ask(ForgetJob{})), absl::StatusCode::kNotFound);
  job.daemon.Restart();
  EXPECT_TRUE(job.daemon.core().Jobs(job.daemon.now()).empty());
  for (FakeRank& rank : job.ranks) rank.identity.run_id = "run-2";
  job.ConnectAll();
  EXPECT_EQ(job.daemon.state(), "IDLE");
}

TEST(AdminTest, ForgetRemovesAJobWhoseRanksNeverAllCame) {
  TestJob job;
  job.Connect(0);
  job.Disconnect(0);
  ASSERT_TRUE(job.daemon.Ask(ForgetJob{}).ok());
  EXPECT_TRUE(job.daemon.core().Jobs(job.daemon.now()).empty());
}

TEST(AdminTest, AJobThatTheStoreDoesNotForgetIsStillKnown) {
  ConnectedJob job;
  job.FinishAll();
  job.daemon.store_works = false;
  const absl::StatusOr<ChangeOutcome> forgotten = job.daemon.Ask(ForgetJob{});
  EXPECT_TRUE(absl::IsUnavailable(forgotten.status())) << forgotten.status();
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(job.daemon.CountEvents("forget"), 0);
  job.daemon.store_works = true;
  EXPECT_TRUE(job.daemon.Ask(ForgetJob{}).ok());
}

}  // namespace
}  // namespace eplb::core
