#include "placement/replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "placement/policies/registry.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/recorded_trace.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr double kMostHarm = 0.005;  // part of the time without any move

constexpr const char* kPolicies[] = {"deepseek", "balanced", "incremental"};

constexpr PolicyOptions kFast{.hierarchy = Hierarchy::kNone, .effort = Effort::kFast};

// A trace with the steps of its windows, ten each.
struct Series {
  std::vector<Load> windows;
  std::vector<StepRange> steps;

  void Add(Load load) {
    const auto first = static_cast<int64_t>(10 * windows.size());
    windows.push_back(std::move(load));
    steps.push_back({first, first + 9});
  }
  ReplayTrace trace() const { return {windows, steps}; }
  Topology Frame(int32_t slots, int32_t gpus) const {
    return Topology::Make({.num_layers = windows[0].num_layers(),
                           .num_experts = windows[0].num_experts(),
                           .num_slots = slots,
                           .num_gpus = gpus})
        .value();
  }
};

struct Drift {
  int32_t windows = 100;
  int32_t layers = 2;
  int32_t experts = 16;
  double fixed = 0.5;    // spread of what stays, as a logarithm
  double moving = 0.4;   // spread of the drift
  double memory = 0.95;  // part of the drift kept from one window to the next
  double noise = 0.1;    // spread of each window's own noise
};

Series MakeSeries(Random& random, const Drift& drift) {
  const auto fresh = [&](double spread) {
    RealMatrix cells(drift.layers, drift.experts);
    for (double& cell : cells.reshaped()) cell = spread * Normal(random);
    return cells;
  };
  const RealMatrix fixed = fresh(drift.fixed);
  RealMatrix moving = fresh(drift.moving);
  Series series;
  for (int32_t t = 0; t < drift.windows; ++t) {
    const RealMatrix cells = fixed + moving + fresh(drift.noise);
    series.Add(Load::FromCounts((1000 * cells.exp()).round().cast<int64_t>()).value());
    moving =
        drift.memory * moving + fresh(drift.moving * std::sqrt(1 - drift.memory * drift.memory));
  }
  return series;
}

// Costs such that moving every row of a GPU takes `windows` times as long as an even window.
Costs CostsOf(const Series& series, const Topology& topology, double windows) {
  Costs costs{.token_seconds = 1e-7};
  costs.expert.weight_bytes = 1'000'000;
  double tokens = 0;
  for (const Load& load : series.windows) tokens += load.ToDouble().sum();
  tokens /= static_cast<double>(series.windows.size()) * topology.num_gpus();
  costs.intra_bytes_per_s = 1e6 * topology.max_slots_per_gpu() * topology.num_layers() /
                            (windows * tokens * costs.token_seconds);
  return costs;
}

// Returns the time that rebalancing saved less its cost, as a part of the time without any move.
double NetShare(const ReplaySummary& summary) {
  const double replayed = summary.without_eplb_seconds - summary.seconds_saved;
  return (summary.static_seconds - replayed - summary.seconds_spent) / summary.static_seconds;
}

TEST(ReplayTest, AConstantLoadIsMovedOnce) {
  Random random(1);
  Series series;
  const Load load = MakeSeries(random, {.windows = 1}).windows[0];
  for (int t = 0; t < 30; ++t) series.Add(load);
  const Topology topology = series.Frame(16, 4);
  for (const double cost : {0.0, 0.001, 0.1}) {
    for (const int64_t every : {1, 3}) {
      ReplayOptions options{.every = every, .history = 2};
      if (cost > 0) options.costs = CostsOf(series, topology, cost);
      const ReplayResult result = Replay(series.trace(), topology, "deepseek", options).value();
      EXPECT_EQ(result.summary.rebalances, 1) << "cost " << cost << " every " << every;
      EXPECT_GT(result.rows.back().balancedness, result.rows.back().balancedness_static);
      EXPECT_FALSE(result.rows[0].rebalanced);
      if (cost == 0) {
        EXPECT_TRUE(result.rows[static_cast<size_t>(every)].rebalanced);
        EXPECT_EQ(result.summary.seconds_spent, 0);
      } else {
        EXPECT_GT(NetShare(result.summary), 0);
      }
    }
  }
}

