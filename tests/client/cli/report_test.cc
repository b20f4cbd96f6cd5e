#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "client/cli/commands.h"
#include "client/cli/report_forms.h"
#include "client/cli/run_review.h"
#include "placement/split/batch_split.h"
#include "tests/client/cli/small_run.h"

namespace eplb::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Terminal kWide{.width = 200};

v1::RunReview ReviewOf(const RunDirectory& run) { return ReviewRun(run, 4).value(); }

std::string TextOf(const RunDirectory& run) { return ReportText(run, ReviewOf(run), kWide); }

TEST(ReportCommandTest, AGainThatNoRunCanReachOrMissIsRefused) {
  for (const double gain : {std::nan(""), -0.1, 1.1, std::numeric_limits<double>::infinity()}) {
    const Output output = RunReportCommand({.directory = "/nonexistent", .min_gain = gain}, kWide);
    EXPECT_EQ(output.exit_code, kUsage);
    EXPECT_THAT(output.message, AllOf(HasSubstr("--min-gain is "), HasSubstr("expected 0..1")));
  }
  EXPECT_THAT(RunReportCommand({.directory = "/nonexistent", .min_gain = 0}, kWide).message,
              HasSubstr("/nonexistent"));
}

TEST(RunReviewTest, TheStaticLayoutsTimeIsThatOfTheSameStepsWithItsFullestGpus) {
  const v1::RunReview review = ReviewOf(SmallRun({{.step = 5}}));
  const v1::RunComparison& rows = review.comparison();
  // 6 steps of 50 ms and 6 of 30 ms, 11 boundaries of 2 ms and one of 10 ms.
  EXPECT_NEAR(review.time().measured_seconds(), 0.480 + 0.032, 1e-9);
  EXPECT_NEAR(review.time().boundary_seconds(), 0.032, 1e-9);
  EXPECT_NEAR(review.time().switch_seconds(), 0.010, 1e-9);
  EXPECT_NEAR(review.time().pause_seconds(), 0.006, 1e-9);
  EXPECT_NEAR(rows.static_predicted().total_seconds(), 12 * 0.050, 1e-9);
  EXPECT_NEAR(rows.deepseek_hindsight_predicted().total_seconds(), 12 * 0.030, 1e-9);
  EXPECT_NEAR(rows.run().step_seconds(), 0.030, 1e-9);  // compared from the first switch on
  EXPECT_EQ(rows.first_step(), 6);
}

TEST(RunReviewTest, ARunWithoutTokensHasNoFigures) {
  RunDirectory run = SmallRun({});
  for (Load& load : run.step_loads) load = *Load::FromCounts(LoadMatrix::Zero(1, 4));
  for (StepRecord& step : run.report.steps) {
    step.balancedness.reset();
    step.balancedness_static.reset();
  }
  const v1::RunReview review = ReviewOf(run);
  EXPECT_FALSE(review.has_time_saved());
  EXPECT_FALSE(review.comparison().run().has_slowdown());
  const std::string text = TextOf(run);
  EXPECT_THAT(text, HasSubstr("No step has tokens: there is nothing to compare."));
  for (const char* wrong : {"nan", "than without EPLB", "1.000", "GPU loads of layer"}) {
    EXPECT_THAT(text, Not(HasSubstr(wrong)));
  }
}

TEST(RunReviewTest, StepsWithoutTokensAreInNoMean) {
  const v1::RunReview busy = ReviewOf(SmallRun({}));
  RunDirectory run = SmallRun({});
  for (size_t i = 0; i < run.step_loads.size(); i += 2) {
    run.step_loads[i] = *Load::FromCounts(LoadMatrix::Zero(1, 4));
    run.report.steps[i].balancedness.reset();
    run.report.steps[i].balancedness_static.reset();
  }
  EXPECT_EQ(ReviewOf(run).comparison().run().slowdown(), busy.comparison().run().slowdown());
}

