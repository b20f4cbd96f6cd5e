#include "client/cli/replay_page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/cli/page_of_job.h"
#include "tests/client/cli/small_run.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

TEST(ReplayPageTest, WindowsDecisionsAndTransfersAreThoseOfTheReplay) {
  const RunDirectory run = SmallRun({});
  const std::vector<Load>& windows = run.step_loads;
  std::vector<StepRange> steps;
  for (int64_t t = 0; t < std::ssize(windows); ++t) steps.push_back({10 * t, 10 * t + 9});
  const ReplayTrace trace{windows, steps};
  const ReplayOptions options{.every = 4, .history = 2};
  ReplayPage page(trace, SmallTopology(), options, {.trace = "traces/demo/", .policy = "balanced"});
  const ReplayResult result =
      Replay(trace, SmallTopology(), "balanced", options, {},
             [&page](const ReplayedWindow& window) { return page.Ran(window); })
          .value();
  ASSERT_EQ(result.summary.rebalances, 1);
  const Page done{page.Finish(result).value()};
  const PageJson shown = done.At("/windows")["windows"];
  ASSERT_EQ(shown.size(), result.rows.size());
  for (size_t t = 0; t < result.rows.size(); ++t) {
    EXPECT_EQ(shown[t]["window"], t);
    EXPECT_EQ(shown[t]["balancedness"], *result.rows[t].balancedness);
    EXPECT_EQ(shown[t]["balancedness_static"], *result.rows[t].balancedness_static);
    EXPECT_EQ(shown[t]["balancedness_without_eplb"], *result.rows[t].balancedness_without_eplb);
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
  EXPECT_EQ(done.At("")["balancedness"], *result.summary.balancedness_mean);
  EXPECT_EQ(done.At("")["balancedness_without_eplb"],
            *result.summary.balancedness_without_eplb_mean);
  // 4 windows of 20 and 8 of 12, against 12 of 20.
  EXPECT_NEAR(done.At("")["peak_fall"].get<double>(), 1 - (4 * 20 + 8 * 12) / 240.0, 1e-12);
}

// The load turns at each window of two steps, and layer by layer a change takes longer than that.
TEST(ReplayPageTest, ADecisionThatIsReplacedHasTheChunksThatWereSwitched) {
  constexpr int kWindows = 40;
  constexpr int kLayers = 4;
  std::vector<Load> windows;
  std::vector<StepRange> steps;
  for (int64_t t = 0; t < kWindows; ++t) {
    LoadMatrix counts(kLayers, 4);
    for (int layer = 0; layer < kLayers; ++layer) {
      counts.row(layer) << 9, (t % 2 == 0 ? 9 : 1), (t % 2 == 0 ? 1 : 9), 1;
    }
    windows.push_back(Load::FromCounts(counts).value());
    steps.push_back({2 * t, 2 * t + 1});
  }
  const ReplayTrace trace{windows, steps};
  const Topology topology =
      *Topology::Make({.num_layers = kLayers, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
  const SwitchTime time{.decide_steps = 1, .layers_per_chunk = 1};
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    const ReplayOptions options{.switch_time = time, .split = split};
    ReplayPage page(trace, topology, options, {.trace = "demo", .policy = "balanced"});
    const ReplayResult result =
        Replay(trace, topology, "balanced", options, {}, [&page](const ReplayedWindow& window) {
          return page.Ran(window);
        }).value();
    ASSERT_GT(result.summary.rebalances, kWindows / 2);
    const Page done{page.Finish(result).value()};
    int64_t transfers = 0;
    int replaced = 0;
    const PageJson plans = done.At("/plans")["plans"];
    for (const PageJson& plan : plans) {
      if (plan["result"] != "rebalanced") continue;
      const size_t t = plan["plan"];
      transfers += plan["transfers"].get<int64_t>();
      EXPECT_EQ(plan["transfers"], result.rows[t].transfers);
      EXPECT_EQ(done.At("/traffic?plan=" + std::to_string(t))["transfers"], plan["transfers"]);
      const bool whole = plan["chunks_committed"] == plan["num_chunks"];
      EXPECT_EQ(plan["switched_step"].is_null(), !whole);
      if (!whole) ++replaced;
    }
    EXPECT_EQ(transfers, result.summary.transfers);
    EXPECT_GT(replaced, kWindows / 2);
    const PageJson shown = done.At("/windows")["windows"];
    for (const PageJson& window : shown) {
      EXPECT_LE(window["versions"].size(), 3u);
      if (split == SplitMode::kBatch || window["balancedness"].is_null()) continue;
      EXPECT_EQ(window["balancedness_equal"], window["balancedness"]);
    }
  }
}

}  // namespace
}  // namespace eplb::cli
