// Measured figures equal what happened: windows under the placements that their steps ran under,
// through the whole core.
#include "server/core/values/measured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placement/evaluate.h"
#include "tests/server/core/core_harness.h"
#include "tests/support/messages.h"

namespace eplb::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kStatic = 0.4;              // balancedness of 200, 20, 20 tokens
constexpr double kEven = 80.0 / 110;         // balancedness of 110, 110, 20 tokens
constexpr double kHalf = (0.4 + kEven) / 2;  // two layers of each

std::shared_ptr<const Placement> Shared(Placement placement) {
  return std::make_shared<const Placement>(std::move(placement));
}

// The job decides on steps 0..9 and switches all layers, in two chunks, after steps 12 and 14.
TestJob Switched() {
  ProposedJob job(Exchanged({0, 1, 2, 3}));
  job.CommitAll(12);
  return job;
}

// A rank's report of steps 10..19 of a job that switched after steps 12 and 14.
wire::LoadReport MixedReport() {
  wire::LoadReport report = TestReport(10, 19);
  report.version = 2;
  report.earlier = {
      {.last_step = 12, .version = 0, .counts = LoadMatrix::Zero(4, 6)},
      {.last_step = 14, .version = 1, .counts = LoadMatrix::Zero(4, 6)},
  };
  report.earlier[0].counts.leftCols(2) = 60;
  report.earlier[1].counts.rightCols(4) = 10;
  return report;
}

void SayAll(TestJob& job, const wire::LoadReport& report) { job.SayAll(report); }

TEST(MeasuredTest, ASwitchChangesNothingThatWasMeasuredBeforeIt) {
  const TestJob job = Switched();
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.version(), 2);
  EXPECT_NEAR(view.balancedness(), kStatic, 1e-9) << "the new placement has run no step of it";
  EXPECT_EQ(view.measured_first_step(), 0);
  EXPECT_EQ(view.measured_last_step(), 9);
  EXPECT_NEAR(view.balancedness_predicted(), (kStatic + kEven) / 2, 1e-9);
  EXPECT_FALSE(view.has_prediction_error()) << "no prediction was compared yet";
  EXPECT_TRUE(view.has_prediction_evidence() && view.prediction_evidence() == 0);
  EXPECT_FALSE(view.has_balancedness_seen());
}

TEST(MeasuredTest, AWindowWithSwitchesCountsEachStepUnderItsOwnPlacement) {
  TestJob job = Switched();
  SayAll(job, MixedReport());
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.measured_first_step(), 10);
  // From each 100 tokens of experts 0 and 1, 60 ran on GPU 0 in every layer. The other 40 ran under
  // version 2, with expert 1 on GPU 1. Experts 2 .. 5 ran 10 tokens each under version 1, under
  // which layers 0 and 1 have expert 2 on GPU 0.
  RealMatrix gpu_loads(4, 3);
  gpu_loads.row(0) << 60 + 60 + 40 + 10, 40 + 10, 20;
  gpu_loads.row(1) = gpu_loads.row(0);
  gpu_loads.row(2) << 60 + 60 + 40, 40 + 10 + 10, 20;
  gpu_loads.row(3) = gpu_loads.row(2);
  gpu_loads *= 3;  // ranks
  const Evaluation expected = EvaluateGpuLoads(gpu_loads, 3);
  EXPECT_NEAR(view.balancedness(), *expected.mean_balancedness, 1e-12);
  ASSERT_EQ(view.layer_balancedness_size(), 4);
  EXPECT_NEAR(view.layer_balancedness(2), *expected.balancedness[2], 1e-12);
  EXPECT_NEAR(view.balancedness_static(), kStatic, 1e-9);
  const WindowView window = job.daemon.core().NewestWindow(kJob).value();
  ASSERT_NE(window.on_gpus, nullptr);
  EXPECT_TRUE(window.on_gpus->loads.isApprox(gpu_loads));
  EXPECT_EQ(window.on_gpus->versions, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_FALSE(view.has_balancedness_seen()) << "not all of its steps ran under version 2";
}

