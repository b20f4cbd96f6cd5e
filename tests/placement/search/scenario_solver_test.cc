#include "placement/search/scenario_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/random_placement.h"
#include "tests/placement/search/random_layer.h"
#include "tests/support/exhaustive.h"

namespace eplb {
namespace {

constexpr uint64_t kScenarioSolverSeed = 93;

ScenarioLoads LoadsOfWorld(Random& random, int32_t num_experts) {
  ScenarioLoads loads;
  loads.objective = Pick(random, 0, 2) == 0 ? ScenarioObjective::kWorst : ScenarioObjective::kMean;
  for (int32_t k = Pick(random, 2, 5); k > 0; --k) {
    loads.weights.push_back(Pick(random, 1, 3));
    loads.tokens.emplace_back();
    for (int32_t e = 0; e < num_experts; ++e) loads.tokens.back().push_back(Pick(random, 0, 50));
    loads.tokens.back()[static_cast<size_t>(Pick(random, 0, num_experts - 1))] += 100;
  }
  return loads;
}

Layer SolveFor(const World& world, const ScenarioLoads& loads, const LayerSolverOptions& options,
               const std::vector<Layer>& candidates = {}) {
  ScenarioSolver solver(world.topology, world.speeds, options);
  Layer slots(static_cast<size_t>(world.topology.num_slots()), -7);
  const std::vector<std::span<const int32_t>> spans(candidates.begin(), candidates.end());
  solver.Solve(loads, spans, slots);
  return slots;
}

// Returns the objective from nothing but the layer.
double ObjectiveOfLayer(const World& world, const ScenarioLoads& loads, const Layer& slots) {
  double mean = 0;
  double worst = 0;
  for (size_t k = 0; k < loads.tokens.size(); ++k) {
    std::vector<double> gpu_loads(static_cast<size_t>(world.topology.num_gpus()));
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot] < 0) continue;
      const GpuId gpu = world.topology.GpuOf(SlotId{static_cast<int32_t>(slot)});
      gpu_loads[static_cast<size_t>(gpu.value)] +=
          loads.tokens[k][static_cast<size_t>(slots[slot])] /
          static_cast<double>(std::ranges::count(slots, slots[slot])) / world.speeds.SpeedOf(gpu);
    }
    const double sum = std::accumulate(loads.tokens[k].begin(), loads.tokens[k].end(), 0.0);
    const double ratio = std::ranges::max(gpu_loads) / (sum / world.speeds.total());
    mean += loads.weights[k] * ratio;
    worst = std::max(worst, ratio);
  }
  return loads.objective == ScenarioObjective::kWorst
             ? worst
             : mean / std::accumulate(loads.weights.begin(), loads.weights.end(), 0.0);
}

