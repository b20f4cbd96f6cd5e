#include "placement/search/scenario_evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/placement/random_placement.h"
#include "tests/support/exhaustive.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMixtureSeed = 90;
constexpr uint64_t kBoundSeed = 91;

// Parts of a token in which the oracle counts, so that its figures are integers and its comparisons
// exact. The number is divisible by 1..16, and replica counts and sums of speeds are at most 12
// here. Products stay below 2^50: 9 experts of 101 tokens, times kMostOfMixture, times the tokens
// of a scenario, times this number.
constexpr int64_t kPart = 720'720;
constexpr int32_t kMostTokens = 100;
constexpr int32_t kMostOfMixture = 1000;

// One layer as an oracle sees it. It shares no code with the evaluation under test.
struct ReplicaMap {
  std::vector<std::vector<int32_t>> replicas;  // [E][G], replicas on each GPU
  std::vector<int64_t> speeds;                 // [G], 1 or 2

  size_t num_gpus() const { return speeds.size(); }
};

ReplicaMap ReplicaMapOf(const Placement& placement, const std::vector<int64_t>& speeds) {
  const Topology& topology = placement.topology();
  ReplicaMap result;
  result.replicas.assign(static_cast<size_t>(topology.num_experts()),
                         std::vector<int32_t>(speeds.size()));
  result.speeds = speeds;
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const auto expert = static_cast<size_t>(placement.physical_to_logical_map()(0, slot));
    ++result.replicas[expert][static_cast<size_t>(topology.GpuOf(SlotId{slot}).value)];
  }
  return result;
}

int64_t TotalOf(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

// Returns the load of each GPU [G], in parts, with an expert's tokens shared equally.
std::vector<int64_t> LoadsOfEqualShares(const ReplicaMap& layer,
                                        const std::vector<int64_t>& tokens) {
  std::vector<int64_t> loads(layer.num_gpus());
  for (size_t expert = 0; expert < tokens.size(); ++expert) {
    int64_t count = 0;
    for (const int32_t here : layer.replicas[expert]) count += here;
    for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
      loads[gpu] += layer.replicas[expert][gpu] * tokens[expert] * kPart / count;
    }
  }
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) loads[gpu] /= layer.speeds[gpu];
  return loads;
}

// Returns the largest GPU load of the best split of every expert's tokens, in parts. By the
// theorem of maximum flow and minimum cut it is the largest ratio, over all sets of GPUs, of the
// tokens that only they hold and their speed.
int64_t PeakOfBestSplit(const ReplicaMap& layer, const std::vector<int64_t>& tokens) {
  int64_t peak = 0;
  for (uint32_t set = 1; set < 1U << layer.num_gpus(); ++set) {
    int64_t speed = 0;
    for (size_t gpu = 0; gpu < layer.num_gpus(); ++gpu) {
      speed += (set >> gpu & 1) != 0 ? layer.speeds[gpu] : 0;
    }
    int64_t held = 0;
    for (size_t expert = 0; expert < tokens.size(); ++expert) {
      bool only_here = true;
      for (size_t gpu = 0; gpu < layer.num_gpus(); ++gpu) {
        only_here = only_here && (layer.replicas[expert][gpu] == 0 || (set >> gpu & 1) != 0);
      }
      held += only_here ? tokens[expert] : 0;
    }
    peak = std::max(peak, held * kPart / speed);
  }
  return peak;
}

int64_t PeakUnder(const ReplicaMap& layer, const std::vector<int64_t>& tokens, SplitMode split) {
  return split == SplitMode::kBatch ? PeakOfBestSplit(layer, tokens)
                                    : std::ranges::max(LoadsOfEqualShares(layer, tokens));
}

std::vector<int64_t> RandomTokens(Random& random, int32_t num_experts) {
  std::vector<int64_t> tokens(static_cast<size_t>(num_experts));
  const int32_t most = Pick(random, 1, kMostTokens);
  for (int64_t& cell : tokens) cell = Pick(random, 0, 3) == 0 ? 0 : Pick(random, 0, most);
  tokens[static_cast<size_t>(Pick(random, 0, num_experts - 1))] += 1;
  return tokens;
}