TEST(MeasuredTest, WhatFollowedAPredictionIsOfTheFirstWindowAllUnderItsLastPlacement) {
  TestJob job = Switched();
  job.Report(20, 29);
  v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.plan(), 1);
  EXPECT_NEAR(plan.balancedness_seen(), kEven, 1e-9);
  EXPECT_EQ(plan.seen_first_step(), 20);
  EXPECT_EQ(plan.seen_last_step(), 29);
  EXPECT_EQ(job.daemon.plans().at(1), plan) << "stored";
  EXPECT_EQ(job.daemon.View().balancedness_seen(), plan.balancedness_seen());
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  job.Report(30, 39);
  EXPECT_EQ(job.daemon.plans().at(1).seen_first_step(), 20) << "the first one stays";
}

TEST(MeasuredTest, APlanThatAnotherFollowedAtOnceHasSeenNothing) {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  TestJob job(config);
  job.Propose(Exchanged({0, 1}));
  for (const int64_t step : {14, 24}) {
    job.Deliver();
    ASSERT_TRUE(job.VoteAndDeliver(step));
    wire::LoadReport mixed = TestReport(step - 4, step + 5);
    mixed.version = job.ranks[0].version;
    mixed.earlier = {{.last_step = step, .version = mixed.version - 1, .counts = mixed.counts / 2}};
    SayAll(job, mixed);
    ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  }
  job.Report(30, 39);
  EXPECT_FALSE(job.daemon.plans().at(1).has_balancedness_seen());
  EXPECT_NEAR(job.daemon.plans().at(2).balancedness_seen(), kEven, 1e-9);
  EXPECT_EQ(job.daemon.plans().at(3).result(), v1::PLAN_RESULT_KEPT);
  EXPECT_NEAR(job.daemon.View().balancedness_seen(), kEven, 1e-9) << "of plan 2";
}

TEST(MeasuredTest, BetweenTwoChunksAWindowIsWhatFollowedSoFarUntilTheNextOne) {
  PreparedJob job(Exchanged({0, 1, 2, 3}));
  ASSERT_TRUE(job.VoteAndDeliver(9));
  job.Report(10, 19);
  EXPECT_NEAR(job.NewestPlan().balancedness_seen(), kHalf, 1e-9);
  ASSERT_TRUE(job.VoteAndDeliver(19));
  EXPECT_FALSE(job.NewestPlan().has_balancedness_seen()) << "it is of a placement in between";
  job.Report(20, 29);
  EXPECT_NEAR(job.NewestPlan().balancedness_seen(), kEven, 1e-9);
}

TEST(MeasuredTest, ADecisionIsComparedWithWhatWasMeasuredAndWithThePlacementInForce) {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  TestJob job(config);
  job.Propose(Exchanged({0, 1}));
  EXPECT_NEAR(job.NewestPlan().balancedness_before(), kStatic, 1e-9);
  EXPECT_NEAR(job.NewestPlan().balancedness_in_force(), kStatic, 1e-9);
  job.Deliver();
  ASSERT_TRUE(job.VoteAndDeliver(14));
  wire::LoadReport mixed = TestReport(10, 19);
  mixed.version = 1;
  mixed.earlier = {{.last_step = 14, .version = 0, .counts = mixed.counts / 2}};
  SayAll(job, mixed);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.plan(), 2);
  EXPECT_NEAR(plan.balancedness_in_force(), kHalf, 1e-9);
  const double mixed_layer = 80.0 / 155;  // half of 200, 20, 20 and half of 110, 110, 20
  EXPECT_NEAR(plan.balancedness_before(), (mixed_layer + kStatic) / 2, 1e-9);
}

TEST(MeasuredTest, AfterARestartNothingIsMeasuredThatThePlacementIsNotKnownOf) {
  TestJob job = Switched();
  job.daemon.Restart();
  for (FakeRank& rank : job.ranks) rank.session = 0;
  job.ConnectAll();
  SayAll(job, MixedReport());
  v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.last_window_last_step(), 19);
  EXPECT_FALSE(view.has_balancedness()) << "versions 0 and 1 were before this daemon";
  EXPECT_EQ(job.daemon.core().NewestWindow(kJob)->on_gpus, nullptr);
  EXPECT_EQ(job.daemon.core().counters().windows_unmeasured, 1);
  job.Report(20, 29);
  view = job.daemon.View();
  EXPECT_NEAR(view.balancedness(), kEven, 1e-9);
  EXPECT_NEAR(view.balancedness_seen(), kEven, 1e-9);
}

