#include "placement/search/survival.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/evaluate.h"
#include "placement/policies/balanced_policy.h"
#include "placement/search/scenario_evaluation.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/search/random_layer.h"

namespace eplb {
namespace {

constexpr uint64_t kSurvivalSeed = 17;
constexpr int32_t kSurvivalLayers = 2;

// A planned placement on random shapes, GPUs and loads, and the demand to survive.
struct SurvivalCase {
  World world;
  Topology topology;
  Load load;
  std::vector<Scenario> scenarios;
  SurvivalOptions options;
  std::optional<Placement> planned;
  bool moves_little = false;

  PolicyInput input() const {
    return {.load = load,
            .topology = topology,
            .previous = moves_little ? &*planned : nullptr,
            .speeds = &world.speeds,
            .scenarios = scenarios};
  }
  Placement Cover() const { return *CoverLosses(input(), *planned, options); }
  Layer LayerOf(const Placement& placement, int32_t layer) const {
    const auto row = placement.physical_to_logical_map().row(layer);
    return {row.begin(), row.end()};
  }
};

RealMatrix RandomLoads(Random& random, int32_t experts) {
  RealMatrix load(kSurvivalLayers, experts);
  for (double& tokens : load.reshaped()) tokens = 1 + Pick(random, 0, 50) * Pick(random, 0, 50);
  return load;
}

SurvivalCase RandomCase(Random& random) {
  constexpr Hierarchy kHierarchies[] = {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft};
  const LayerSolverOptions rules{.hierarchy = kHierarchies[Pick(random, 0, 2)],
                                 .allow_duplicates = Pick(random, 0, 3) == 0};
  World world = RandomWorld(random, rules);
  const Topology& t = world.topology;
  const Topology topology = *Topology::Make({kSurvivalLayers, t.num_experts(), t.num_slots(),
                                             t.num_gpus(), t.num_nodes(), t.num_groups()});
  const bool nodes = rules.hierarchy != Hierarchy::kStrict && t.num_nodes() > 1;
  SurvivalCase one{
      .world = world,
      .topology = topology,
      .load = *Load::FromEstimates(RandomLoads(random, t.num_experts())),
      .options = {.hierarchy = rules.hierarchy,
                  .effort = Effort::kFast,
                  .allow_duplicates = rules.allow_duplicates,
                  .site = nodes && Pick(random, 0, 1) == 0 ? Site::kNode : Site::kGpu,
                  .most_cost = Pick(random, 0, 1) == 0 ? 1 : 0.05 * Pick(random, 0, 4)},
      .moves_little = Pick(random, 0, 2) == 0};
  if (Pick(random, 0, 2) == 0) {
    for (int32_t k = 0; k < 3; ++k) {
      one.scenarios.push_back(
          {*Load::FromEstimates(RandomLoads(random, t.num_experts())), 1.0 + k});
    }
    one.load = MeanOfScenarios(one.scenarios);
  }
  PolicyInput input = one.input();
  input.previous = nullptr;
  one.planned = *MakeBalancedPolicy({.hierarchy = rules.hierarchy,
                                     .effort = Effort::kFast,
                                     .allow_duplicates = rules.allow_duplicates})
                     ->Solve(input);
  return one;
}

template <class Check>
void ForEachCase(int cases, const Check& check) {
  Random random(kSurvivalSeed);
  for (int i = 0; i < cases; ++i) {
    const SurvivalCase one = RandomCase(random);
    SCOPED_TRACE(::testing::Message() << "case " << i << ": " << Describe(one.world));
    check(one);
    if (::testing::Test::HasFailure()) return;
  }
}

std::vector<size_t> NumOnOneSite(const SurvivalCase& one, const Placement& placement) {
  std::vector<size_t> numbers;
  for (const auto& experts : ExpertsOnOneSite(one.load, placement, one.options.site)) {
    numbers.push_back(experts.size());
  }
  return numbers;
}

TEST(SurvivalTest, EveryAnswerObeysTheConstraintsOfThePlan) {
  ForEachCase(300, [](const SurvivalCase& one) {
    const Placement placement = one.Cover();
    for (int32_t layer = 0; layer < kSurvivalLayers; ++layer) {
      ExpectLegal(
          one.world,
          {.hierarchy = one.options.hierarchy, .allow_duplicates = one.options.allow_duplicates},
          one.LayerOf(placement, layer));
    }
    EXPECT_EQ(placement, one.Cover());
  });
}

// Slots of usable GPUs on each site, of all nodes or of one.
std::vector<int32_t> SlotsOfSites(const SurvivalCase& one, std::optional<int32_t> of_node) {
  const bool nodes = one.options.site == Site::kNode;
  std::vector<int32_t> slots(AsIndex(nodes ? one.topology.num_nodes() : one.topology.num_gpus()));
  for (int32_t gpu = 0; gpu < one.topology.num_gpus(); ++gpu) {
    const int32_t node = one.topology.NodeOf(GpuId{gpu}).value;
    if (!one.world.speeds.Usable(GpuId{gpu}) || node != of_node.value_or(node)) continue;
    slots[AsIndex(nodes ? node : gpu)] += one.topology.SlotsOf(GpuId{gpu});
  }
  return slots;
}

// An expert that is covered needs a slot beyond its first, and one outside of the largest site.
// experts: those that the sites hold. left: those of them that are not covered, the hottest first.
void ExpectAsFarAsSlotsAllow(std::span<const int32_t> slots_of_sites, int32_t experts,
                             const std::vector<double>& loads, const std::vector<double>& left) {
  const int32_t all = std::accumulate(slots_of_sites.begin(), slots_of_sites.end(), 0);
  const int32_t can = std::min(experts, all - std::max(experts, std::ranges::max(slots_of_sites)));
  ASSERT_EQ(std::ssize(left), experts - can);
  if (left.empty()) return;
  EXPECT_GT(std::ranges::count_if(loads, [&](double load) { return load >= left.front(); }), can);
}

TEST(SurvivalTest, TheHottestExpertsAreCoveredAsFarAsSlotsAllow) {
  ForEachCase(3000, [](const SurvivalCase& one) {
    if (one.options.hierarchy == Hierarchy::kSoft || one.options.most_cost < 1) return;
    const Placement placement = one.Cover();
    const RealMatrix tokens = one.load.ToDouble();
    const auto rest = ExpertsOnOneSite(one.load, placement, one.options.site);
    const bool strict = one.options.hierarchy == Hierarchy::kStrict;
    for (int32_t layer = 0; layer < kSurvivalLayers; ++layer) {
      const Layer slots = one.LayerOf(placement, layer);
      for (int32_t node = 0; node < (strict ? one.topology.num_nodes() : 1); ++node) {
        const auto is_here = [&](int32_t expert) {
          return !strict || NodesOf(one.world, slots, expert).contains(node);
        };
        std::vector<double> loads;
        std::vector<double> left;
        for (int32_t expert = 0; expert < one.topology.num_experts(); ++expert) {
          if (is_here(expert)) loads.push_back(tokens(layer, expert));
        }
        for (const int32_t expert : rest[AsIndex(layer)]) {
          if (is_here(expert)) left.push_back(tokens(layer, expert));
        }
        ExpectAsFarAsSlotsAllow(SlotsOfSites(one, strict ? std::optional(node) : std::nullopt),
                                static_cast<int32_t>(loads.size()), loads, left);
      }
    }
  });
}

TEST(SurvivalTest, NoLayerCostsMoreThanAllowedAndNoneLosesCover) {
  ForEachCase(300, [](const SurvivalCase& one) {
    const Placement placement = one.Cover();
    const auto balance = [&](const Placement& of) {
      std::vector<std::optional<double>> figures;
      if (one.scenarios.empty()) {
        return Evaluate(one.load, of, {.speeds = &one.world.speeds})->balancedness;
      }
      const auto all = EvaluateScenarios(one.scenarios, ScenarioObjective::kMean, of,
                                         SplitMode::kEqual, &one.world.speeds);
      for (const auto& objective : all->objective) figures.emplace_back(1 / *objective);
      return figures;
    };
    const auto before = balance(*one.planned);
    const auto after = balance(placement);
    for (size_t layer = 0; layer < before.size(); ++layer) {
      EXPECT_GE(*after[layer], *before[layer] - one.options.most_cost - 1e-9);
    }
    if (one.options.most_cost < 1 || one.options.hierarchy != Hierarchy::kNone) return;
    EXPECT_THAT(NumOnOneSite(one, placement),
                ::testing::Pointwise(::testing::Le(), NumOnOneSite(one, *one.planned)));
  });
}

TEST(SurvivalTest, WhatCannotSurviveIsRefused) {
  const Topology topology = *Topology::Make({1, 8, 12, 4, 2, 2});
  const Load load = *Load::FromEstimates(RealMatrix::Ones(1, 8));
  const auto refusal = [&](const Topology& shape, Hierarchy hierarchy) {
    const PolicyInput input{.load = load, .topology = shape};
    const auto answer =
        CoverLosses(input, Placement::Static(shape), {.hierarchy = hierarchy, .site = Site::kNode});
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(answer.status().message());
  };
  EXPECT_THAT(refusal(topology, Hierarchy::kStrict), ::testing::HasSubstr("hierarchy strict"));
  EXPECT_THAT(refusal(*Topology::Make({1, 8, 12, 4, 1, 1}), Hierarchy::kNone),
              ::testing::HasSubstr("one node"));
}

TEST(SurvivalTest, ExpertsOnOneSiteAreListedByFallingLoad) {
  const Topology topology = *Topology::Make({1, 4, 6, 3, 1, 1});
  IndexMatrix slots(1, 6);
  slots << 0, 1, 0, 2, 3, 3;  // both replicas of expert 3 are on GPU 2
  RealMatrix load(1, 4);
  load << 9, 1, 5, 7;
  EXPECT_THAT(ExpertsOnOneSite(*Load::FromEstimates(load), *Placement::FromSlots(topology, slots),
                               Site::kGpu),
              ::testing::ElementsAre(::testing::ElementsAre(3, 2, 1)));
}

}  // namespace
}  // namespace eplb
