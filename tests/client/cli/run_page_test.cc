#include "client/cli/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "client/cli/page_documents.h"
#include "client/cli/replay_page.h"
#include "placement/policies/registry.h"
#include "server/http/job_json.h"
#include "tests/client/cli/small_run.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::set<std::string> KeysOf(const PageJson& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::set<std::string> KeysOf(const std::string& answer) { return KeysOf(PageJson::parse(answer)); }

struct Page {
  PageJson documents;
  PageJson At(const std::string& path) const {
    return documents["paths"].value("api/v1/jobs/demo" + path, PageJson());
  }
};

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
  const RunReview review = ReviewRun(run, 3).value();
  const Page page = PageOf(run);
  const PageJson job = page.At("");
  EXPECT_EQ(job["balancedness"], review.run.balancedness);
  EXPECT_EQ(job["balancedness_static"], review.unmoved.balancedness);
  EXPECT_EQ(job["state"], "FINISHED");
  EXPECT_EQ(job["step"], kSmallSteps - 1);
  EXPECT_NEAR(job["saved_seconds"].get<double>() - job["spent_seconds"].get<double>(),
              review.unmoved.total_seconds - review.time.measured_seconds, 1e-12);
  EXPECT_EQ(job["peak_fall"], 1 - review.run.slowdown / review.unmoved.slowdown);
  const PageJson plans = page.At("/plans")["plans"];  // newest first
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0]["plan"], 2);
  const PageJson& first = plans[1];
  EXPECT_EQ(first["reason"], "because of decision 1");
  EXPECT_EQ(first["switched_step"], 5);
  EXPECT_EQ(first["pause_seconds"], review.decisions[0].pause_seconds);
  EXPECT_EQ(first["received_bytes"], review.decisions[0].bytes_moved);
  EXPECT_EQ(first["balancedness_before"], review.decisions[0].before);
  EXPECT_EQ(first["balancedness_computed"], review.decisions[0].computed);
  EXPECT_EQ(first["balancedness_seen"], *review.decisions[0].until_next);
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
  core::JobView view;
  view.job = "demo";
  std::set<std::string> keys = KeysOf(JobToJson(view));
  keys.insert({"peak_fall", "events_known"});
  // A job that the daemon knows has a shape.
  keys.insert({"num_layers", "num_logical_experts", "num_slots", "num_gpus", "num_nodes"});
  for (const std::string& key : KeysOf(run_only)) EXPECT_THAT(keys, Contains(key));
  EXPECT_EQ(
      KeysOf(page.At("/windows")["windows"][0]),
      KeysOf(PageJson::parse(WindowsToJson("demo", std::vector<WindowFigures>(1)))["windows"][0]));
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

TEST(PageDocumentsTest, AtMostSoManyWindowsKeepTheirLoadsSpreadEvenlyWithTheLast) {
  for (const int64_t windows : {1, 2, 119, 120, 121, 500, 4096, 10000}) {
    const PageDocuments page("run", "demo", SmallTopology(), windows);
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < windows; ++i) {
      if (page.KeepsLoads(i)) kept.push_back(i);
    }
    EXPECT_EQ(std::ssize(kept), std::min<int64_t>(windows, kMaxPageWindowsWithLoads)) << windows;
    EXPECT_EQ(kept.back(), windows - 1);
    EXPECT_EQ(kept.front(), std::max<int64_t>(windows - kMaxPageWindows, 0));
    EXPECT_EQ(page.KeepsWindow(0), windows <= kMaxPageWindows);
  }
  // 58 layers of 256 experts: fewer, for the file to stay small.
  const Topology large =
      *Topology::Make({.num_layers = 58, .num_experts = 256, .num_slots = 288, .num_gpus = 32});
  const PageDocuments page("run", "demo", large, 1000);
  int64_t kept = 0;
  for (int64_t i = 0; i < 1000; ++i) kept += page.KeepsLoads(i) ? 1 : 0;
  EXPECT_GT(kept, 10);
  EXPECT_LT(kept, 60);
}

TEST(PageDocumentsTest, AFlowLeadsFromTheGpuThatSendsToTheOneThatReceives) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  IndexMatrix slots(1, 4);
  slots << 0, 1, 2, 2;
  const Placement before = *Placement::FromSlots(topology, slots);
  slots << 0, 1, 2, 1;
  const Placement after = *Placement::FromSlots(topology, slots);
  PageDocuments page("run", "demo", topology, 1);
  PageJson plan = {{"plan", 7}, {"base_version", 1}, {"last_version", 2}, {"received_bytes", 99}};
  ASSERT_TRUE(page.AddTraffic(plan, before, after).ok());
  EXPECT_EQ(plan["transfers"], 1);
  const Page done{page.Finish("now")};
  EXPECT_EQ(done.At("/traffic?plan=7")["gpus"], PageJson::parse("[[0,1,1]]"));
  EXPECT_EQ(done.At("/traffic?plan=7")["received_bytes"], 99);
}