TEST(MeasuredTest, RanksThatDisagreeLeaveTheWindowUnmeasuredAndAreNamedOnce) {
  TestJob job = Switched();
  for (const int64_t first : {20, 30}) {
    for (const FakeRank& rank : job.ranks) {
      wire::LoadReport report = TestReport(first, first + 9);
      report.version = rank.identity.rank == 1 ? 1 : 2;
      job.daemon.Say(rank.session, report);
    }
  }
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.last_window_last_step(), 39) << "windows are complete and decided on all the same";
  EXPECT_EQ(view.measured_last_step(), 9) << "the newest one that is known stays";
  EXPECT_NEAR(view.balancedness(), kStatic, 1e-9);
  EXPECT_EQ(job.daemon.CountEvents("placements_differ"), 1);
  EXPECT_EQ(job.daemon.LastReason("placements_differ"),
            "steps 20..29: rank 1 does not report the placements that the other ranks report "
            "for these steps; the balancedness of such windows is not known");
}

TEST(MeasuredTest, ARankThatHadTooManyPartsLeavesTheWindowUnmeasured) {
  TestJob job = Switched();
  wire::LoadReport report = TestReport(20, 29);
  report.version = 2;
  report.parts_unknown = true;
  SayAll(job, report);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 29);
  EXPECT_EQ(job.daemon.View().measured_last_step(), 9);
  EXPECT_EQ(job.daemon.CountEvents("placements_differ"), 0);
}

TEST(MeasuredTest, TheStaticLayoutIsEvaluatedAsItsPlacementIs) {
  for (const auto& [num_slots, num_gpus] : {std::pair{7, 7}, {8, 3}, {17, 4}, {21, 3}}) {
    const Topology topology =
        Topology::Make(
            {.num_layers = 2, .num_experts = 7, .num_slots = num_slots, .num_gpus = num_gpus})
            .value();
    LoadMatrix counts(2, 7);
    counts << 31, 0, 5, 17, 3, 44, 2, 1, 9, 60, 13, 0, 8, 77;
    const Load load = Load::FromCounts(counts).value();
    const Placement placement = Placement::Static(topology);
    std::vector<double> values(static_cast<size_t>(num_gpus), 1);
    values.back() = 0.7;
    const GpuSpeeds speeds = GpuSpeeds::Make(num_gpus, values, {}).value();
    for (const GpuSpeeds* used : {static_cast<const GpuSpeeds*>(nullptr), &speeds}) {
      const Evaluation expected = Evaluate(load, placement, {.speeds = used}).value();
      const GpuTokens tokens{.loads = Evaluate(load, placement).value().gpu_loads, .versions = {0}};
      EXPECT_EQ(Measure(load, tokens, nullptr, topology, used).value().balancedness_static,
                expected.mean_balancedness);
    }
  }
}

TEST(MeasuredTest, WithoutEplbEachExpertHasOneSlotWhereTheStaticLayoutDoublesTheFirstOnes) {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 6, .num_gpus = 2}).value();
  LoadMatrix counts(1, 4);
  counts << 8, 0, 0, 8;
  const Load load = Load::FromCounts(counts).value();
  GpuTokens tokens;
  tokens.loads = RealMatrix::Constant(1, 2, 8);
  const Measured measured = Measure(load, tokens, nullptr, topology).value();
  EXPECT_EQ(measured.balancedness, 1);
  EXPECT_EQ(measured.balancedness_static, 8.0 / 12) << "GPU 1 has expert 3 and half of expert 0";
  EXPECT_EQ(measured.balancedness_without_eplb, 1);
  EXPECT_EQ(measured.peak_load_without_eplb, 8);
}

TEST(MeasuredTest, AJobThatStaysWorseThanWithoutEplbIsNamedAndItsDecisionsExplainIt) {
  TestJob job;
  job.SetRunning(Exchanged({0, 1, 2, 3}), 3);  // experts 0 and 2 share GPU 0
  job.ConnectAll();
  const auto say = [&job](int64_t first_step) {
    wire::LoadReport report = TestReport(first_step, first_step + 9);
    report.version = 3;
    report.counts.setConstant(10);
    report.counts.col(0).setConstant(100);
    report.counts.col(2).setConstant(100);
    SayAll(job, report);
  };
  say(0);
  say(10);
  EXPECT_NEAR(job.daemon.View().balancedness(), 0.4, 1e-9);
  EXPECT_NEAR(job.daemon.View().balancedness_without_eplb(), kEven, 1e-9);
  EXPECT_EQ(job.daemon.View().worse_reason(), "") << "two windows may be chance";
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_THAT(job.NewestPlan().reason(), Not(HasSubstr("without EPLB")));
  say(20);
  const std::string worse =
      "less even than without EPLB for 3 windows in a row: balancedness 0.400 against 0.727 on "
      "steps 20..29";
  EXPECT_EQ(job.daemon.View().worse_reason(), worse);
  say(30);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  EXPECT_THAT(job.NewestPlan().reason(), HasSubstr("; less even than without EPLB for 4 windows"));
  job.Report(40, 49);  // experts 0 and 1: even under this placement
  EXPECT_EQ(job.daemon.View().worse_reason(), "");
}

