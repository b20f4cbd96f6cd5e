#include <gmock/gmock.h>
#include <unistd.h>

#include <string>

#include "base/json_value.h"
#include "client/cli/commands.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

// rebalance, pause, resume, rollback, set policy and forget.

namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ChangeTest : public ExampleJobTest {
 protected:
  ChangeTest() {
    daemon_.admin_answer.set_version(3);
    daemon_.admin_answer.set_state(v1::JOB_STATE_IDLE);
    daemon_.admin_answer.set_outcome("no more proposals until it is resumed");
  }
  ChangeOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format)};
  }

  static Output SetPolicy(ChangeOptions options, std::vector<std::string> settings) {
    options.settings = std::move(settings);
    return RunSetPolicy(options);
  }
  static void RollbackToFirst(ChangeOptions options) {
    options.to = 1;
    RunRollback(options);
  }

  ChangeOptions change_ = Options();
};

TEST_F(ChangeTest, AChangeNamesTheVersionThatWasJustSeenAndADrawnRequest) {
  EXPECT_EQ(TextOf(RunPause(Options())),
            "train: no more proposals until it is resumed (IDLE, version 3)\n");
  const std::string first = daemon_.last_admin_request;
  EXPECT_THAT(first, HasSubstr("expect_version: 3"));
  RunPause(Options());
  EXPECT_NE(daemon_.last_admin_request, first);  // another request_id
}

TEST_F(ChangeTest, AnUnknownSettingIsAnsweredWithTheKeysThatAreTaken) {
  EXPECT_THAT(SetPolicy(change_, {"foo=1"}).message,
              StartsWith("\"foo\": unknown setting, expected name, mode, "));
  EXPECT_THAT(SetPolicy(change_, {"policy.mde=observe"}).message,
              EndsWith(", did you mean policy.mode?"));
}

TEST_F(ChangeTest, FlagsGoIntoTheRequest) {
  ChangeOptions change = Options(Format::kJson);
  change.job = kJob;
  change.request_id = "r-1";
  change.expect_version = 2;
  change.comment = "night run";
  const Output output = RunResume(change);
  EXPECT_THAT(daemon_.last_admin_request,
              Says("request_id: \"r-1\"", "expect_version: 2", "comment: \"night run\""));
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(output.out), "request_id"), "r-1");
  change.force = true;
  RunRebalance(change);
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("force: true"));
  RollbackToFirst(change);
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("to_version: 1"));
  RunRollback(change);
  EXPECT_THAT(daemon_.last_admin_request, Not(HasSubstr("to_version")));
}

TEST_F(ChangeTest, TheCallerSaysWhoItIs) {
  RunPause(Options());
  std::string host(256, '\0');
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  EXPECT_THAT(daemon_.last_admin_request,
              Says(std::string("@") + host.c_str() + "\"", "claimed_by: \""));
}

TEST_F(ChangeTest, ForgetNamesItsJobAndNeverTakesTheOnlyOne) {
  const Output unnamed = RunForget(Options());
  EXPECT_EQ(unnamed.exit_code, kUsage);
  EXPECT_THAT(unnamed.message, HasSubstr("no job is named"));
  EXPECT_EQ(daemon_.last_admin_request, "");
  change_.job = kJob;
  TextOf(RunForget(change_));
  EXPECT_THAT(daemon_.last_admin_request, HasSubstr("job: \"train\""));
}

TEST_F(ChangeTest, SettingsAreSentAsTheyWereGivenAndOnlyThey) {
  TextOf(SetPolicy(Options(), {"policy.every_steps=100", "migration.max_pause=1.5s", "mode=observe",
                               "policy.freeze_steps=5:9"}));
  EXPECT_THAT(daemon_.last_admin_request, Says("every_steps: 100", "max_pause_seconds: 1.5",
                                               "mode: \"observe\"", "freeze_steps: \"5:9\""));
  EXPECT_THAT(daemon_.last_admin_request, Not(HasSubstr("min_gain")));
}

TEST_F(ChangeTest, SetPolicyShowsWhatWasAndWhatIsInForce) {
  daemon_.admin_answer.set_outcome("set min_gain=0.1 (was min_gain=0.05) by local");
  daemon_.admin_answer.set_before("min_gain=0.05");
  daemon_.admin_answer.set_after("min_gain=0.1");
  EXPECT_EQ(SetPolicy(Options(), {"min_gain=0.1"}).out,
            "train: set min_gain=0.1 (was min_gain=0.05) by local (IDLE, version 3)\n"
            "  before    min_gain=0.05\n"
            "  current   min_gain=0.1\n");
  const Output json = SetPolicy(Options(Format::kJson), {"min_gain=0.1"});
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(json.out), "before"), "min_gain=0.05");
  EXPECT_EQ(*wire::GetString(*wire::ParseJson(json.out), "after"), "min_gain=0.1");
}