// Returns a Dirichlet draw with every parameter 1, scaled by kMostOfMixture and rounded.
std::vector<int64_t> RandomMixture(Random& random, size_t size) {
  std::vector<double> parts(size);
  double sum = 0;
  for (double& part : parts) sum += part = -std::log(Pick(random, 1, 1'000'000) / 1'000'001.0);
  std::vector<int64_t> weights;
  weights.reserve(size);
  for (const double part : parts) weights.push_back(std::llround(kMostOfMixture * part / sum));
  return weights;
}

Load CountsOfOneLayer(const std::vector<int64_t>& tokens) {
  return *Load::FromCounts(
      Eigen::Map<const LoadMatrix>(tokens.data(), 1, static_cast<Eigen::Index>(tokens.size())));
}

struct MixtureWorld {
  Placement placement;  // has one layer
  ReplicaMap layer;
  std::vector<std::vector<int64_t>> tokens;  // [K][E]
};

MixtureWorld RandomMixtureWorld(Random& random, bool uneven_speeds) {
  TopologyOptions options;
  options.num_layers = 1;
  options.num_experts = Pick(random, 1, 8);
  options.num_gpus = Pick(random, 1, 6);
  const int32_t least = std::max(options.num_experts, options.num_gpus);
  options.num_slots = Pick(random, least, 2 * least);
  const Topology topology = *Topology::Make(options);
  std::vector<int64_t> speeds(static_cast<size_t>(options.num_gpus), 1);
  for (int64_t& speed : speeds) speed = uneven_speeds ? Pick(random, 1, 2) : 1;
  Placement placement = RandomPlacement(random, topology);
  ReplicaMap layer = ReplicaMapOf(placement, speeds);
  std::vector<std::vector<int64_t>> tokens(static_cast<size_t>(Pick(random, 1, 5)));
  for (auto& scenario : tokens) scenario = RandomTokens(random, options.num_experts);
  return {std::move(placement), std::move(layer), std::move(tokens)};
}

// Any sum of multiples of the scenarios is, scaled to one total, also a mixture of the scenarios
// that are scaled to one total.
TEST(ScenarioEvaluationTest, NoMixtureIsLessBalancedThanTheWorstScenario) {
  Random random(kMixtureSeed);
  int better_than_all = 0;
  for (int i = 0; i < 4000; ++i) {
    const SplitMode split = i % 2 == 0 ? SplitMode::kEqual : SplitMode::kBatch;
    const MixtureWorld world = RandomMixtureWorld(random, i % 4 >= 2);
    const std::vector<int64_t> mixture = RandomMixture(random, world.tokens.size());
    std::vector<int64_t> mixed(world.tokens.front().size());
    int64_t mean_of_peaks = 0;
    for (size_t k = 0; k < mixture.size(); ++k) {
      for (size_t e = 0; e < mixed.size(); ++e) mixed[e] += mixture[k] * world.tokens[k][e];
      mean_of_peaks += mixture[k] * PeakUnder(world.layer, world.tokens[k], split);
    }
    const int64_t peak = PeakUnder(world.layer, mixed, split);
    ASSERT_LE(peak, mean_of_peaks) << "seed " << kMixtureSeed << " case " << i;
    // peak / tokens of the mixture against those of a scenario, without a division
    int no_better = 0;
    bool worst_holds = false;
    for (const std::vector<int64_t>& tokens : world.tokens) {
      const int64_t of_scenario = PeakUnder(world.layer, tokens, split) * TotalOf(mixed);
      worst_holds = worst_holds || peak * TotalOf(tokens) <= of_scenario;
      no_better += peak * TotalOf(tokens) >= of_scenario ? 1 : 0;
    }
    ASSERT_TRUE(worst_holds) << "seed " << kMixtureSeed << " case " << i;
    better_than_all += no_better == 0 ? 1 : 0;
  }
  EXPECT_GT(better_than_all, 100);
}

