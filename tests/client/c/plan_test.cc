// Plans without a job by the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"

#include <nlohmann/json.hpp>

namespace eplb::c {

namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct PlanDeleter {
  void operator()(eplb_plan* plan) const { eplb_plan_destroy(plan); }
};
using Plan = std::unique_ptr<eplb_plan, PlanDeleter>;

struct Maps {
  eplb_plan_sizes sizes = {};
  std::vector<int64_t> slots, replicas, counts;
};

Maps MapsOf(const Plan& plan) {
  Maps maps;
  maps.sizes.struct_size = sizeof(maps.sizes);
  EXPECT_EQ(eplb_plan_get_sizes(plan.get(), &maps.sizes), EPLB_OK);
  const auto layers = static_cast<size_t>(maps.sizes.num_layers);
  const auto experts = static_cast<size_t>(maps.sizes.num_experts);
  maps.slots.assign(layers * static_cast<size_t>(maps.sizes.num_slots), -7);
  maps.replicas.assign(layers * experts * static_cast<size_t>(maps.sizes.max_replicas), -7);
  maps.counts.assign(layers * experts, -7);
  EXPECT_EQ(
      eplb_plan_copy_maps(plan.get(), maps.slots.data(), maps.replicas.data(), maps.counts.data()),
      EPLB_OK);
  return maps;
}

std::vector<float> WeightOf(const Json& golden) {
  std::vector<float> weight;
  for (const Json& row : golden["weight"]) {
    for (const Json& cell : row) {
      weight.push_back(cell.is_number_integer() ? static_cast<float>(cell.get<int64_t>())
                                                : static_cast<float>(cell.get<double>()));
    }
  }
  return weight;
}

eplb_rebalance_options OptionsOf(const Json& golden, eplb_tie_break tie_break) {
  eplb_rebalance_options options = {};
  options.struct_size = sizeof(options);
  options.num_layers = golden["layers"];
  options.num_experts = golden["experts"];
  options.num_replicas = golden["slots"];
  options.num_groups = golden["groups"];
  options.num_nodes = golden["nodes"];
  options.num_gpus = golden["gpus"];
  options.tie_break = tie_break;
  return options;
}

std::vector<int64_t> Flat(const Json& rows) {
  std::vector<int64_t> cells;
  for (const Json& row : rows) {
    for (const Json& cell : row) cells.push_back(cell.get<int64_t>());
  }
  return cells;
}

// The file leaves out the padding.
std::vector<int64_t> Padded(const Json& rows, size_t width) {
  std::vector<int64_t> cells;
  for (const Json& row : rows) {
    for (const Json& expert : row) {
      for (size_t i = 0; i < width; ++i) {
        cells.push_back(i < expert.size() ? expert[i].get<int64_t>() : -1);
      }
    }
  }
  return cells;
}

TEST(RebalanceExpertsTest, ARecordedCaseIsReproducedInBothOrders) {
  std::ifstream file(EPLB_TEST_DATA "/deepseek_eplb.json");
  const Json cases = Json::parse(file).at("cases");
  const auto golden = std::find_if(cases.begin(), cases.end(), [](const Json& each) {
    return each["name"] == "dsv3_16nodes_384";  // its orders differ in both maps
  });
  ASSERT_NE(golden, cases.end());
  const std::vector<float> weight = WeightOf(*golden);
  for (const auto& [ties, prefix] : {std::pair<eplb_tie_break, std::string>{EPLB_TIES_COMPAT, ""},
                                     {EPLB_TIES_STABLE, "stable_"}}) {
    const eplb_rebalance_options options = OptionsOf(*golden, ties);
    eplb_plan* raw = nullptr;
    ASSERT_EQ(eplb_rebalance_experts(&options, weight.data(), &raw), EPLB_OK)
        << eplb_last_message();
    const Maps maps = MapsOf(Plan(raw));
    EXPECT_EQ(maps.sizes.max_replicas, (*golden)["log2phy_width"].get<int32_t>());
    EXPECT_EQ(maps.slots, Flat((*golden)[prefix + "phy2log"]));
    EXPECT_EQ(maps.counts, Flat((*golden)["logcnt"]));
    EXPECT_EQ(maps.replicas,
              Padded((*golden)[prefix + "log2phy"], static_cast<size_t>(maps.sizes.max_replicas)));
  }
}

eplb_plan_options OptionsOf(int32_t num_slots) {
  eplb_plan_options options;
  EXPECT_EQ(eplb_plan_options_init(&options, sizeof(options)), EPLB_OK);
  options.num_layers = 2;
  options.num_experts = 4;
  options.num_slots = num_slots;
  options.num_gpus = 2;
  return options;
}

// Experts 0 and 1 are hot and begin on one GPU.
constexpr int64_t kCounts[] = {90, 80, 10, 20, 90, 80, 10, 20};

TEST(PlanTest, BalancedEvensOutAndSaysHowEven) {
  const eplb_plan_options options = OptionsOf(4);
  eplb_plan* raw = nullptr;
  ASSERT_EQ(eplb_plan_from_counts(&options, kCounts, &raw), EPLB_OK) << eplb_last_message();
  const Plan plan(raw);
  std::vector<double> balancedness(2), peak(2);
  ASSERT_EQ(eplb_plan_copy_figures(plan.get(), balancedness.data(), peak.data()), EPLB_OK);
  EXPECT_THAT(peak, Each(100.0));
  EXPECT_THAT(balancedness, Each(1.0));
  EXPECT_THAT(MapsOf(plan).counts, Each(1));
  EXPECT_EQ(eplb_plan_copy_maps(plan.get(), nullptr, nullptr, nullptr), EPLB_OK);
}

// Two loads that are each uneven where the other is even: pairs 0 1 | 2 3 and 0 2 | 1 3.
constexpr double kScenarios[] = {90, 80, 10, 20, 90, 80, 10, 20, 90, 10, 80, 20, 9, 1, 8, 2};

TEST(ScenariosTest, OnePlacementServesEveryLoad) {
  const eplb_plan_options options = OptionsOf(4);
  eplb_plan* raw = nullptr;
  ASSERT_EQ(eplb_plan_from_scenarios(&options, 2, kScenarios, nullptr, EPLB_OBJECTIVE_WORST, &raw),
            EPLB_OK)
      << eplb_last_message();
  const Plan plan(raw);
  std::vector<double> each(4), mean(2), peak(2);
  ASSERT_EQ(eplb_plan_copy_scenario_figures(plan.get(), each.data()), EPLB_OK);
  // Experts 0 and 3 are together: 110 of 200 tokens on one GPU under both loads.
  EXPECT_THAT(each, Each(DoubleNear(100.0 / 110, 1e-12)));
  ASSERT_EQ(eplb_plan_copy_figures(plan.get(), mean.data(), peak.data()), EPLB_OK);
  EXPECT_THAT(mean, Each(DoubleNear(100.0 / 110, 1e-12)));
  EXPECT_THAT(peak, Each(DoubleNear(110.0 / 200, 1e-12)));
}

TEST(ScenariosTest, TheLoadWithMostWeightDecides) {
  const eplb_plan_options options = OptionsOf(4);
  for (const int heavy : {0, 1}) {
    const double weights[] = {heavy == 0 ? 1000.0 : 1.0, heavy == 0 ? 1.0 : 1000.0};
    eplb_plan* raw = nullptr;
    ASSERT_EQ(eplb_plan_from_scenarios(&options, 2, kScenarios, weights, EPLB_OBJECTIVE_MEAN, &raw),
              EPLB_OK)
        << eplb_last_message();
    const Plan plan(raw);
    std::vector<double> each(4);
    ASSERT_EQ(eplb_plan_copy_scenario_figures(plan.get(), each.data()), EPLB_OK);
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_DOUBLE_EQ(each[static_cast<size_t>(heavy) * 2 + layer], 1) << heavy << " " << layer;
    }
  }
}

