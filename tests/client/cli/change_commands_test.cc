#include "client/cli/change_commands.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <string>

#include "base/json_value.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

// rebalance, pause, resume, rollback, set policy and forget.

namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ChangeTest : public ::testing::Test {
 protected:
  ChangeTest() {
    *daemon_.status.add_jobs() = ExampleJob();
    daemon_.admin_answer.set_version(3);
    daemon_.admin_answer.set_state(v1::JOB_STATE_IDLE);
    daemon_.admin_answer.set_outcome("no more proposals until it is resumed");
  }
  ChangeOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format)};
  }
  ScriptedQuery daemon_;
};

TEST_F(ChangeTest, AChangeNamesTheVersionThatWasJustSeenAndADrawnRequest) {
  const Output output = RunPause(Options());
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_EQ(output.out, "train: no more proposals until it is resumed (IDLE, version 3)\n");
  const std::string first = daemon_.last_admin_request;
  EXPECT_THAT(first, HasSubstr("expect_version: 3"));
  RunPause(Options());
  EXPECT_NE(daemon_.last_admin_request, first);  // another request_id
}

TEST(ApplySettingTest, AnUnknownSettingIsAnsweredWithTheKeysThatAreTaken) {
  v1::PolicySettings settings;
  const std::string message(ApplySetting("foo=1", &settings).status().message());
  EXPECT_THAT(message, StartsWith("\"foo\": unknown setting, expected name, mode, "));
  EXPECT_THAT(std::string(ApplySetting("policy.mde=observe", &settings).status().message()),
              EndsWith(", did you mean policy.mode?"));
  EXPECT_EQ(*ApplySetting("policy.mode=observe", &settings), "mode");
}

TEST_F(ChangeTest, FlagsGoIntoTheRequest) {
  ChangeOptions change = Options(Format::kJson);
  change.job = kJob;
  change.request_id = "r-1";
  change.expect_version = 2;
  change.comment = "night run";
  const Output output = RunResume(change);
  for (const char* word : {"request_id: \"r-1\"", "expect_version: 2", "comment: \"night run\""}) {
    EXPECT_THAT(daemon_.last_admin_request, HasSubstr(word));
  }
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(output.out), "request_id"), "r-1");
  RunRebalance({.change = change, .force = true});
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("force: true"));
  RunRollback({.change = change, .to = 1});
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("to_version: 1"));
  RunRollback({.change = change});
  EXPECT_THAT(daemon_.last_admin_request, Not(HasSubstr("to_version")));
}

TEST_F(ChangeTest, TheCallerSaysWhoItIs) {
  RunPause(Options());
  std::string host(256, '\0');
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr(std::string("@") + host.c_str() + "\""));
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("claimed_by: \""));
}

TEST_F(ChangeTest, ForgetNamesItsJobAndNeverTakesTheOnlyOne) {
  const Output unnamed = RunForget({.change = Options()});
  EXPECT_EQ(unnamed.exit_code, kUsage);
  EXPECT_THAT(unnamed.message, HasSubstr("no job is named"));
  EXPECT_EQ(daemon_.last_admin_request, "");
  ChangeOptions change = Options();
  change.job = kJob;
  const Output output = RunForget({.change = change});
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("job: \"train\""));
}

TEST_F(ChangeTest, SettingsAreSentAsTheyWereGivenAndOnlyThey) {
  const Output output =
      RunSetPolicy({.change = Options(),
                    .settings = {"policy.every_steps=100", "max_pause=50ms", "mode=observe"}});
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"every_steps: 100", "max_pause_seconds: 0.05", "mode: \"observe\""}) {
    EXPECT_THAT(daemon_.last_admin_request, HasSubstr(word));
  }
  EXPECT_THAT(daemon_.last_admin_request, Not(HasSubstr("min_gain")));
}

