#include "client/cli/job_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

TEST(RankNamesTest, OneFewAndMany) {
  EXPECT_EQ(NameRanks({}, 0), "");
  EXPECT_EQ(NameRanks({3}, 9), "rank 3");
  EXPECT_EQ(NameRanks({0}, 1), "rank 0");
  EXPECT_EQ(NameRanks({0, 1}, 9), "ranks 0, 1");
  EXPECT_EQ(NameRanks({0, 1}, 2), "all 2 ranks");
  std::vector<uint32_t> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(NameRanks(ranks, 9), "ranks 0, 1, 2, 3, 4, 5, 6, 7");
  ranks.push_back(9);
  EXPECT_EQ(NameRanks(ranks, 10), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
  EXPECT_EQ(NameRanks(ranks, 9), "all 9 ranks");
}

TEST(JobTextTest, BalancednessHasFourNamesAndTheStepsThatWereMeasured) {
  v1::JobStatus job = ExampleJob();
  EXPECT_EQ(
      BalancednessText(job),
      "measured 0.7500 on steps 12200..12249 | without EPLB 0.6250 | static 0.6125 | predicted "
      "0.988 +- 0.030, seen 0.812 outside the error");
  job.set_balancedness_seen(0.96);
  EXPECT_THAT(BalancednessText(job), ::testing::EndsWith("predicted 0.988 +- 0.030, seen 0.960"));
  job.clear_balancedness_seen();
  EXPECT_EQ(
      BalancednessText(job),
      "measured 0.7500 on steps 12200..12249 | without EPLB 0.6250 | static 0.6125 | predicted "
      "0.988 +- 0.030");
  job.clear_prediction_error();
  EXPECT_THAT(BalancednessText(job), ::testing::EndsWith("| computed 0.988")) << "a rollback";
  job.clear_balancedness_static();
  job.clear_balancedness_without_eplb();
  EXPECT_EQ(BalancednessText(job),
            "measured 0.7500 on steps 12200..12249 | without EPLB -, a rank or the daemon is too "
            "old to report it | computed 0.988");
  job.clear_balancedness();
  EXPECT_EQ(BalancednessText(job), "measured - (no load window is complete yet) | computed 0.988");
  job.set_not_measured_reason("no tokens were counted in steps 0..9");
  job.clear_balancedness_predicted();
  EXPECT_EQ(BalancednessText(job), "measured - (no tokens were counted in steps 0..9)");
}

TEST(JobTextTest, AJobThatCountsNoTokensIsNotCountingBesideItsState) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(StateText(job), "IDLE");
  job.set_not_counting_reason("rank 1 has counted no token since step 0");
  job.set_paused(true);
  EXPECT_EQ(StateText(job), "IDLE (NOT_COUNTING, paused)");
  EXPECT_THAT(
      StateNotes(job, "train ", Terminal{.width = 160}),
      ::testing::StartsWith("train NOT_COUNTING: rank 1 has counted no token since step 0\n"));
}

TEST(JobTextTest, AJobThatIsWorseThanWithoutEplbIsNotedUntilItEnds) {
  v1::JobStatus job = ExampleJob();
  job.set_worse_reason("less even than without EPLB for 3 windows in a row");
  EXPECT_THAT(StateNotes(job, "train ", Terminal{.width = 200}),
              ::testing::HasSubstr("train WORSE: less even than without EPLB for 3 windows"));
  job.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_THAT(StateNotes(job, "", kPlain), ::testing::Not(::testing::HasSubstr("WORSE")));
}