TEST(ScenariosTest, OneLoadIsPlannedAsAnEstimate) {
  const eplb_plan_options options = OptionsOf(6);
  eplb_plan *one = nullptr, *estimate = nullptr;
  ASSERT_EQ(eplb_plan_from_scenarios(&options, 1, kScenarios, nullptr, EPLB_OBJECTIVE_MEAN, &one),
            EPLB_OK);
  ASSERT_EQ(eplb_plan_from_estimates(&options, kScenarios, &estimate), EPLB_OK);
  const Plan first(one), second(estimate);
  EXPECT_EQ(MapsOf(first).slots, MapsOf(second).slots);
  std::vector<double> peaks[2] = {std::vector<double>(2), std::vector<double>(2)};
  ASSERT_EQ(eplb_plan_copy_figures(first.get(), nullptr, peaks[0].data()), EPLB_OK);
  ASSERT_EQ(eplb_plan_copy_figures(second.get(), nullptr, peaks[1].data()), EPLB_OK);
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_EQ(eplb_plan_copy_scenario_figures(second.get(), peaks[0].data()),
            EPLB_FAILED_PRECONDITION);
  EXPECT_EQ(eplb_plan_copy_scenario_figures(first.get(), nullptr), EPLB_INVALID_ARGUMENT);
}