template <class Check>
void ForEachScenarioWorld(int worlds, const Check& check) {
  Random random(kScenarioSolverSeed);
  for (int i = 0; i < worlds; ++i) {
    for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft}) {
      const LayerSolverOptions options = {.hierarchy = hierarchy,
                                          .effort = i % 2 == 0 ? Effort::kFast : Effort::kDefault,
                                          .allow_duplicates = i % 4 == 3};
      const World world = RandomWorld(random, options);
      const ScenarioLoads loads = LoadsOfWorld(random, world.topology.num_experts());
      SCOPED_TRACE(absl::StrCat("seed ", kScenarioSolverSeed, ", hierarchy ",
                                static_cast<int>(hierarchy), ", effort ",
                                static_cast<int>(options.effort), ": ", Describe(world)));
      check(random, world, loads, options);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(ScenarioSolverTest, EveryAnswerObeysItsConstraints) {
  ForEachScenarioWorld(200, [](Random&, const World& world, const ScenarioLoads& loads,
                               const LayerSolverOptions& options) {
    ExpectLegal(world, options, SolveFor(world, loads, options));
  });
}

// Each GPU has a slot for every expert, but under a strict hierarchy only those of its node.
TEST(ScenarioSolverTest, StrictGpusHoldExpertsOfTheirNodeTwiceRatherThanOthers) {
  const World world = {*Topology::Make({1, 4, 8, 2, 2, 2}), GpuSpeeds::Equal(2), {}};
  const LayerSolverOptions strict = {.hierarchy = Hierarchy::kStrict};
  ExpectLegal(world, strict,
              SolveFor(world, {.tokens = {{9, 1, 5, 5}, {1, 9, 5, 5}}, .weights = {1, 1}}, strict));
}

TEST(ScenarioSolverTest, ThoroughAnswersObeyThemAndAreNoWorse) {
  ForEachScenarioWorld(
      6, [](Random&, const World& world, const ScenarioLoads& loads, LayerSolverOptions options) {
        options.effort = Effort::kDefault;
        const double usual = ObjectiveOfLayer(world, loads, SolveFor(world, loads, options));
        options.effort = Effort::kThorough;
        const Layer thorough = SolveFor(world, loads, options);
        ExpectLegal(world, options, thorough);
        EXPECT_LE(ObjectiveOfLayer(world, loads, thorough), usual * (1 + 1e-9));
      });
}

// One solver for many layers answers as a fresh one for each.
TEST(ScenarioSolverTest, AnAnswerDoesNotDependOnTheLayersBefore) {
  ForEachScenarioWorld(30, [](Random& random, const World& world, const ScenarioLoads&,
                              const LayerSolverOptions& options) {
    ScenarioSolver solver(world.topology, world.speeds, options);
    for (int layer = 0; layer < 3; ++layer) {
      const ScenarioLoads loads = LoadsOfWorld(random, world.topology.num_experts());
      Layer slots(static_cast<size_t>(world.topology.num_slots()));
      solver.Solve(loads, {}, slots);
      EXPECT_EQ(slots, SolveFor(world, loads, options));
    }
  });
}

TEST(ScenarioSolverTest, ABetterLegalCandidateIsTakenAndNoOther) {
  int taken = 0;
  ForEachScenarioWorld(100, [&](Random& random, const World& world, const ScenarioLoads& loads,
                                LayerSolverOptions options) {
    options.effort = Effort::kDefault;
    const Layer better = SolveFor(world, loads, options);
    options.effort = Effort::kFast;
    const Layer own = SolveFor(world, loads, options);
    std::vector<Layer> candidates = {better};
    for (int i = 0; i < 10; ++i) {
      candidates.push_back(own);
      for (int j = Pick(random, 1, 4); j > 0; --j) {
        candidates.back()[static_cast<size_t>(Pick(random, 0, world.topology.num_slots() - 1))] =
            Pick(random, -1, world.topology.num_experts() - 1);
      }
    }
    const Layer found = SolveFor(world, loads, options, candidates);
    ExpectLegal(world, options, found);
    EXPECT_LE(
        ObjectiveOfLayer(world, loads, found),
        std::min(ObjectiveOfLayer(world, loads, own), ObjectiveOfLayer(world, loads, better)) *
            (1 + 1e-9));
    taken += found != own ? 1 : 0;
  });
  EXPECT_GT(taken, 50);
}

// All placements of the small world, in which one expert may hold two slots of a GPU.
TEST(ScenarioSolverTest, MostlyReachesTheBestOfAllPlacementsOfTheSmallWorld) {
  constexpr int kWorlds = 200;
  const SmallWorld small;
  const std::vector<std::vector<int32_t>> placements = AllPlacements(small);
  const World world = {*Topology::Make({.num_layers = 1000,
                                        .num_experts = small.num_experts,
                                        .num_slots = small.num_gpus * small.slots_per_gpu,
                                        .num_gpus = small.num_gpus}),
                       GpuSpeeds::Equal(small.num_gpus),
                       {}};
  Random random(kScenarioSolverSeed);
  int usual = 0;
  int thorough = 0;
  for (int i = 0; i < kWorlds; ++i) {
    const ScenarioLoads loads = LoadsOfWorld(random, small.num_experts);
    double best = std::numeric_limits<double>::infinity();
    for (const Layer& placement : placements) {
      best = std::min(best, ObjectiveOfLayer(world, loads, placement));
    }
    const auto reaches = [&](Effort effort) {
      const Layer found = SolveFor(world, loads, {.effort = effort, .allow_duplicates = true});
      const double objective = ObjectiveOfLayer(world, loads, found);
      EXPECT_GE(objective, best * (1 - 1e-9)) << "seed " << kScenarioSolverSeed << " world " << i;
      return objective <= best * (1 + 1e-9) ? 1 : 0;
    };
    usual += reaches(Effort::kDefault);
    thorough += reaches(Effort::kThorough);
  }
  // Measured: 170 of 200 with either effort. One start does not reach the others' optima.
  EXPECT_GE(usual, 160);
  EXPECT_GE(thorough, 160);
}

}  // namespace
}  // namespace eplb