// The guarantee is for each layer. Here both layers of the mixture have 2/3, which is less than the
// mean of 1 and 1/2 that each scenario has; the mean of the largest GPU loads does not rise.
TEST(ScenarioEvaluationTest, TheMeanOverLayersMayBeLowerForAMixture) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
  const auto evaluated = [&](std::initializer_list<int64_t> cells) {
    const Load load = *Load::FromCounts(Eigen::Map<const LoadMatrix>(cells.begin(), 2, 4));
    return *Evaluate(load, Placement::Static(topology));
  };
  const Evaluation first = evaluated({1, 1, 1, 1, 2, 2, 0, 0});
  const Evaluation second = evaluated({2, 2, 0, 0, 1, 1, 1, 1});
  const Evaluation mixed = evaluated({3, 3, 1, 1, 3, 3, 1, 1});
  EXPECT_EQ(*first.mean_balancedness, 0.75);
  EXPECT_EQ(*second.mean_balancedness, 0.75);
  EXPECT_NEAR(*mixed.mean_balancedness, 2.0 / 3, 1e-15);
  EXPECT_EQ(mixed.peak_load, first.peak_load + second.peak_load);
}

TEST(ScenarioEvaluationTest, FiguresAreThoseOfTheOracle) {
  Random random(kMixtureSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kMixtureSeed << " case " << i);
    const SplitMode split = i % 2 == 0 ? SplitMode::kEqual : SplitMode::kBatch;
    const ScenarioObjective objective =
        i % 3 == 0 ? ScenarioObjective::kWorst : ScenarioObjective::kMean;
    const MixtureWorld world = RandomMixtureWorld(random, i % 4 >= 2);
    std::vector<double> given(world.layer.speeds.begin(), world.layer.speeds.end());
    const auto num_gpus = static_cast<int32_t>(given.size());
    const GpuSpeeds speeds = *GpuSpeeds::Make(num_gpus, given, {});
    std::vector<Scenario> scenarios;
    double worst = 0;
    double sum = 0;
    double weights = 0;
    for (const std::vector<int64_t>& tokens : world.tokens) {
      // Estimates, because whole tokens cannot always be split as the oracle does.
      const Load load = *Load::FromEstimates(CountsOfOneLayer(tokens).ToDouble());
      scenarios.push_back({.load = load, .weight = static_cast<double>(Pick(random, 1, 9))});
      const double mean = kPart * static_cast<double>(TotalOf(tokens)) /
                          static_cast<double>(TotalOf(world.layer.speeds));
      const double ratio = static_cast<double>(PeakUnder(world.layer, tokens, split)) / mean;
      worst = std::max(worst, ratio);
      sum += scenarios.back().weight * ratio;
      weights += scenarios.back().weight;
    }
    const ScenarioEvaluation found =
        *EvaluateScenarios(scenarios, objective, world.placement, split, &speeds);
    ASSERT_EQ(found.scenarios.size(), scenarios.size());
    const double expected = objective == ScenarioObjective::kWorst ? worst : sum / weights;
    ASSERT_NEAR(*found.objective.front(), expected, 1e-6 * expected);
    ASSERT_EQ(found.mean_objective, found.objective.front());
  }
}

TEST(ScenarioEvaluationTest, AScenarioCountsOnlyInLayersWhereItHasLoad) {
  const Topology topology =
      *Topology::Make({.num_layers = 3, .num_experts = 2, .num_slots = 2, .num_gpus = 2});
  LoadMatrix first(3, 2);
  LoadMatrix second(3, 2);
  first << 3, 1, 1, 1, 0, 0;
  second << 1, 1, 0, 0, 0, 0;
  const std::vector<Scenario> scenarios = {{.load = *Load::FromCounts(first), .weight = 3},
                                           {.load = *Load::FromCounts(second)}};
  const auto found = EvaluateScenarios(scenarios, ScenarioObjective::kMean,
                                       Placement::Static(topology), SplitMode::kEqual);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->objective, ::testing::ElementsAre((3 * 1.5 + 1) / 4, 1, std::nullopt));
  EXPECT_EQ(found->mean_objective, (1.375 + 1) / 2);
  EXPECT_EQ(found->mixtures_at_least, (1 / 1.5 + 1) / 2) << "the worst scenario of each layer";
}

TEST(ScenarioEvaluationTest, RefusesScenariosOfAnotherShapeThanThePlacement) {
  const Topology topology = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2});
  const std::vector<Scenario> scenarios = {{.load = CountsOfOneLayer({1, 1, 1})}};
  const ScenarioObjective mean = ScenarioObjective::kMean;
  EXPECT_THAT(EvaluateScenarios(scenarios, mean, Placement::Static(topology), SplitMode::kEqual)
                  .status()
                  .message(),
              HasSubstr("load has 1 layers x 3 experts, the placement has 1 x 2"));
  EXPECT_THAT(ScenarioBounds(scenarios, mean, topology).status().message(),
              HasSubstr("load has 1 layers x 3 experts, the topology has 1 x 2"));
  EXPECT_THAT(ScenarioBounds({}, mean, topology).status().message(), HasSubstr("0 scenarios"));
}