TEST(ScenariosTest, WhatCannotBePlannedIsNamed) {
  static const double zero_last[16] = {1, 2, 3, 4, 5, 6, 7, 8};
  static const double negative[16] = {1, 2, 3, 4, 5, 6, 7, 8, 1, -1};
  static const double no_weight[] = {1, 0};
  struct Mistake {
    int32_t num_loads;
    const double *loads, *weights;
    int32_t objective;
    const char *policy, *message;
  };
  const Mistake mistakes[] = {
      {0, kScenarios, nullptr, 0, nullptr, "num_loads is 0, expected 1..64"},
      {65, kScenarios, nullptr, 0, nullptr, "num_loads is 65, expected 1..64"},
      {2, nullptr, nullptr, 0, nullptr, "loads is NULL"},
      {2, kScenarios, nullptr, 2, nullptr, "objective: 2, expected 0..1"},
      {2, kScenarios, no_weight, 0, nullptr, "scenario 1 has the weight 0"},
      {2, zero_last, nullptr, 0, nullptr, "scenario 1 has no tokens"},
      {2, negative, nullptr, 0, nullptr, "scenario 1: load: layer 0 expert 1 is -1"},
      {2, kScenarios, nullptr, 0, "deepseek", "policy deepseek plans for one load, not for 2"},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.message);
    eplb_plan_options options = OptionsOf(4);
    options.policy = mistake.policy;
    eplb_plan* plan = nullptr;
    EXPECT_EQ(eplb_plan_from_scenarios(&options, mistake.num_loads, mistake.loads, mistake.weights,
                                       mistake.objective, &plan),
              EPLB_INVALID_ARGUMENT);
    EXPECT_THAT(eplb_last_message(), HasSubstr(mistake.message));
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(PlanTest, IncrementalStartsFromThePlanBefore) {
  eplb_plan_options options = OptionsOf(4);
  options.policy = "incremental";
  eplb_plan* raw = nullptr;
  EXPECT_EQ(eplb_plan_from_counts(&options, kCounts, &raw), EPLB_INVALID_ARGUMENT);
  EXPECT_STREQ(eplb_last_message(),
               "policy incremental needs `previous`, the placement to start from");
  const std::vector<int64_t> even = {0, 2, 1, 3, 0, 2, 1, 3};
  options.previous = even.data();
  ASSERT_EQ(eplb_plan_from_counts(&options, kCounts, &raw), EPLB_OK) << eplb_last_message();
  EXPECT_EQ(MapsOf(Plan(raw)).slots, even) << "nothing to gain";
}

TEST(PlanTest, TheReferenceLooksAtGroupsInItsHierarchicalFormAlone) {
  eplb_plan_options options = OptionsOf(4);
  options.policy = "deepseek";
  options.num_groups = 3;
  options.num_nodes = 2;
  eplb_plan* raw = nullptr;
  EXPECT_EQ(eplb_plan_from_counts(&options, kCounts, &raw), EPLB_OK) << eplb_last_message();
  const Plan plan(raw);
}

TEST(PlanTest, PreviousPrimariesAreReadFromItsReplicas) {
  eplb_plan_options options = OptionsOf(6);
  const std::vector<double> load = {90, 80, 10, 20, 90, 80, 10, 20};
  eplb_plan* raw = nullptr;
  ASSERT_EQ(eplb_plan_from_estimates(&options, load.data(), &raw), EPLB_OK) << eplb_last_message();
  Maps first = MapsOf(Plan(raw));
  // The last replica becomes the primary.
  const auto width = static_cast<size_t>(first.sizes.max_replicas);
  for (size_t expert = 0; expert < first.counts.size(); ++expert) {
    std::swap(first.replicas[expert * width],
              first.replicas[expert * width + static_cast<size_t>(first.counts[expert]) - 1]);
  }
  options.previous = first.slots.data();
  options.previous_replicas = first.replicas.data();
  options.previous_max_replicas = first.sizes.max_replicas;
  ASSERT_EQ(eplb_plan_from_estimates(&options, load.data(), &raw), EPLB_OK) << eplb_last_message();
  const Maps second = MapsOf(Plan(raw));
  EXPECT_EQ(second.slots, first.slots);
  for (size_t expert = 0; expert < first.counts.size(); ++expert) {
    EXPECT_EQ(second.replicas[expert * width], first.replicas[expert * width]) << expert;
  }
}

TEST(PlanTest, UnusableGpusHoldNothing) {
  eplb_plan_options options = OptionsOf(8);
  const std::vector<double> speeds = {0, 1};
  options.gpu_speeds = speeds.data();
  eplb_plan* raw = nullptr;
  ASSERT_EQ(eplb_plan_from_counts(&options, kCounts, &raw), EPLB_OK) << eplb_last_message();
  const Maps maps = MapsOf(Plan(raw));
  EXPECT_THAT(std::vector<int64_t>(maps.slots.begin(), maps.slots.begin() + 4), Each(-1));
}

TEST(PlanTest, WhatCannotBePlannedIsNamed) {
  struct Mistake {
    void (*make)(eplb_plan_options&);
    const char* message;
  };
  static const int64_t far[] = {0, 1, 2, 9'999'999'999, 0, 1, 2, 3};
  static const int64_t below[] = {0, 1, 2, 3, 0, 1, -7, 3};
  static const int64_t outside[] = {0, 1, 2, 7, 0, 1, 2, 3};
  static const int64_t identity[] = {0, 1, 2, 3, 0, 1, 2, 3};
  const Mistake mistakes[] = {
      {[](eplb_plan_options& o) { o.policy = "best"; }, "unknown policy \"best\""},
      {[](eplb_plan_options& o) { o.num_slots = 3; }, "num_slots is 3"},
      {[](eplb_plan_options& o) { o.num_layers = 0; }, "num_layers 0"},
      {[](eplb_plan_options& o) { o.num_layers = -1; }, "num_layers -1"},
      {[](eplb_plan_options& o) { o.num_gpus = -1; }, "-1"},
      {[](eplb_plan_options& o) { o.tie_break = 5; }, "tie_break: 5, expected 0..1"},
      {[](eplb_plan_options& o) { o.hierarchy = -1; }, "hierarchy: -1, expected 0..3"},
      {[](eplb_plan_options& o) { o.effort = 3; }, "effort: 3, expected 0..2"},
      {[](eplb_plan_options& o) { o.previous = far; },
       "previous: layer 0 slot 3 holds expert 9999999999, expected -1..3"},
      {[](eplb_plan_options& o) { o.previous = below; },
       "previous: layer 1 slot 2 holds expert -7, expected -1..3"},
      {[](eplb_plan_options& o) { o.num_groups = 3; },
       "num_groups is 3, expected a divisor of the 4 experts"},
      {[](eplb_plan_options& o) { o.policy = "auto"; },
       "policy auto needs the windows of a running job"},
      {[](eplb_plan_options& o) { o.max_moves_per_gpu = -2; },
       "max_moves_per_gpu: -2, expected 0 or more, or -1"},
      {[](eplb_plan_options& o) {
         o.previous = identity, o.previous_replicas = outside, o.previous_max_replicas = 1;
       },
       "layer 0 expert 3 replica 0 is in slot 7"},
      {[](eplb_plan_options& o) { o.previous = identity, o.previous_replicas = identity; },
       "previous_max_replicas: 0, expected 1..4"},
      {[](eplb_plan_options& o) { o.struct_size = 3; }, "options.struct_size is 3"},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.message);
    eplb_plan_options options = OptionsOf(4);
    mistake.make(options);
    eplb_plan* plan = nullptr;
    EXPECT_EQ(eplb_plan_from_counts(&options, kCounts, &plan), EPLB_INVALID_ARGUMENT);
    EXPECT_THAT(eplb_last_message(), HasSubstr(mistake.message));
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(PlanTest, NullsAndLoadsThatAreNoneAreCodes) {
  const eplb_plan_options options = OptionsOf(4);
  const int64_t negative[] = {1, -2, 3, 4, 5, 6, 7, 8};
  eplb_plan* plan = nullptr;
  EXPECT_EQ(eplb_plan_from_counts(&options, negative, &plan), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_from_counts(&options, nullptr, &plan), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_from_counts(nullptr, kCounts, &plan), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_from_counts(&options, kCounts, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_rebalance_experts(nullptr, nullptr, &plan), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_get_sizes(nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_copy_maps(nullptr, nullptr, nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_plan_copy_figures(nullptr, nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  eplb_plan_destroy(nullptr);
}

TEST(PlanTest, WeightsThatAreNoLoadHaveMapsAndNoFigures) {
  eplb_rebalance_options options = {};
  options.struct_size = sizeof(options);
  options.num_layers = 1;
  options.num_experts = 3;
  options.num_replicas = 4;
  options.num_groups = options.num_nodes = 1;
  options.num_gpus = 2;
  const float weight[] = {std::numeric_limits<float>::quiet_NaN(), 1, 2};
  eplb_plan* raw = nullptr;
  ASSERT_EQ(eplb_rebalance_experts(&options, weight, &raw), EPLB_OK) << eplb_last_message();
  const Plan plan(raw);
  EXPECT_THAT(MapsOf(plan).counts, ElementsAre(2, 1, 1));
  EXPECT_EQ(eplb_plan_copy_figures(plan.get(), nullptr, nullptr), EPLB_FAILED_PRECONDITION);
  options.num_replicas = 5;
  EXPECT_EQ(eplb_rebalance_experts(&options, weight, &raw), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(eplb_last_message(), HasSubstr("5"));
}

}  // namespace

}  // namespace eplb::c