TEST(ReplayTest, DecisionsDoNotSeeTheirFuture) {
  Random random(2);
  const Drift drift{.windows = 40, .memory = 0.8};
  const Series series = MakeSeries(random, drift);
  const Series other = MakeSeries(random, drift);
  const Topology topology = series.Frame(20, 4);
  for (const auto& [policy, priced] :
       {std::pair("deepseek", false), std::pair("deepseek", true), std::pair("auto", true)}) {
    ReplayOptions options{.every = 2, .history = 3, .policy = kFast};
    if (priced) options.costs = CostsOf(series, topology, 0.01);
    const ReplayResult whole = Replay(series.trace(), topology, policy, options).value();
    EXPECT_GT(whole.summary.rebalances, 1);
    for (const size_t t : {1, 7, 20, 39}) {
      Series changed = series;
      for (size_t i = t; i < changed.windows.size(); ++i) changed.windows[i] = other.windows[i];
      const ReplayResult result = Replay(changed.trace(), topology, policy, options).value();
      // The decision before window t is made from windows < t too.
      for (size_t i = 0; i <= t; ++i) {
        EXPECT_EQ(result.rows[i].reason, whole.rows[i].reason) << i;
        EXPECT_EQ(result.rows[i].transfers, whole.rows[i].transfers) << i;
      }
      const ReplayTrace prefix{std::span(series.windows).first(t),
                               std::span(series.steps).first(t)};
      const ReplayResult shorter = Replay(prefix, topology, policy, options).value();
      for (size_t i = 0; i < t; ++i) {
        EXPECT_EQ(shorter.rows[i].reason, whole.rows[i].reason) << i;
        EXPECT_EQ(shorter.rows[i].balancedness, whole.rows[i].balancedness) << i;
      }
    }
  }
}

TEST(ReplayTest, TheSummaryAddsUpTheRows) {
  Random random(3);
  const Series series = MakeSeries(random, {.windows = 50, .memory = 0.9});
  const Topology topology = series.Frame(20, 4);
  ReplayOptions options;
  options.costs = CostsOf(series, topology, 0.001);
  options.costs.replica_weight_bytes = 10;
  const ReplayResult result = Replay(series.trace(), topology, "deepseek", options).value();
  int64_t transfers = 0;
  double spent = 0;
  double saved = 0;
  for (const ReplayRow& row : result.rows) {
    EXPECT_EQ(row.bytes, row.transfers * options.costs.expert.weight_bytes);
    EXPECT_FALSE(row.reason.empty());
    transfers += row.transfers;
    saved += row.saved_seconds;
    spent += row.migration_seconds + row.replica_seconds;
  }
  EXPECT_GT(transfers, 0);
  EXPECT_EQ(result.summary.transfers, transfers);
  EXPECT_NEAR(result.summary.seconds_saved - result.summary.seconds_spent, saved - spent, 1e-9);
  EXPECT_GE(result.summary.seconds_spent, 0);
}

TEST(ReplayTest, WindowsWithoutTokensAreInNoMeanAndMoveNothing) {
  Random random(7);
  Series busy = MakeSeries(random, {.windows = 5});
  const Topology topology = busy.Frame(20, 4);
  Series series = busy;
  for (int t = 0; t < 5; ++t) series.Add(Load::FromCounts(LoadMatrix::Zero(2, 16)).value());
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    const ReplayOptions options{.split = split};
    const ReplayResult expected = Replay(busy.trace(), topology, "deepseek", options).value();
    const ReplayResult result = Replay(series.trace(), topology, "deepseek", options).value();
    const ReplaySummary& summary = result.summary;
    EXPECT_EQ(summary.windows_without_tokens, 5);
    EXPECT_EQ(summary.balancedness_mean, expected.summary.balancedness_mean);
    EXPECT_EQ(summary.balancedness_static_mean, expected.summary.balancedness_static_mean);
    EXPECT_EQ(summary.balancedness_without_eplb_mean,
              expected.summary.balancedness_without_eplb_mean);
    EXPECT_EQ(result.rows.back().balancedness, std::nullopt);
    EXPECT_EQ(result.rows.back().rule, RebalanceRule::kNoTokens);
    EXPECT_FALSE(result.rows.back().rebalanced);
    EXPECT_FALSE(result.rows.back().prediction.has_value());
  }
  const ReplayTrace idle{std::span(series.windows).last(5), std::span(series.steps).last(5)};
  const ReplayResult nothing = Replay(idle, topology, "deepseek", {}).value();
  EXPECT_EQ(nothing.summary.balancedness_mean, std::nullopt);
  EXPECT_EQ(nothing.summary.seconds_saved, 0);
}