TEST(MeasuredTest, TheAccountIsWhatWasMeasuredAgainstOneSlotPerExpert) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-6;
  TestJob job(config);
  job.SetRunning(Exchanged({0, 1, 2, 3}), 3);
  job.ConnectAll();
  job.Report(0, 9);
  EXPECT_NEAR(job.daemon.View().saved_seconds(), 4 * 3 * (200 - 110) * 1e-6, 1e-12);
  EXPECT_FALSE(job.daemon.View().has_spent_seconds()) << "nothing was switched";
  const TestJob unpriced = Switched();
  EXPECT_FALSE(unpriced.daemon.View().has_saved_seconds());
  EXPECT_EQ(unpriced.daemon.View().spent_seconds(), 0.5) << "two chunks of 0.25 s";
}

TEST(MeasuredTest, AnAccountThatAnOlderDaemonCountedOtherwiseIsNotContinued) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-6;
  for (const bool older : {false, true}) {
    TestJob job(config);
    job.ConnectAll();
    wire::LoadReport even = TestReport(0, 9);
    even.counts.setConstant(10);
    SayAll(job, even);
    std::map<std::string, StoredJob> stored = job.daemon.stored();
    stored.at(kJob).memory.account_windows = 7;
    stored.at(kJob).memory.account_saved_peak_tokens = 5e6;
    if (older) stored.at(kJob).memory.account_saved_peak_tokens.reset();
    job.daemon.RestoreStore(stored, job.daemon.stored_term());
    for (FakeRank& rank : job.ranks) {
      rank.session = 0;
      rank.identity.memory = {};
    }
    job.ConnectAll();
    EXPECT_EQ(job.daemon.View().has_saved_seconds(), !older);
    EXPECT_EQ(job.daemon.View().saved_seconds(), older ? 0 : 5);
  }
}

TEST(RunPlacementsTest, TheNewestAreKeptUntilNoWindowCanTellOfThem) {
  RunPlacements placements;
  const auto one = Shared(Exchanged({}));
  for (int64_t version = 0; version < 100; ++version) placements.Add(version, one);
  EXPECT_EQ(placements.Find(100 - int64_t{RunPlacements::kMax} - 1), nullptr);
  EXPECT_EQ(placements.Find(99), one.get());
  const auto other = Shared(Exchanged({1}));
  placements.Add(99, other);
  EXPECT_EQ(placements.Find(99), one.get()) << "a version stands for one placement";
  placements.DropBelow(99);
  EXPECT_EQ(placements.Find(98), nullptr);
  EXPECT_EQ(placements.Find(99), one.get());
}

// Ranks that split each batch and report it: 720 tokens a layer, of which the fullest GPU of each
// batch has 640 in all: as one batch it would have 600.
TestJob SplitJob(const Config& config = TestConfig()) {
  TestJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.split = SplitMode::kBatch;
  job.ConnectAll();
  return job;
}

wire::LoadReport SplitReport(int64_t first_step, int64_t last_step) {
  wire::LoadReport report = TestReport(first_step, last_step);
  report.split_tokens.assign(4, 720);
  report.split_peaks.assign(4, 640);
  report.split_peaks_static.assign(4, 660);
  report.split_peaks_without_eplb.assign(4, 680);
  return report;
}

