#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/cli/page_documents.h"
#include "client/cli/report_forms.h"
#include "server/http/job_json.h"
#include "tests/client/cli/page_of_job.h"
#include "tests/client/cli/small_run.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

std::set<std::string> KeysOf(const PageJson& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::set<std::string> KeysOf(const std::string& answer) { return KeysOf(PageJson::parse(answer)); }

RunDirectory ARun() { return SmallRun({{.step = 5}, {.step = 8, .even = false, .decision = 2}}); }

Page PageOf(const RunDirectory& run, int64_t window_steps = 3) {
  return {RunPage(run, ReviewRun(run, window_steps).value(), "here").value()};
}

TEST(RunPageTest, WindowsAreMeasuredAsTheReviewMeasures) {
  const RunDirectory run = ARun();
  const Page page = PageOf(run);
  const PageJson windows = page.At("/windows")["windows"];
  ASSERT_EQ(windows.size(), 4u);  // steps 0..2 static, 3..5 static, 6..8 even, 9..11 static
  std::vector<double> measured;
  for (const PageJson& one : windows) measured.push_back(one["balancedness"]);
  EXPECT_THAT(measured,
              ElementsAre(::testing::DoubleNear(0.6, 1e-12), ::testing::DoubleNear(0.6, 1e-12),
                          ::testing::DoubleNear(1, 1e-12), ::testing::DoubleNear(0.6, 1e-12)));
  EXPECT_EQ(windows[2]["versions"], PageJson({1}));
  EXPECT_EQ(windows[2]["tokens"], 3 * 24);
  EXPECT_NEAR(windows[2]["balancedness_static"].get<double>(), 0.6, 1e-12);
  // By rank 0's clock.
  const StepRecord& last = run.report.steps[8];
  EXPECT_EQ(windows[2]["completed_unix_micros"],
            std::llround((kSmallBegan + last.began + last.seconds) * 1e6));
  EXPECT_TRUE(windows[2]["coverage"].is_null());  // a run's directory does not know it
}

TEST(RunPageTest, TheTimeSavedIsTheDaemonsWhereTheDirectoryHasItsAnswer) {
  RunDirectory run = ARun();
  run.account = {.run_id = run.report.run_id,
                 .saved_seconds = 5.8,
                 .spent_seconds = 0.5,
                 .saved_basis = "a token costs 2 us",
                 .saved_is_assumed = true};
  const PageJson job = PageOf(run).At("");
  EXPECT_EQ(job["saved_seconds"], 5.8);
  EXPECT_EQ(job["spent_seconds"], 0.5);
  EXPECT_EQ(job["saved_basis"], "a token costs 2 us");
  EXPECT_EQ(job["saved_is_assumed"], true);
  EXPECT_EQ(job["account_from_log"], false);
  run.account->run_id = "another";
  EXPECT_NE(PageOf(run).At("")["saved_seconds"], 5.8);
  EXPECT_EQ(PageOf(run).At("")["account_from_log"], true)
      << "boundaries are spent, not pauses alone";
}

TEST(RunPageTest, OtherLayoutsOfARunThatSplitsItsStepsAreMeasuredPerStep) {
  RunDirectory run = SmallRun({});
  run.report.split = SplitMode::kBatch;
  LoadMatrix counts(1, 4);
  counts << 2, 2, 10, 10;  // the other GPU is the fullest: the sum of two steps would be even
  for (size_t step = 1; step < run.step_loads.size(); step += 2) {
    run.step_loads[step] = *Load::FromCounts(counts);
  }
  const PageJson window = PageOf(run, 2).At("/windows")["windows"][0];
  EXPECT_NEAR(window["balancedness_static"].get<double>(), 0.6, 1e-12);
  EXPECT_NEAR(window["balancedness_without_eplb"].get<double>(), 0.6, 1e-12);
  EXPECT_NEAR(window["balancedness_equal"].get<double>(), 1, 1e-12) << "of the window's sum";
}

TEST(RunPageTest, AWindowAcrossASwitchHasBothVersionsAndTheirTokens) {
  const Page page = PageOf(ARun(), 4);  // steps 4..7: 4 and 5 under version 0, 6 and 7 under 1
  const PageJson window = page.At("/windows")["windows"][1];
  EXPECT_EQ(window["versions"], PageJson({0, 1}));
  // Two steps of loads 20 and 4, two of 12 and 12.
  EXPECT_EQ(page.At("/gpu_loads?window=2")["gpu_loads"], PageJson::parse("[[64.0,32.0]]"));
  EXPECT_EQ(page.At("/gpu_loads?window=2")["gpu_loads_static"], PageJson::parse("[[80.0,16.0]]"));
  EXPECT_NEAR(window["balancedness"].get<double>(), 48.0 / 64, 1e-12);
  EXPECT_EQ(page.At("/load?layer=0&window=2")["load"], PageJson::parse("[[40,40,8,8]]"));
  EXPECT_EQ(page.At("/placement?layer=0&version=1")["experts"], PageJson({0, 2, 1, 3}));
  EXPECT_EQ(page.At("/placement?layer=0&version=1")["gpus"], PageJson({0, 0, 1, 1}));
}

TEST(RunPageTest, FiguresOfTheJobAndItsDecisionsAreThoseOfTheReview) {
  const RunDirectory run = ARun();
  const v1::RunReview review = ReviewRun(run, 3).value();
  const Page page = PageOf(run);
  const PageJson job = page.At("");
  EXPECT_EQ(job["balancedness"], review.balancedness().run());
  EXPECT_EQ(job["balancedness_static"], review.balancedness().static_());
  EXPECT_EQ(job["balancedness_without_eplb"], review.balancedness().without_eplb());
  EXPECT_EQ(job["state"], "FINISHED");
  EXPECT_EQ(job["step"], kSmallSteps - 1);
  EXPECT_NEAR(job["saved_seconds"].get<double>(),
              review.comparison().without_eplb_predicted().total_seconds() -
                  review.time().measured_seconds(),
              1e-12);
  EXPECT_EQ(job["peak_fall"], review.time_saved());
  const PageJson plans = page.At("/plans")["plans"];  // newest first
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0]["plan"], 2);
  const PageJson& first = plans[1];
  EXPECT_EQ(first["reason"], "because of decision 1");
  EXPECT_EQ(first["switched_step"], 5);
  const v1::Plan& reviewed = review.decisions(0).plan();
  EXPECT_EQ(first["pause_seconds"], reviewed.pause_seconds());
  EXPECT_EQ(first["received_bytes"], reviewed.received_bytes());
  EXPECT_EQ(first["balancedness_before"], reviewed.balancedness_before());
  EXPECT_EQ(first["balancedness_computed"], review.decisions(0).balancedness_computed());
  EXPECT_EQ(first["balancedness_seen"], review.decisions(0).balancedness_until_next());
  EXPECT_EQ(first["transfers"], 2);
  // Expert 1 leaves GPU 0 for expert 2.
  EXPECT_EQ(page.At("/traffic?plan=1")["gpus"], PageJson::parse("[[0,1,1],[1,0,1]]"));
  EXPECT_EQ(page.At("/traffic?plan=1")["base_version"], 0);
}