TEST_F(ChangeTest, ASettingThatCannotBeMeantIsRefusedBeforeAnythingIsAsked) {
  // Ranges and forms of each value are those of proto/wire/settings.cc.
  for (const char* bad : {"", "=", "every_steps", "every_steps=", "every_steps=+50", "min_gain=2",
                          "freeze_steps=5: 9", "max_pause=2h", "colour=red", "limits.min_gain=0.5",
                          "policy.max_pause=50ms", ".mode=apply", "policy.policy.mode=apply"}) {
    const Output output = SetPolicy(Options(), {bad});
    EXPECT_EQ(output.exit_code, kUsage) << bad;
    EXPECT_THAT(output.message, HasSubstr("expected")) << bad;
  }
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ASettingIsGivenOnceWithOrWithoutItsTable) {
  const Output output = SetPolicy(Options(), {"policy.min_gain=0.1", "mode=apply", "min_gain=0.2"});
  EXPECT_EQ(output.exit_code, kUsage);
  EXPECT_EQ(output.message, "min_gain is given twice");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, AChangeGoesNoFurtherThanADaemonThatMayHaveMadeIt) {
  ScriptedQuery silent;
  silent.answers = 0;
  change_.job = kJob;
  change_.expect_version = 3;
  change_.query.timeout = "500ms";
  change_.query.endpoint = silent.endpoint() + "," + daemon_.endpoint();
  EXPECT_EQ(RunPause(change_).exit_code, kTimeout);
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ADaemonThatIsAwayHasNotMadeTheChange) {
  {
    ScriptedQuery gone;
    change_.query.endpoint = gone.endpoint() + "," + daemon_.endpoint();
  }
  TextOf(RunPause(change_));
  EXPECT_NE(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, AVersionThatWasNotGivenIsAskedForAgainWhenItMoved) {
  daemon_.stale_answers = 2;
  TextOf(RunPause(Options()));
  EXPECT_EQ(daemon_.stale_answers, 0);
  daemon_.stale_answers = 1;
  change_.expect_version = 3;
  EXPECT_EQ(RunPause(change_).exit_code, kConflict);
  daemon_.stale_answers = 1000;  // a daemon that never stands still
  EXPECT_EQ(RunPause(Options()).exit_code, kConflict);
}

TEST_F(ChangeTest, ADryRunIsAPreviewOfTheSameRequest) {
  change_.dry_run = true;
  daemon_.admin_answer.set_outcome("set min_gain=0.1 (was min_gain=0.05) by local");
  daemon_.admin_answer.set_before("min_gain=0.05");
  daemon_.admin_answer.set_after("min_gain=0.1");
  const std::string output = TextOf(SetPolicy(change_, {"min_gain=0.1"}));
  EXPECT_EQ(output,
            "nothing is changed; it would be so: train: set min_gain=0.1 (was min_gain=0.05) by "
            "local (IDLE, version 3)\n  current   min_gain=0.05\n  after     min_gain=0.1\n");
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("set_policy {"));
  change_.query.format = Format::kJson;
  change_.job = kJob;
  const Output paused = RunPause(change_);
  EXPECT_THAT(paused.out, HasSubstr("\"dry_run\":true"));
  EXPECT_THAT(paused.out, Not(HasSubstr("request_id")));
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("pause {"));
  RunResume(change_);
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("resume {"));
  RollbackToFirst(change_);
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("rollback {"));
  RunForget(change_);
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("forget {"));
}

TEST_F(ChangeTest, ADryRunOfARebalanceShowsTheDecision) {
  v1::Plan plan;
  plan.set_plan(8);
  plan.set_asked_by("ann");
  plan.set_reason("would have rebalanced, peak GPU load falls by 12 %");
  plan.set_result(v1::PLAN_RESULT_OBSERVED);
  daemon_.decides = {plan};
  change_.dry_run = true;
  const std::string output = TextOf(RunRebalance(change_));
  EXPECT_EQ(output,
            "nothing is changed; it would be so: plan 8 observed: would have rebalanced, peak GPU "
            "load falls by 12 %\n");
  EXPECT_THAT(daemon_.last_admin_request, StartsWith("rebalance {"));
  daemon_.plans.clear();
  daemon_.decides.front().set_result(v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(RunRebalance(change_).exit_code, kConditionNotMet);
}

TEST_F(ChangeTest, AnOlderDaemonRefusesADryRunAndChangesNothing) {
  daemon_.previews = false;
  change_.dry_run = true;
  const Output output = RunPause(change_);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_EQ(output.message, "this daemon is older than --dry-run; nothing was changed");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, ACommentThatIsNotUtf8IsRefusedBeforeAnythingIsAsked) {
  change_.comment = "night \xff";
  const Output output = RunPause(change_);
  EXPECT_EQ(output.exit_code, kUsage);
  EXPECT_EQ(output.message, "--comment is not UTF-8");
  EXPECT_EQ(daemon_.last_admin_request, "");
}

TEST_F(ChangeTest, WithoutAnAnswerTheOutcomeIsNotKnown) {
  daemon_.answers = 0;
  change_.query.timeout = "200ms";
  change_.job = kJob;
  change_.expect_version = 3;
  change_.request_id = "r-2";
  const Output output = RunPause(change_);
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_THAT(output.message, HasSubstr("whether request r-2 was executed is not known"));
}

}  // namespace

}  // namespace eplb::cli
