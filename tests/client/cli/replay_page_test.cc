#include "client/cli/replay_page.h"

#include <gtest/gtest.h>

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
             [&page](int64_t window, const ReplayRow& row, const Switching& placement) {
               return page.Ran(window, row, placement);
             })
          .value();
  ASSERT_EQ(result.summary.rebalances, 1);
  const Page done{page.Finish(result)};
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

}  // namespace
}  // namespace eplb::cli