TEST(RunReviewTest, AReportedFigureThatDiffersIsNamed) {
  RunDirectory run = SmallRun({});
  run.report.steps[3].balancedness_static = 0.5;
  EXPECT_THAT(ReviewOf(run).problems(),
              ElementsAre("step 3: reported balancedness_static 0.500000 differs from the "
                          "recomputed 0.600000"));
  run = SmallRun({});
  for (StepRecord& step : run.report.steps) step.peak_tokens = -5;
  EXPECT_THAT(ReviewOf(run).problems(),
              ElementsAre(HasSubstr("reported peak_tokens of all steps -60 "
                                    "differs from the recomputed 240")));
}

TEST(RunReviewTest, WorkThatTakesLongerThanTheModelsStepIsNotGivenToThePlacement) {
  RunDirectory run = SmallRun({{.step = 5}});
  for (StepRecord& step : run.report.steps) {
    step.work_seconds = 0.060;  // whatever the placement
    step.seconds = 0.062;
  }
  const v1::RunReview review = ReviewOf(run);
  EXPECT_EQ(review.time().steps_over_model(), kSmallSteps);
  EXPECT_NEAR(review.comparison().static_predicted().total_seconds(), 12 * 0.060, 1e-9);
  EXPECT_THAT(TextOf(run), HasSubstr("In 12 of 12 steps this machine needed"));
}

TEST(RunReviewTest, OtherPoliciesBytesArePricedByTheRunsOwn) {
  const v1::RunComparison rows = ReviewOf(SmallRun({{.step = 5}})).comparison();
  EXPECT_EQ(rows.run().transfers(), 2);
  EXPECT_EQ(rows.run().bytes_moved(), 2000000);
  EXPECT_EQ(rows.deepseek_same_windows_predicted().bytes_moved(), 2000000);
  EXPECT_EQ(rows.static_predicted().bytes_moved(), 0);
  const v1::RunComparison still = ReviewOf(SmallRun({})).comparison();
  EXPECT_FALSE(still.deepseek_same_windows_predicted().has_bytes_moved());
}

TEST(RunReviewTest, StepsThatOperatorsHeldBackAreNotCompared) {
  RunDirectory run = SmallRun({{.step = 5}, {.step = 8, .even = false, .decision = 2}});
  EXPECT_NEAR(ReviewOf(run).balancedness().run(), (3 * 1.0 + 3 * 0.6) / 6, 1e-9);
  run.events = LoggedEvents{"demo", {EventAt(run, 8, "pause")}};
  const v1::RunReview review = ReviewOf(run);
  EXPECT_EQ(review.comparison().steps(), 3);
  EXPECT_NEAR(review.balancedness().run(), 1, 1e-9);
  EXPECT_THAT(TextOf(run),
              AllOf(HasSubstr("held decisions back: 9..11 paused"),
                    HasSubstr("after step 8: pause by uid 1000 (alice): pause it is")));
}

TEST(RunReviewTest, WhereAllStepsWereHeldBackNoneIsLeftOut) {
  RunDirectory run = SmallRun({{.step = 5}});
  LoggedEvent resume = EventAt(run, 11, "resume");
  resume.before = "paused: paused by bob";
  run.events = LoggedEvents{"demo", {resume}};
  EXPECT_EQ(ReviewOf(run).operators().held_back_size(), 1);
  EXPECT_EQ(ReviewOf(run).comparison().steps(), 6);
  EXPECT_FALSE(LeavesStepsOut(ReviewOf(run)));
  EXPECT_THAT(TextOf(run), Not(HasSubstr("Left out of the comparison")));
}