TEST(MeasuredTest, OfAJobThatSplitsBatchesWhatTheSplitsGaveIsMeasured) {
  TestJob job = SplitJob();
  SayAll(job, SplitReport(0, 9));
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.split(), "batch");
  EXPECT_EQ(view.measured_split(), "batch");
  EXPECT_NEAR(view.balancedness(), 240.0 / 640, 1e-12);
  EXPECT_THAT(view.layer_balancedness(), ElementsAre(0.375, 0.375, 0.375, 0.375));
  EXPECT_NEAR(view.balancedness_static(), 240.0 / 660, 1e-12) << "of the batches, too";
  EXPECT_NEAR(view.balancedness_without_eplb(), 240.0 / 680, 1e-12);
  EXPECT_EQ(job.daemon.core().NewestWindow(kJob)->on_gpus, nullptr) << "not known of a batch";
  job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3}));
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.split(), "batch");
  EXPECT_NEAR(plan.balancedness_before(), 240.0 / 640, 1e-12) << "measured";
  // Nothing was measured of batches before, so its scale is that of this window: .375 / .4.
  EXPECT_NEAR(plan.balancedness_predicted(), (0.375 + 0.9375 * kEven) / 2, 1e-9)
      << "no replica: nothing to split; of the first prediction half the gain is counted";
}

TEST(MeasuredTest, PeaksOfBatchesThatAnOlderLibraryDoesNotReportAreNotReplacedByThoseOfTheWindow) {
  Config config = TestConfig();
  config.costs.token_seconds = 1e-6;
  TestJob job = SplitJob(config);
  wire::LoadReport older = SplitReport(0, 9);
  older.split_peaks_static.clear();
  older.split_peaks_without_eplb.clear();
  SayAll(job, older);
  v1::JobStatus view = job.daemon.View();
  EXPECT_NEAR(view.balancedness(), 240.0 / 640, 1e-12);
  EXPECT_FALSE(view.has_balancedness_static());
  EXPECT_FALSE(view.has_balancedness_without_eplb());
  EXPECT_FALSE(view.has_saved_seconds());
  SayAll(job, SplitReport(10, 19));
  view = job.daemon.View();
  EXPECT_NEAR(view.saved_seconds(), 4 * (680 - 640) * 1e-6, 1e-12);
}

TEST(MeasuredTest, OfAJobThatSplitsBatchesAPredictionIsComparedWithWhatItsBatchesGave) {
  TestJob job = SplitJob();
  SayAll(job, SplitReport(0, 9));
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  job.CommitAll(12);
  wire::LoadReport equal = TestReport(20, 29);
  equal.version = 2;
  SayAll(job, equal);
  EXPECT_FALSE(job.NewestPlan().has_balancedness_seen()) << "equal shares are another figure";
  wire::LoadReport report = SplitReport(30, 39);
  report.version = 2;
  report.split_peaks.assign(4, 360);
  SayAll(job, report);
  const v1::Plan plan = job.daemon.core().Plans(kJob, 10)->back();
  EXPECT_EQ(plan.plan(), 1);
  EXPECT_NEAR(plan.balancedness_seen(), 240.0 / 360, 1e-9);
}

TEST(MeasuredTest, WhatWasMeasuredBeforeADecisionIsTheMeanOverItsWindows) {
  Config config = TestConfig();
  config.settings.every_steps = 20;
  AskedJob job(config);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({})));
  job.Report(10, 19);
  wire::LoadReport even = TestReport(20, 29);
  even.counts.setConstant(10);
  SayAll(job, even);
  ASSERT_TRUE(job.daemon.AnswerSolve(Exchanged({0, 1, 2, 3})));
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.decided_first_step(), 10);
  EXPECT_EQ(plan.decided_last_step(), 29);
  EXPECT_NEAR(plan.balancedness_before(), (kStatic + 1) / 2, 1e-9)
      << "on the sum it would be more even than its windows were";
}

TEST(MeasuredTest, WhereSplitsAreNotReportedEqualSharesAreMeasuredByName) {
  TestJob job = SplitJob();
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.View().measured_split(), "equal");
  EXPECT_NEAR(job.daemon.View().balancedness(), kStatic, 1e-9);
  wire::LoadReport partial = SplitReport(10, 19);
  partial.split_tokens[2] = 719;  // a batch was not recorded
  SayAll(job, partial);
  EXPECT_EQ(job.daemon.View().measured_split(), "equal");
  SayAll(job, SplitReport(20, 29));
  EXPECT_EQ(job.daemon.View().measured_split(), "batch");
}

TEST(MeasuredTest, ASplitOfAJobThatSharesEquallyIsRefused) {
  ConnectedJob job;
  job.daemon.Say(job.ranks[0].session, SplitReport(0, 9));
  const std::optional<absl::Status> closed = job.ClosedWith(0);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->message(),
            "load report: it has splits of batches, but the run registered split equal");
}

}  // namespace
}  // namespace eplb::core