TEST(RunPageTest, WhatTheDirectoryDoesNotKnowIsNull) {
  const Page page = PageOf(ARun());
  const PageJson job = page.At("");
  for (const char* const key :
       {"balancedness_predicted", "prediction_error", "connected_ranks", "coverage"}) {
    EXPECT_TRUE(job.at(key).is_null()) << key;
  }
  EXPECT_EQ(job["events_known"], false);
  const PageJson plan = page.At("/plans")["plans"][0];
  for (const char* const key :
       {"unix_micros", "solve_seconds", "prepare_seconds", "balancedness_predicted"}) {
    EXPECT_TRUE(plan.at(key).is_null()) << key;
  }
}

TEST(RunPageTest, EventsTellWhenADecisionWasMade) {
  RunDirectory run = ARun();
  run.events = LoggedEvents{"demo", {EventAt(run, 4, "proposed"), EventAt(run, 9, "pause")}};
  run.events->events[0].reason = "because of decision 1";
  const Page page = PageOf(run);
  EXPECT_EQ(page.At("/plans")["plans"][1]["unix_micros"], run.events->events[0].unix_micros);
  EXPECT_TRUE(page.At("/plans")["plans"][0]["unix_micros"].is_null());
  EXPECT_EQ(page.At("/events")["events"][0]["name"], "pause");  // newest first
  EXPECT_EQ(page.At("")["events_known"], true);
}

TEST(RunPageTest, ProblemsAreWarningsOfThePage) {
  RunDirectory run = ARun();
  run.report.bytes_verified = 0;
  EXPECT_THAT(PageOf(run).documents["paths"]["api/v1/jobs"]["warnings"],
              Contains("Not verified: no byte of expert memory was verified"));
}

TEST(RunPageTest, KeysAreThoseOfTheDaemonsAnswers) {
  const Page page = PageOf(ARun());
  const PageJson run_only = page.At("");
  v1::JobStatus view;
  view.set_job("demo");
  std::set<std::string> keys = KeysOf(JobToJson(view));
  keys.insert({"peak_fall", "events_known", "account_from_log"});
  // A job that the daemon knows has a shape.
  keys.insert({"num_layers", "num_logical_experts", "num_slots", "num_gpus", "num_nodes"});
  for (const std::string& key : KeysOf(run_only)) EXPECT_THAT(keys, Contains(key));
  EXPECT_EQ(
      KeysOf(page.At("/windows")["windows"][0]),
      KeysOf(PageJson::parse(WindowsToJson("demo", std::vector<v1::Window>(1)))["windows"][0]));
  WindowLoads loads;
  loads.load = std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Zero(1, 4)));
  loads.on_gpus_static = RealMatrix::Zero(1, 2);
  EXPECT_EQ(KeysOf(page.At("/gpu_loads?window=1")), KeysOf(GpuLoadsToJson("demo", loads)));
  const core::WindowView window{0, 0, loads.load, nullptr};
  EXPECT_EQ(KeysOf(page.At("/load?layer=0&window=1")), KeysOf(LoadToJson("demo", window, 0)));
  EXPECT_EQ(KeysOf(page.At("/traffic?plan=1")), KeysOf(TrafficToJson("demo", Traffic())));
  const wire::PlacementBody body{.placement = StaticPlacement()};
  EXPECT_EQ(KeysOf(page.At("/placement?layer=0&version=0")), KeysOf(LayerToJson("demo", body, 0)));
}

}  // namespace
}  // namespace eplb::cli