TEST(JobTextTest, TimeLostIsATroubleOfARunningJobOnceItsSwitchIsNotRecent) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(TroubleOf(job).trouble, 0);
  job.set_saved_seconds(-2);
  EXPECT_EQ(TroubleOf(job).trouble, 1);
  job.set_step_seconds(1);
  job.set_last_switched_step(job.step() - 1799);
  EXPECT_FALSE(LostTime(job));
  EXPECT_EQ(TroubleOf(job).trouble, 0);
  EXPECT_THAT(SavedText(job), ::testing::HasSubstr("2.0 s LOST"));
  EXPECT_THAT(SavedText(job), ::testing::HasSubstr("may still pay back its pause"));
  job.set_last_switched_step(job.step() - 1800);
  EXPECT_TRUE(LostTime(job));
  job.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(TroubleOf(job).trouble, 0) << "nothing is left to do";
}

TEST(JobTextTest, AJobWithoutAllOfItsRanksIsOneToWatch) {
  v1::JobStatus job = HealthyJob();
  job.set_world_size(2);
  EXPECT_EQ(TroubleOf(job).text, "1 of 2 ranks are connected");
  job.set_connected_ranks(2);
  job.set_balancedness_without_eplb(0.8);
  EXPECT_EQ(TroubleOf(job).text, "less even than without EPLB");
}

TEST(JobTextTest, SlowAndStatedGpusAreNamedWithWhatDecisionsUse) {
  v1::JobStatus job = HealthyJob();
  v1::GpuSpeed* slow = job.add_gpu_speeds();
  slow->set_gpu(3);
  slow->set_measured(0.82);
  slow->set_in_use(1);
  slow->set_source("measured");
  slow->set_reason("GPU 3 runs at 0.82 of the median GPU");
  v1::GpuSpeed* avoided = job.add_gpu_speeds();
  avoided->set_gpu(7);
  avoided->set_in_use(0.31);
  avoided->set_source("avoided");
  Terminal terminal;
  terminal.width = 200;
  const std::string notes = StateNotes(job, "", terminal);
  EXPECT_THAT(notes, ::testing::HasSubstr("GPU 3 runs at 0.82 of the median GPU; decisions use no "
                                          "speed for it\n"));
  EXPECT_THAT(notes, ::testing::HasSubstr("GPU 7 is in avoid_gpus; its load is tokens / 0.31 in "
                                          "every figure\n"));
  for (uint32_t gpu = 8; gpu < 12; ++gpu) *job.add_gpu_speeds() = *avoided;
  EXPECT_THAT(StateNotes(job, "", terminal), ::testing::HasSubstr("and 2 more GPUs (-o json"));
}

TEST(JobTextTest, TheObjectiveIsHowTheRunSplitsAndWhatWasMeasuredOtherwiseIsNamed) {
  v1::JobStatus job = ExampleJob();
  EXPECT_EQ(ObjectiveText(job), "") << "no rank has registered";
  job.set_split("equal");
  job.set_measured_split("equal");
  EXPECT_EQ(ObjectiveText(job), "objective: equal shares");
  job.set_split("batch");
  EXPECT_EQ(ObjectiveText(job),
            "objective: exact split per batch; measured is of equal shares, for the ranks did not "
            "report splits of all tokens of these steps");
  job.set_measured_split("batch");
  EXPECT_EQ(ObjectiveText(job), "objective: exact split per batch");
}

TEST(JobTextTest, PausedAndObserveStandBesideTheState) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(StateText(job), "IDLE");
  EXPECT_EQ(StateNotes(job, "", kPlain), "");
  job.mutable_policy()->set_mode("observe");
  EXPECT_EQ(StateText(job), "IDLE (observe)");
  EXPECT_NE(StateNotes(job, "", kPlain), "");
  job.set_paused(true);
  EXPECT_EQ(StateText(job), "IDLE (paused, observe)");
  job.mutable_policy()->set_mode("apply");
  EXPECT_EQ(StateText(job), "IDLE (paused)");
}