// Random scenarios of the small world, with both objectives.
TEST(ScenarioBoundsTest, NoPlacementOfTheSmallWorldIsBelowThem) {
  const SmallWorld world;
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 6, .num_gpus = 2});
  const std::vector<std::vector<int32_t>> placements = AllPlacements(world);
  Random random(kBoundSeed);
  int tight = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kBoundSeed << " case " << i);
    const bool worst = i % 2 == 0;
    std::vector<std::vector<int64_t>> tokens(static_cast<size_t>(Pick(random, 1, 4)));
    std::vector<Scenario> scenarios;
    double weights = 0;
    for (auto& scenario : tokens) {
      scenario = RandomTokens(random, 4);
      scenarios.push_back(
          {.load = CountsOfOneLayer(scenario), .weight = static_cast<double>(Pick(random, 1, 9))});
      weights += scenarios.back().weight;
    }
    double best = std::numeric_limits<double>::infinity();
    for (const std::vector<int32_t>& placement : placements) {
      double objective = 0;
      for (size_t k = 0; k < tokens.size(); ++k) {
        const double ratio = MaxGpuLoad(world, placement, tokens[k]) * world.num_gpus /
                             static_cast<double>(TotalOf(tokens[k]));
        objective =
            worst ? std::max(objective, ratio) : objective + scenarios[k].weight / weights * ratio;
      }
      best = std::min(best, objective);
    }
    const auto bounds = ScenarioBounds(
        scenarios, worst ? ScenarioObjective::kWorst : ScenarioObjective::kMean, topology);
    ASSERT_TRUE(bounds.ok()) << bounds.status();
    ASSERT_LE(bounds->front(), best + 1e-9);
    tight += bounds->front() > best - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(tight, 20) << "a bound that few optima reach says little";
}

TEST(ScenarioBoundsTest, NoPlacementIsBelowThemOnGpusOfOtherSpeeds) {
  Random random(kBoundSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kBoundSeed << " case " << i);
    const bool any_split = i % 2 == 0;
    const MixtureWorld world = RandomMixtureWorld(random, true);
    std::vector<double> given(world.layer.speeds.begin(), world.layer.speeds.end());
    const GpuSpeeds speeds = *GpuSpeeds::Make(static_cast<int32_t>(given.size()), given, {});
    std::vector<Scenario> scenarios;
    for (const std::vector<int64_t>& tokens : world.tokens) {
      scenarios.push_back({.load = *Load::FromEstimates(CountsOfOneLayer(tokens).ToDouble())});
    }
    for (const ScenarioObjective objective :
         {ScenarioObjective::kMean, ScenarioObjective::kWorst}) {
      const auto bounds = ScenarioBounds(scenarios, objective, world.placement.topology(),
                                         {.speeds = &speeds, .any_split = any_split});
      ASSERT_TRUE(bounds.ok()) << bounds.status();
      const ScenarioEvaluation found =
          *EvaluateScenarios(scenarios, objective, world.placement,
                             any_split ? SplitMode::kBatch : SplitMode::kEqual, &speeds);
      ASSERT_LE(bounds->front(), *found.objective.front() * (1 + 1e-6));
    }
  }
}

// Each scenario alone has a placement that is even. The mean of the three has equal experts, of
// which two share a GPU.
TEST(ScenarioBoundsTest, TheMeanOfTheScenariosCanBoundMoreThanEachAlone) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 3, .num_gpus = 2});
  const std::vector<Scenario> scenarios = {{.load = CountsOfOneLayer({2, 1, 1})},
                                           {.load = CountsOfOneLayer({1, 2, 1})},
                                           {.load = CountsOfOneLayer({1, 1, 2})}};
  EXPECT_THAT(*ScenarioBounds(scenarios, ScenarioObjective::kMean, topology),
              ::testing::ElementsAre(::testing::DoubleNear(4.0 / 3, 1e-6)));
}

}  // namespace
}  // namespace eplb