TEST(PageDocumentsTest, WhatIsLeftOutIsSaid) {
  PageDocuments page("trace", "demo", SmallTopology(), kMaxPageWindows + 7);
  for (int64_t i = 0; i < 1500; ++i) page.AddPlan({{"plan", i}, {"num_chunks", i == 3 ? 1 : 0}});
  for (int64_t i = 0; i < 1001; ++i) page.AddEvent({{"sequence", i}});
  const Page done{page.Finish("now")};
  const PageJson plans = done.At("/plans")["plans"];
  EXPECT_EQ(plans.size(), kMaxPagePlans);
  EXPECT_EQ(plans.back()["plan"], 3);  // it moved something
  EXPECT_EQ(plans.front()["plan"], 1499);
  EXPECT_EQ(done.At("/events")["events"].back()["sequence"], 1);
  const std::string warnings = done.documents["paths"]["api/v1/jobs"]["warnings"].dump();
  EXPECT_THAT(warnings, HasSubstr("500 decisions of the oldest are left out"));
  EXPECT_THAT(warnings, HasSubstr("the oldest 1 event are left out"));
  EXPECT_THAT(warnings, HasSubstr("the oldest 7 windows are left out"));
}

TEST(ReplayPageTest, WindowsDecisionsAndTransfersAreThoseOfTheReplay) {
  const RunDirectory run = SmallRun({});
  const std::vector<Load>& windows = run.step_loads;
  std::vector<StepRange> steps;
  for (int64_t t = 0; t < std::ssize(windows); ++t) steps.push_back({10 * t, 10 * t + 9});
  const ReplayTrace trace{windows, steps};
  const ReplayOptions options{.every = 4, .history = 2};
  ReplayPage page(trace, SmallTopology(), options, {.trace = "traces/demo/", .policy = "balanced"});
  const auto policy = MakePolicy("balanced", {}).value();
  const ReplayResult result =
      Replay(trace, SmallTopology(), *policy, options, {},
             [&page](int64_t window, const ReplayRow& row, const Placement& ran) {
               return page.Ran(window, row, ran);
             })
          .value();
  ASSERT_EQ(result.summary.rebalances, 1);
  const Page done{page.Finish(result)};
  const PageJson shown = done.At("/windows")["windows"];
  ASSERT_EQ(shown.size(), result.rows.size());
  for (size_t t = 0; t < result.rows.size(); ++t) {
    EXPECT_EQ(shown[t]["window"], t);
    EXPECT_EQ(shown[t]["balancedness"], result.rows[t].balancedness);
    EXPECT_EQ(shown[t]["balancedness_static"], result.rows[t].balancedness_static);
    EXPECT_EQ(shown[t]["versions"], PageJson({t < 4 ? 0 : 1}));
  }
  const PageJson plans = done.At("/plans")["plans"];
  ASSERT_EQ(plans.size(), 2u);  // before windows 4 and 8
  EXPECT_EQ(plans[1]["plan"], 4);
  EXPECT_EQ(plans[1]["result"], "rebalanced");
  EXPECT_EQ(plans[1]["reason"], result.rows[4].reason);
  EXPECT_EQ(plans[1]["switched_step"], 39);
  EXPECT_EQ(plans[1]["decided_first_step"], 20);
  EXPECT_EQ(plans[1]["transfers"], result.rows[4].transfers);
  EXPECT_EQ(done.At("/traffic?plan=4")["transfers"], result.rows[4].transfers);
  EXPECT_TRUE(done.At("/traffic?plan=4")["received_bytes"].is_null());  // no bytes were given
  EXPECT_EQ(plans[0]["result"], "kept");
  EXPECT_EQ(done.documents["left_out"], PageJson({"ranks"}));
  EXPECT_EQ(done.At("")["balancedness"], result.summary.balancedness_mean);
  // 4 windows of 20 and 8 of 12, against 12 of 20.
  EXPECT_NEAR(done.At("")["peak_fall"].get<double>(), 1 - (4 * 20 + 8 * 12) / 240.0, 1e-12);
}

}  // namespace
}  // namespace eplb::cli