TEST(JobTextTest, AJobWithoutARankSinceTheDaemonStartedWaitsAndHasNeitherStepNorRanks) {
  v1::JobStatus job = AbsentJob();
  EXPECT_EQ(StateText(job), "RECOVERING (waits)");
  EXPECT_EQ(StepText(job), "step -");
  EXPECT_EQ(RanksText(job), "");
  EXPECT_EQ(TroubleOf(job).trouble, 1);
  EXPECT_EQ(TroubleOf(job).text, "waits for the ranks to register");
  job.set_stuck_seconds(200);
  EXPECT_EQ(StateText(job), "RECOVERING (stuck)");
  EXPECT_EQ(TroubleOf(job).trouble, 2);
  EXPECT_EQ(TroubleOf(job).text,
            "stuck for 3m 20s: start the job again, or end it with eplbctl forget; waits for the "
            "ranks to register");
  EXPECT_EQ(StepText(ExampleJob()), "step 12,345");
  EXPECT_EQ(RanksText(ExampleJob()), "7/8");
}

TEST(JobTextTest, WhoPausedAJobAndWhyIsSaidOnce) {
  v1::JobStatus job = HealthyJob();
  job.set_paused(true);
  EXPECT_EQ(StateNotes(job, "", kPlain), "PAUSED\n");
  job.set_pause_reason("paused by alice: evaluation");
  EXPECT_EQ(StateNotes(job, "", kPlain), "PAUSED by alice: evaluation\n");
  job.set_pause_reason("rollback to version 9, by bob");
  EXPECT_EQ(StateNotes(job, "", kPlain), "PAUSED: rollback to version 9, by bob\n");
}

TEST(JobTextTest, ARunThatHasEndedIsNeitherPausedNorWaitsForAnybody) {
  v1::JobStatus job = ExampleJob();
  job.set_paused(true);
  job.mutable_policy()->set_mode("observe");
  for (const v1::RunEnding ending : {v1::RUN_ENDING_FINISHED, v1::RUN_ENDING_FAILED}) {
    job.set_ending(ending);
    job.set_end_reason("rank 2 was lost");
    const bool failed = ending == v1::RUN_ENDING_FAILED;
    job.set_state(failed ? v1::JOB_STATE_FAILED : v1::JOB_STATE_FINISHED);
    EXPECT_TRUE(HasEnded(job));
    EXPECT_EQ(StateText(job), failed ? "FAILED" : "FINISHED");
    EXPECT_EQ(StateNotes(job, "train ", kPlain),
              failed ? "train failed: rank 2 was lost\n" : "train finished: rank 2 was lost\n");
  }
  // It may come back.
  job.set_ending(v1::RUN_ENDING_LOST);
  job.set_state(v1::JOB_STATE_LOST);
  EXPECT_FALSE(HasEnded(job));
  EXPECT_THAT(StateNotes(job, "", kPlain), ::testing::HasSubstr("was lost: rank 2 was lost\n"));
  EXPECT_THAT(StateNotes(job, "", kPlain), ::testing::HasSubstr("waits for ranks 3, 5"));
}

TEST(JobTextTest, AStalledJobSaysSoBesideItsStateAndOnALineOfItsOwn) {
  v1::JobStatus job = HealthyJob();
  job.set_stalled("windows");
  job.set_stalled_reason("rank 1 is 2000 steps behind with its reports");
  job.set_paused(true);
  job.mutable_candidate()->set_run_id("run-2");
  job.set_refusal("rank 0 was refused: it has ended");
  job.set_refused_hellos(1);
  EXPECT_EQ(StateText(job), "IDLE (stalled, paused)");
  const std::string notes = StateNotes(job, "", kPlain);
  for (const char* line : {"STALLED (windows): rank 1 is 2000 steps behind with its reports\n",
                           "a newer run, run-2, is not balanced: ",
                           "refused 1 registration, the newest: rank 0 was refused: it has"}) {
    EXPECT_THAT(notes, ::testing::HasSubstr(line));
  }
  EXPECT_TRUE(FitsInto(notes, 80)) << notes;
}

}  // namespace

}  // namespace eplb::cli