TEST(ReplayTest, WindowsWithoutTokensAtTheStartOnlyDelayDecisions) {
  constexpr int kIdle = 4;
  Random random(7);
  const Series busy = MakeSeries(random, {.windows = 12, .fixed = 1, .moving = 0.01});
  const Topology topology = busy.Frame(20, 4);
  Series series;
  for (int t = 0; t < kIdle; ++t) series.Add(Load::FromCounts(LoadMatrix::Zero(2, 16)).value());
  for (const Load& load : busy.windows) series.Add(load);
  const ReplayOptions options{.costs = CostsOf(busy, topology, 0.01)};
  for (const char* policy : {"balanced", "auto"}) {
    const ReplayResult expected = Replay(busy.trace(), topology, policy, options).value();
    const ReplayResult result = Replay(series.trace(), topology, policy, options).value();
    EXPECT_GT(expected.summary.rebalances, 0) << policy;
    EXPECT_EQ(result.summary.seconds_saved, expected.summary.seconds_saved) << policy;
    EXPECT_EQ(result.summary.rebalances, expected.summary.rebalances) << policy;
  }
}

// With redundant slots the starting layout doubles the first experts, and may be worse than none.
TEST(ReplayTest, TimeIsSavedAgainstOneSlotPerExpertHoweverManySlotsThereAre) {
  Random random(8);
  const Series series = MakeSeries(random, {.windows = 40, .experts = 32});
  ReplayOptions options;
  options.costs.token_seconds = 1e-7;
  std::vector<ReplaySummary> summaries;
  for (const int32_t slots : {32, 36, 40, 48}) {
    summaries.push_back(
        Replay(series.trace(), series.Frame(slots, 4), "deepseek", options).value().summary);
  }
  const ReplaySummary& plain = summaries.front();
  EXPECT_EQ(plain.balancedness_without_eplb_mean, plain.balancedness_static_mean);
  EXPECT_DOUBLE_EQ(plain.without_eplb_seconds, plain.static_seconds);
  for (const ReplaySummary& summary : summaries) {
    EXPECT_EQ(summary.without_eplb_seconds, plain.without_eplb_seconds);
    EXPECT_EQ(summary.balancedness_without_eplb_mean, plain.balancedness_without_eplb_mean);
    EXPECT_GT(summary.seconds_saved, 0);
  }
  EXPECT_NE(summaries.back().static_seconds, plain.static_seconds);
}

// No gain is that large, so both replays keep the placement that they begin with.
TEST(ReplayTest, AnExactSplitIsNeverBelowEqualSharesOfTheSamePlacement) {
  Random random(20261124);
  const Series series = MakeSeries(random, {.windows = 60,
                                            .layers = 2,
                                            .experts = 16,
                                            .fixed = 0.5,
                                            .moving = 0.4,
                                            .memory = 0.9,
                                            .noise = 0.2});
  const Topology topology = series.Frame(20, 4);
  ReplayOptions options{.every = 4, .history = 4, .min_gain = 1, .policy = kFast};
  const ReplayResult equal = Replay(series.trace(), topology, "incremental", options).value();
  options.split = SplitMode::kBatch;
  const ReplayResult batch = Replay(series.trace(), topology, "incremental", options).value();
  ASSERT_EQ(batch.rows.size(), equal.rows.size());
  for (size_t t = 0; t < batch.rows.size(); ++t) {
    EXPECT_EQ(batch.rows[t].transfers, 0) << t;
    EXPECT_EQ(batch.rows[t].balancedness_static, equal.rows[t].balancedness_static) << t;
    EXPECT_GE(batch.rows[t].balancedness, *equal.rows[t].balancedness - 1e-12) << t;
  }
  EXPECT_GT(batch.summary.balancedness_mean, equal.summary.balancedness_mean);
}