TEST(RunDecisionsTest, ADecisionsPromiseStandsBesideWhatWasMeasuredUntilTheNext) {
  const v1::RunReview review =
      ReviewOf(SmallRun({{.step = 5}, {.step = 8, .even = false, .decision = 2}}));
  ASSERT_EQ(review.decisions_size(), 2);
  const v1::RunDecision& first = review.decisions(0);
  EXPECT_NEAR(first.plan().balancedness_before(), 0.6, 1e-12);
  EXPECT_NEAR(first.balancedness_computed(), 1, 1e-12);
  EXPECT_NEAR(first.balancedness_until_next(), 1, 1e-12);
  EXPECT_EQ(first.until_next_first_step(), 6);
  EXPECT_EQ(first.until_next_last_step(), 8);
  EXPECT_EQ(first.plan().transfers(), 2U);
  EXPECT_FALSE(first.plan().has_balancedness_seen()) << "no first window was looked for";
  const v1::RunDecision& second = review.decisions(1);
  EXPECT_NEAR(second.balancedness_until_next(), 0.6, 1e-12);
  EXPECT_EQ(second.until_next_last_step(), kSmallSteps - 1);
}

TEST(ReportTextTest, DecisionsAreTheTableThatADaemonsDecisionsHave) {
  EXPECT_THAT(TextOf(SmallRun({{.step = 5}})),
              HasSubstr("\nplan  steps  versions  measured  transfers  received   pause  computed  "
                        "until next  switched at\n"
                        "   1   0..3         1     0.600          2    2.0 MB  6.0 ms     1.000  "
                        "     1.000  5\n"));
}

// 8 tokens of expert 0 in two slots, 16 of expert 1: split exactly 4, 12 and 0, 8 of 12 a GPU; in
// equal shares 16 + 4 and 4.
RunDirectory SplitRun() {
  RunDirectory run = SmallRun({});
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  const Placement placement = Placement::Static(topology);
  run.placements[0].placement = placement;
  run.placements[0].digest = DigestOf(placement);
  run.report.split = SplitMode::kBatch;
  LoadMatrix counts(1, 3);
  counts << 8, 16, 0;
  run.step_loads.assign(kSmallSteps, *Load::FromCounts(counts));
  const auto split = EvaluateBatch(run.step_loads[0], placement);
  const auto equal = Evaluate(run.step_loads[0], placement);
  for (StepRecord& step : run.report.steps) {
    step.balancedness = split->mean_balancedness;
    step.balancedness_static = equal->mean_balancedness;
  }
  return run;
}

TEST(RunReviewTest, ARunThatSplitsItsStepsHasFourLines) {
  const v1::RunReview review = ReviewOf(SplitRun());
  const v1::RunBalancedness& all = review.balancedness();
  EXPECT_EQ(all.largest_difference_to_reported(), 0) << "recomputed from counts and placements";
  EXPECT_GT(all.run(), all.equal_shares());
  EXPECT_EQ(all.equal_shares(), all.static_()) << "it never moved";
  EXPECT_GE(all.split_hindsight(), all.run());
  EXPECT_EQ(all.without_eplb(), 0.5) << "experts 0 and 1 on GPU 0, expert 2 on GPU 1";
  const std::string text = TextOf(SplitRun());
  EXPECT_DOUBLE_EQ(review.time_saved(), 1 - 16.0 / 24);
  for (const char* line :
       {"\nwithout EPLB ", "\nstatic layout ", "\nequal shares, same placements ", "\nthis run ",
        "\nhindsight, 4 steps each "}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text,
              AllOf(HasSubstr("Objective: exact split per batch."), Not(HasSubstr("deepseek"))));
  EXPECT_THAT(TextOf(SmallRun({})), HasSubstr("Objective: equal shares."));
}

// Both were decided on the same steps: the operator's rollback is not the balancer's second chunk.
TEST(RunDecisionsTest, ARollbackOnTheSameStepsIsARowOfItsOwn) {
  const RunDirectory run = SmallRun({{.step = 5, .decision = 16},
                                     {.step = 7,
                                      .even = false,
                                      .decision = 17,
                                      .policy = "rollback",
                                      .asked_by = "uid 1000 (alice)"}});
  const v1::RunReview review = ReviewOf(run);
  ASSERT_EQ(review.decisions_size(), 2);
  EXPECT_THAT(review.decisions(0).switch_steps(), ElementsAre(5));
  EXPECT_THAT(review.decisions(1).switch_steps(), ElementsAre(7));
  EXPECT_EQ(review.rebalances(), 1);
  EXPECT_NEAR(review.balancedness().deepseek_same_windows(), (2 * 1.0 + 4 * 0.6) / 6,
              1e-9);  // rolled back as well
  EXPECT_THAT(TextOf(run),
              AllOf(HasSubstr("plan 16: because of decision 16"),
                    HasSubstr("plan 17 (asked for by uid 1000 (alice)): because of decision 17")));
}