TEST_F(ChangeTest, SetPolicyShowsWhatWasAndWhatIsInForce) {
  daemon_.admin_answer.set_outcome("set min_gain=0.1 (was min_gain=0.05) by local");
  daemon_.admin_answer.set_before("min_gain=0.05");
  daemon_.admin_answer.set_after("min_gain=0.1");
  EXPECT_EQ(RunSetPolicy({.change = Options(), .settings = {"min_gain=0.1"}}).out,
            "train: set min_gain=0.1 (was min_gain=0.05) by local (IDLE, version 3)\n"
            "  before    min_gain=0.05\n"
            "  in force  min_gain=0.1\n");
  const Output json =
      RunSetPolicy({.change = Options(Format::kJson), .settings = {"min_gain=0.1"}});
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(json.out), "before"), "min_gain=0.05");
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(json.out), "after"), "min_gain=0.1");
}

TEST_F(ChangeTest, ASettingThatCannotBeMeantIsRefusedBeforeAnythingIsAsked) {
  for (const char* bad : {"",
                          "=",
                          "every_steps",
                          "every_steps=",
                          "every_steps=0",
                          "every_steps=-1",
                          "every_steps=4294967297",
                          "min_gain=2",
                          "min_gain=nan",
                          "mode=on",
                          "name=best",
                          "freeze_steps=5",
                          "freeze_steps=9:3",
                          "max_pause=0",
                          "max_pause=never",
                          "colour=red",
                          "layers_per_chunk=1.5",
                          "hierarchy=loose",
                          "gpu_speeds=on",
                          "stated_speeds=3",
                          "avoid_gpus=7,3",
                          "horizon_steps=x",
                          "every_steps=+50",
                          "every_steps= 60",
                          "min_gain=0x1p-3",
                          "min_gain=+0.1",
                          "min_gain= 0.1",
                          "min_gain=-0",
                          "freeze_steps=+5:9",
                          "freeze_steps=5: 9",
                          "max_pause=1",
                          "max_pause=0.5",
                          "max_pause=+1s",
                          "max_pause=2h",
                          "limits.min_gain=0.5",
                          "migration.min_gain=0.5",
                          "policy.max_pause=50ms",
                          ".mode=apply",
                          "policy.policy.mode=apply"}) {
    const Output output = RunSetPolicy({.change = Options(), .settings = {bad}});
    EXPECT_EQ(output.exit_code, kUsage) << bad;
    EXPECT_THAT(output.message, HasSubstr("expected")) << bad;
  }
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, TheTableOfAKeyMayStandBeforeIt) {
  const Output output =
      RunSetPolicy({.change = Options(),
                    .settings = {"policy.min_gain=1e-1", "migration.max_pause=1.5s",
                                 "migration.layers_per_chunk=4", "policy.freeze_steps=5:9"}});
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  for (const char* word : {"min_gain: 0.1", "max_pause_seconds: 1.5", "layers_per_chunk: 4",
                           "freeze_steps: \"5:9\""}) {
    EXPECT_THAT(daemon_.last_admin_request, HasSubstr(word));
  }
}

TEST_F(ChangeTest, ASettingIsGivenOnceWithOrWithoutItsTable) {
  const Output output = RunSetPolicy(
      {.change = Options(), .settings = {"policy.min_gain=0.1", "mode=apply", "min_gain=0.2"}});
  EXPECT_EQ(output.exit_code, kUsage);
  EXPECT_EQ(output.message, "min_gain is given twice");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ARefusalIsAConflict) {
  daemon_.failure = {grpc::StatusCode::ABORTED, "version 4 is in force, not 3"};
  ChangeOptions change = Options();
  change.job = kJob;
  change.expect_version = 3;
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kConflict);
  EXPECT_EQ(output.message, "version 4 is in force, not 3");
  EXPECT_EQ(output.out, "");
}

