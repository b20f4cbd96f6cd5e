#include "placement/search/scenario_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

Load OfTwoLayers(double a, double b, double c, double d) {
  RealMatrix tokens(2, 2);
  tokens << a, b, c, d;
  return *Load::FromEstimates(std::move(tokens));
}

TEST(ScenarioLoadsTest, ALayerHasTheSharesAndWeightsOfScenariosWithTokensThere) {
  const std::vector<Scenario> scenarios = {{OfTwoLayers(3, 1, 0, 0), 2},
                                           {OfTwoLayers(0, 1e-280, 5, 15), 3}};
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 2, .num_slots = 2, .num_gpus = 2});
  const ScenarioLayers layers({.load = scenarios.front().load,
                               .topology = topology,
                               .scenarios = scenarios,
                               .objective = ScenarioObjective::kWorst});
  const ScenarioLoads first = layers.Layer(0);
  EXPECT_THAT(first.tokens, ElementsAre(ElementsAre(0.75, 0.25), ElementsAre(0, 1)));
  EXPECT_THAT(first.weights, ElementsAre(2, 3));
  EXPECT_EQ(first.objective, ScenarioObjective::kWorst);
  const ScenarioLoads second = layers.Layer(1);
  EXPECT_THAT(second.tokens, ElementsAre(ElementsAre(0.25, 0.75)));
  EXPECT_THAT(second.weights, ElementsAre(3));
}

TEST(ScenarioLoadsTest, TheMeanDoesNotDependOnTheNumberOfTokens) {
  const ScenarioLoads loads = {.tokens = {{1, 1}, {0, 1e-200}, {1e200, 0}}, .weights = {2, 1, 1}};
  EXPECT_THAT(loads.Mean(), ElementsAre(DoubleEq(0.5), DoubleEq(0.5)));
}

}  // namespace
}  // namespace eplb