TEST(RunDecisionsTest, ChunksOfADecisionAreOneRow) {
  const v1::RunReview review = ReviewOf(SmallRun({{.step = 5}, {.step = 7, .even = false}}));
  ASSERT_EQ(review.decisions_size(), 1);
  EXPECT_THAT(review.decisions(0).switch_steps(), ElementsAre(5, 7));
  EXPECT_EQ(review.decisions(0).plan().received_bytes(), 4000000U);
}

TEST(ReportTextTest, TheFirstLinesNameTheTimeWonAndWhatWasMeasured) {
  const std::string text = TextOf(SmallRun({{.step = 5}}));
  const std::string first = text.substr(text.find("\n\n") + 2, 200);
  EXPECT_THAT(first,
              HasSubstr("14.7 % less time than without EPLB: 0.5 s measured, 0.6 s predicted "
                        "for one slot per expert (17.2 % more steps per second)."));
  EXPECT_THAT(
      text, HasSubstr("1 pause to move experts took 6.0 ms (longest 6.0 ms); all boundaries, with "
                      "their votes, are 32.0 ms of the measured time. Planned in hindsight"));
}

TEST(ReportTextTest, ALossIsCalledALoss) {
  RunDirectory run = SmallRun({{.step = 5}});
  run.report.steps[5].boundary_seconds += 0.2;
  run.report.steps[5].seconds += 0.2;
  EXPECT_THAT(TextOf(run), HasSubstr("18.7 % more time than without EPLB"));
}

TEST(ReportTextTest, StepsThatDoNotLastInProportionToTheirLoadHaveNoSpeedUp) {
  RunDirectory run = SmallRun({{.step = 5}});
  run.report.even_step_seconds = 0;
  EXPECT_THAT(
      TextOf(run),
      AllOf(HasSubstr("The fullest GPUs of all steps had 20.0 % less load than without EPLB."),
            HasSubstr("No speed-up was measured"), Not(HasSubstr("less time"))));
}

TEST(ReportTextTest, WithoutEventsTheReportSaysThatPausesAreNotKnown) {
  RunDirectory run = SmallRun({{.step = 5}});
  EXPECT_THAT(TextOf(run), HasSubstr("known to the daemon alone"));
  run.events = LoggedEvents{"demo", {EventAt(run, 1, "run_started")}};
  EXPECT_THAT(TextOf(run), AllOf(HasSubstr("changed nothing"), Not(HasSubstr("daemon alone"))));
  run.events =
      LoggedEvents{"demo", {EventAt(run, 1, "vote_every_differs"), EventAt(run, 2, "run_started")}};
  EXPECT_THAT(TextOf(run), HasSubstr("changed nothing")) << "the daemon noted the start second";
}

TEST(ReportTextTest, ALogThatBeginsDuringTheRunIsNotCalledWithoutChanges) {
  RunDirectory run = SmallRun({{.step = 5}});
  run.events = LoggedEvents{"demo", {EventAt(run, 3, "kept")}};
  EXPECT_THAT(TextOf(run), AllOf(HasSubstr("does not show what was changed before step 4"),
                                 Not(HasSubstr("changed nothing"))));
  run.events = LoggedEvents{"demo", {EventAt(run, 3, "pause")}};
  EXPECT_THAT(TextOf(run), AllOf(HasSubstr("before step 4, where it begins"),
                                 HasSubstr("after step 3: pause by")));
  run.events = LoggedEvents{"demo", {}};
  EXPECT_THAT(TextOf(run), HasSubstr("does not show what was changed in any step of the run"));
}

}  // namespace
}  // namespace eplb::cli