TEST_F(ChangeTest, AChangeGoesNoFurtherThanADaemonThatMayHaveMadeIt) {
  ScriptedQuery silent;
  silent.answers = 0;
  ChangeOptions change = Options();
  change.job = kJob;
  change.expect_version = 3;
  change.query.timeout = "500ms";
  change.query.endpoint = silent.endpoint() + "," + daemon_.endpoint();
  EXPECT_EQ(RunPause(change).exit_code, kTimeout);
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ADaemonThatIsAwayHasNotMadeTheChange) {
  ChangeOptions change = Options();
  {
    ScriptedQuery gone;
    change.query.endpoint = gone.endpoint() + "," + daemon_.endpoint();
  }
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_NE(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, AVersionThatWasNotGivenIsAskedForAgainWhenItMoved) {
  daemon_.stale_answers = 2;
  const Output output = RunPause(Options());
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_EQ(daemon_.stale_answers, 0);
  daemon_.stale_answers = 1;
  ChangeOptions change = Options();
  change.expect_version = 3;
  EXPECT_EQ(RunPause(change).exit_code, kConflict);
  daemon_.stale_answers = 1000;  // a daemon that never stands still
  EXPECT_EQ(RunPause(Options()).exit_code, kConflict);
}

TEST_F(ChangeTest, WhatTheDaemonCannotDoIsNoUnreachableDaemon) {
  daemon_.failure = {grpc::StatusCode::UNAVAILABLE, "it cannot be stored: the disk is full"};
  ChangeOptions change = Options();
  change.job = kJob;
  change.expect_version = 3;
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_EQ(output.message, daemon_.endpoint() + ": it cannot be stored: the disk is full");
}

TEST_F(ChangeTest, ADryRunIsAPreviewOfTheSameRequest) {
  ChangeOptions change = Options();
  change.dry_run = true;
  daemon_.admin_answer.set_outcome("set min_gain=0.1 (was min_gain=0.05) by local");
  daemon_.admin_answer.set_before("min_gain=0.05");
  daemon_.admin_answer.set_after("min_gain=0.1");
  const Output output = RunSetPolicy({.change = change, .settings = {"min_gain=0.1"}});
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_EQ(output.out,
            "nothing is changed; it would be so: train: set min_gain=0.1 (was min_gain=0.05) by "
            "local (IDLE, version 3)\n  in force  min_gain=0.05\n  after     min_gain=0.1\n");
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("set_policy {"));
  change.query.format = Format::kJson;
  change.job = kJob;
  const Output paused = RunPause(change);
  EXPECT_THAT(paused.out, HasSubstr("\"dry_run\":true"));
  EXPECT_THAT(paused.out, Not(HasSubstr("request_id")));
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("pause {"));
  RunResume(change);
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("resume {"));
  RunRollback({.change = change, .to = 1});
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("rollback {"));
  RunForget({.change = change});
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("forget {"));
}

TEST_F(ChangeTest, ADryRunOfARebalanceShowsTheDecision) {
  v1::Plan plan;
  plan.set_plan(8);
  plan.set_asked_by("ann");
  plan.set_reason("would have rebalanced, peak GPU load falls by 12 %");
  plan.set_result(v1::PLAN_RESULT_OBSERVED);
  daemon_.decides = {plan};
  ChangeOptions change = Options();
  change.dry_run = true;
  const Output output = RunRebalance({.change = change});
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_EQ(output.out,
            "nothing is changed; it would be so: plan 8 observed: would have rebalanced, peak GPU "
            "load falls by 12 %\n");
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("rebalance {"));
  daemon_.plans.clear();
  daemon_.decides.front().set_result(v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(RunRebalance({.change = change}).exit_code, kConditionNotMet);
}

TEST_F(ChangeTest, AnOlderDaemonRefusesADryRunAndChangesNothing) {
  daemon_.previews = false;
  ChangeOptions change = Options();
  change.dry_run = true;
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_EQ(output.message, "this daemon is older than --dry-run; nothing was changed");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ACommentThatIsNotUtf8IsRefusedBeforeAnythingIsAsked) {
  ChangeOptions change = Options();
  change.comment = "night \xff";
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kUsage);
  EXPECT_EQ(output.message, "--comment is not UTF-8");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, WithoutAnAnswerTheOutcomeIsNotKnown) {
  daemon_.answers = 0;
  ChangeOptions change = Options();
  change.query.timeout = "200ms";
  change.job = kJob;
  change.expect_version = 3;
  change.request_id = "r-2";
  const Output output = RunPause(change);
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_THAT(output.message, HasSubstr("whether request r-2 was executed is not known"));
}

}  // namespace

}  // namespace eplb::cli