TEST(ReplayTest, RandomDriftIsNeverMadeWorse) {
  double net[std::size(kPolicies)] = {};
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const double memory[] = {0, 0.8, 0.95, 0.99, 1};
    const double noise[] = {0, 0.1, 0.4};
    const double cost[] = {0.001, 0.01, 0.1, 1, 30};
    const Drift drift{.windows = Pick(random, 60, 160),
                      .layers = Pick(random, 1, 4),
                      .experts = 8 * Pick(random, 1, 4),
                      .fixed = 0.25 * Pick(random, 0, 3),
                      .moving = 0.2 * Pick(random, 0, 3),
                      .memory = memory[Pick(random, 0, 4)],
                      .noise = noise[Pick(random, 0, 2)]};
    const Series series = MakeSeries(random, drift);
    const Topology topology = series.Frame(drift.experts + 4 * Pick(random, 0, 1), 4);
    ReplayOptions options{
        .every = Pick(random, 1, 8), .history = Pick(random, 1, 16), .policy = kFast};
    options.horizon_windows = int64_t{50} * Pick(random, 0, 1);
    options.costs = CostsOf(series, topology, cost[Pick(random, 0, 4)]);
    for (size_t i = 0; i < std::size(kPolicies); ++i) {
      const ReplayResult result = Replay(series.trace(), topology, kPolicies[i], options).value();
      EXPECT_GE(NetShare(result.summary), -kMostHarm) << kPolicies[i];
      net[i] += NetShare(result.summary) / 60;
    }
  }
  // And it is not done by never moving.
  for (size_t i = 0; i < std::size(kPolicies); ++i) EXPECT_GT(net[i], 0.03) << kPolicies[i];
}

TEST(ReplayTest, ARecordedTraceIsNeverMadeWorse) {
  Series series;
  for (const Load& load : RecordedWindows()) series.Add(load);
  ASSERT_EQ(series.windows.size(), 240u);
  for (const char* name : kPolicies) {
    for (const int32_t slots : {64, 72}) {
      const Topology topology = series.Frame(slots, 8);
      const int64_t every = slots == 64 ? 4 : 10;
      for (const double cost : {0.001, 0.1, 10.0}) {
        ReplayOptions options{.every = every, .history = 4, .policy = kFast};
        options.costs = CostsOf(series, topology, cost);
        const ReplayResult result = Replay(series.trace(), topology, name, options).value();
        EXPECT_GE(NetShare(result.summary), cost < 0.05 ? 0.05 : -kMostHarm)
            << name << ", " << slots << " slots, cost " << cost;
      }
    }
  }
}

TEST(ReplayTest, EveryNumberIsFinite) {
  Series series;
  for (int t = 0; t < 5; ++t) {
    RealMatrix cells = RealMatrix::Constant(2, 4, 1e30);
    cells(0, t % 4) = 1e38;
    cells.row(1) = 0;
    series.Add(Load::FromEstimates(cells).value());
  }
  ReplayOptions options;
  options.costs.token_seconds = 1e300;
  const ReplayResult result =
      Replay(series.trace(), series.Frame(4, 2), "deepseek", options).value();
  EXPECT_TRUE(std::isfinite(result.summary.seconds_saved));
  EXPECT_TRUE(std::isfinite(result.summary.static_seconds));
  for (const ReplayRow& row : result.rows) EXPECT_TRUE(std::isfinite(row.saved_seconds));
}

TEST(ReplayTest, WhatCannotBeReplayedIsRefusedByName) {
  Random random(4);
  const Series series = MakeSeries(random, {.windows = 3});
  const Topology topology = series.Frame(16, 4);
  const auto message = [&](const ReplayTrace& trace, const Topology& frame,
                           const ReplayOptions& options) {
    return std::string(Replay(trace, frame, "deepseek", options).status().message());
  };
  EXPECT_THAT(message(series.trace(), topology, {.every = 0}), HasSubstr("every is 0"));
  EXPECT_THAT(message(series.trace(), topology, {.history = 0}), HasSubstr("history is 0"));
  EXPECT_EQ(message(series.trace(), topology, {.every = kMaxReplayWindows + 1}),
            "every is 2147483648, expected 1..2147483647");
  EXPECT_THAT(message(series.trace(), topology, {.decay = 2}), HasSubstr("decay is 2"));
  EXPECT_THAT(message(series.trace(), topology, {.min_gain = -1}), HasSubstr("min_gain is -1"));
  EXPECT_THAT(message({}, topology, {}), HasSubstr("0 windows"));
  const Series other = MakeSeries(random, {.windows = 2, .experts = 8});
  EXPECT_THAT(message(other.trace(), topology, {}), HasSubstr("window 0 has 2 layers x 8 experts"));
  EXPECT_THAT(message(series.trace(), series.Frame(17, 4), {}),
              HasSubstr("window 1: policy deepseek: "));
}

}  // namespace
}  // namespace eplb
