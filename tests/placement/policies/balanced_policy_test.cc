#include "placement/policies/balanced_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/search/bound.h"
#include "placement/search/layer_solver.h"
#include "tests/placement/policy_contract.h"
#include "tests/placement/random_placement.h"
#include "tests/support/exhaustive.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBalancedPolicySeed = 20;
constexpr double kRounding = 1 + 1e-9;

std::unique_ptr<Policy> MakeDefault() { return MakeBalancedPolicy({}); }
std::unique_ptr<Policy> MakeFlat() {
  return MakeBalancedPolicy({.hierarchy = Hierarchy::kNone, .effort = Effort::kDefault});
}
std::unique_ptr<Policy> MakeFast() { return MakeBalancedPolicy({.effort = Effort::kFast}); }
std::unique_ptr<Policy> MakeFastFlat() {
  return MakeBalancedPolicy({.hierarchy = Hierarchy::kNone, .effort = Effort::kFast});
}
INSTANTIATE_TEST_SUITE_P(BalancedDefault, PolicyContractTest, ::testing::Values(&MakeDefault));
INSTANTIATE_TEST_SUITE_P(BalancedFlat, PolicyContractTest, ::testing::Values(&MakeFlat));
INSTANTIATE_TEST_SUITE_P(BalancedFast, PolicyContractTest, ::testing::Values(&MakeFast));
INSTANTIATE_TEST_SUITE_P(BalancedFastFlat, PolicyContractTest, ::testing::Values(&MakeFastFlat));

Placement Solve(const PolicyOptions& options, const PolicyInput& input) {
  absl::StatusOr<Placement> placement = MakeBalancedPolicy(options)->Solve(input);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *placement : Placement::Static(input.topology);
}

// Seldom a layer without load; now and then one hot expert.
Load RandomLoad(Random& random, const Topology& topology) {
  LoadMatrix counts(topology.num_layers(), topology.num_experts());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const int32_t most = Pick(random, 0, 7) == 0 ? 0 : 1 << Pick(random, 1, 14);
    for (int64_t& cell : counts.row(layer)) cell = Pick(random, 0, most);
    if (Pick(random, 0, 3) == 0) {
      counts(layer, Pick(random, 0, topology.num_experts() - 1)) *= 20;
    }
  }
  return *Load::FromCounts(counts);
}

// Shapes with expert groups on nodes; also with S % G != 0, when `uneven`.
Topology RandomShape(Random& random, bool uneven) {
  TopologyOptions shape;
  shape.num_layers = 3;
  shape.num_nodes = Pick(random, 1, 3);
  shape.num_gpus = shape.num_nodes * Pick(random, 1, 4);
  shape.num_groups = shape.num_nodes * Pick(random, 1, 3);
  shape.num_experts = shape.num_groups * Pick(random, 1, 5);
  const int32_t least = std::max(shape.num_experts, shape.num_gpus);
  shape.num_slots = Pick(random, least, 2 * least);
  if (!uneven) {
    shape.num_slots = (shape.num_slots + shape.num_gpus - 1) / shape.num_gpus * shape.num_gpus;
  }
  return *Topology::Make(shape);
}

// Experts that a GPU of a layer holds twice although it need not when any `available` may be there.
int32_t NeedlessDuplicates(const Placement& placement, int32_t layer, int32_t available) {
  const Topology& topology = placement.topology();
  int32_t needless = 0;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (!placement.Holds(GpuId{gpu})) continue;
    const int32_t* first =
        &placement.physical_to_logical_map()(layer, topology.FirstSlotOf(GpuId{gpu}).value);
    const int32_t held = topology.SlotsOf(GpuId{gpu});
    const auto different = static_cast<int32_t>(std::set<int32_t>(first, first + held).size());
    needless += std::min(held, available) - different;
  }
  return needless;
}

int32_t Available(const Topology& topology, Hierarchy hierarchy) {
  return topology.num_experts() / (hierarchy == Hierarchy::kStrict ? topology.num_nodes() : 1);
}

std::string Describe(const Topology& t) {
  return absl::StrCat("seed ", kBalancedPolicySeed, ": ", t.num_experts(), " experts on ",
                      t.num_slots(), " slots, ", t.num_gpus(), " GPUs, ", t.num_nodes(), " nodes, ",
                      t.num_groups(), " groups");
}

TEST(BalancedPolicyTest, NoLayerIsWorseThanDeepseekWithoutDuplicates) {
  Random random(kBalancedPolicySeed);
  int compared = 0;
  for (int i = 0; i < 120; ++i) {
    const Topology topology = RandomShape(random, false);
    SCOPED_TRACE(Describe(topology));
    const Load load = RandomLoad(random, topology);
    for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict}) {
      const auto reference =
          MakeDeepseekPolicy({.hierarchy = hierarchy})->Solve({.load = load, .topology = topology});
      ASSERT_TRUE(reference.ok()) << reference.status();
      const Placement own = Solve({.hierarchy = hierarchy, .effort = Effort::kFast},
                                  {.load = load, .topology = topology});
      const Evaluation theirs = *Evaluate(load, *reference);
      const Evaluation ours = *Evaluate(load, own);
      for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
        const int32_t available = Available(topology, hierarchy);
        EXPECT_EQ(NeedlessDuplicates(own, layer, available), 0);
        if (NeedlessDuplicates(*reference, layer, available) > 0) continue;
        ++compared;
        EXPECT_LE(ours.max_gpu_load[static_cast<size_t>(layer)],
                  theirs.max_gpu_load[static_cast<size_t>(layer)] * kRounding);
      }
    }
  }
  EXPECT_GT(compared, 150);
}

TEST(BalancedPolicyTest, NoLayerIsWorseThanThePreviousPlacement) {
  Random random(kBalancedPolicySeed);
  int kept = 0;
  for (int i = 0; i < 80; ++i) {
    const Topology topology = RandomShape(random, true);
    SCOPED_TRACE(Describe(topology));
    const Load load = RandomLoad(random, topology);
    for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft}) {
      const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
      if (!LayerSolver::Check(topology, equal, {.hierarchy = hierarchy}).ok()) continue;
      const Placement previous = Solve({.hierarchy = hierarchy, .effort = Effort::kDefault},
                                       {.load = load, .topology = topology});
      const PolicyOptions fast = {.hierarchy = hierarchy, .effort = Effort::kFast};
      const Placement alone = Solve(fast, {.load = load, .topology = topology});
      const Placement next =
          Solve(fast, {.load = load, .topology = topology, .previous = &previous});
      kept += next == previous && next != alone ? 1 : 0;
      const Evaluation before = *Evaluate(load, previous);
      const Evaluation after = *Evaluate(load, next);
      for (size_t layer = 0; layer < before.max_gpu_load.size(); ++layer) {
        EXPECT_LE(after.max_gpu_load[layer], before.max_gpu_load[layer] * kRounding);
      }
    }
  }
  EXPECT_GT(kept, 5);
}

TEST(BalancedPolicyTest, APreviousPlacementOnAnotherTopologyIsIgnored) {
  const Topology topology = *Topology::Make({1, 4, 6, 2, 1, 1});
  const Load load = *Load::FromCounts(LoadMatrix::Constant(1, 4, 3));
  const Placement other = Placement::Static(*Topology::Make({1, 4, 8, 2, 1, 1}));
  EXPECT_EQ(Solve({}, {.load = load, .topology = topology, .previous = &other}),
            Solve({}, {.load = load, .topology = topology}));
}

TEST(BalancedPolicyTest, UnusableGpusHoldNothingAndSpeedsCount) {
  Random random(kBalancedPolicySeed);
  LoadMatrix counts(2, 32);
  for (int64_t& cell : counts.reshaped()) cell = Pick(random, 100, 1000);
  const Load load = *Load::FromCounts(counts);
  const Topology topology = *Topology::Make({2, 32, 51, 8, 2, 4});  // 7 and 6 slots
  const std::vector<double> given = {1, 1, 0.5, 1, 1, 1, 1, 1};
  const std::vector<int32_t> unusable = {5};
  const GpuSpeeds speeds = *GpuSpeeds::Make(8, given, unusable);
  const Placement previous = Placement::Static(topology);  // holds something on GPU 5
  for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft}) {
    const Placement placement =
        Solve({.hierarchy = hierarchy},
              {.load = load, .topology = topology, .previous = &previous, .speeds = &speeds});
    const Evaluation evaluation = *Evaluate(load, placement, {.speeds = &speeds});
    for (int32_t gpu = 0; gpu < 8; ++gpu) EXPECT_EQ(placement.Holds(GpuId{gpu}), gpu != 5);
    // A GPU load is tokens / speed: near the mean, the slow GPU has half the tokens.
    EXPECT_GT(evaluation.min_balancedness, hierarchy == Hierarchy::kStrict ? 0.85 : 0.95);
  }
}

TEST(BalancedPolicyTest, DuplicatesComeOnlyWhereTheyAreAllowedAndHelp) {
  LoadMatrix counts(1, 3);
  counts << 1, 2, 3;
  const Load load = *Load::FromCounts(counts);
  const Topology topology = *Topology::Make({1, 3, 4, 2, 1, 1});
  for (const Effort effort : {Effort::kDefault, Effort::kThorough}) {
    const Placement without = Solve({.effort = effort}, {.load = load, .topology = topology});
    EXPECT_EQ(CountDuplicates(without), 0);
    EXPECT_EQ(Evaluate(load, without)->max_gpu_load[0], 3.5);
    const Placement with =
        Solve({.effort = effort, .allow_duplicates = true}, {.load = load, .topology = topology});
    EXPECT_EQ(CountDuplicates(with), 1);
    EXPECT_EQ(Evaluate(load, with)->max_gpu_load[0], 3);
  }
}

// The space with duplicates is larger and harder to search; what is found without them counts too.
TEST(BalancedPolicyTest, AllowingDuplicatesNeverCosts) {
  Random random(kBalancedPolicySeed);
  for (int i = 0; i < 60; ++i) {
    const int32_t gpus = Pick(random, 2, 16);
    const Topology topology = *Topology::Make({3, gpus, gpus * Pick(random, 2, 4), gpus, 1, 1});
    SCOPED_TRACE(Describe(topology));
    const Load load = RandomLoad(random, topology);
    for (const Effort effort : {Effort::kFast, Effort::kDefault}) {
      const Placement without = Solve({.effort = effort}, {.load = load, .topology = topology});
      const Placement with =
          Solve({.effort = effort, .allow_duplicates = true}, {.load = load, .topology = topology});
      const std::vector<double> least = Evaluate(load, without)->max_gpu_load;
      const std::vector<double> found = Evaluate(load, with)->max_gpu_load;
      for (size_t layer = 0; layer < 3; ++layer) {
        EXPECT_LE(found[layer], least[layer] * kRounding) << "layer " << layer;
      }
    }
  }
}

// The largest and the smallest load. Neither fits into float32, and the large one on a GPU of speed
// 0.001 does not fit into double.
TEST(BalancedPolicyTest, TheScaleOfALoadDoesNotMatter) {
  const Topology topology = *Topology::Make({1, 8, 12, 4, 2, 2});
  RealMatrix cells(1, 8);
  cells << 9, 8, 7, 5, 4, 3, 2, 1;
  for (const double last_speed : {0.001, 0.002}) {  // with and without a reference to compare with
    const std::vector<double> slow = {0.001, 0.001, 0.001, last_speed};
    const GpuSpeeds speeds = *GpuSpeeds::Make(4, slow, {});
    for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft}) {
      const auto solve = [&](double scale) {
        const Load load = *Load::FromEstimates(cells * scale);
        return Solve({.hierarchy = hierarchy},
                     {.load = load, .topology = topology, .speeds = &speeds});
      };
      EXPECT_TRUE(solve(0x1p1015) == solve(1));
      EXPECT_TRUE(solve(0x1p-1000) == solve(1));
    }
  }
}

TEST(BalancedPolicyTest, ARefusalNamesTheNumbers) {
  const Load load = *Load::FromCounts(LoadMatrix::Constant(1, 9, 3));
  const auto refusal = [&](const TopologyOptions& shape, const PolicyOptions& options,
                           const GpuSpeeds* speeds = nullptr) {
    const Topology topology = *Topology::Make(shape);
    const auto placement =
        MakeBalancedPolicy(options)->Solve({.load = load, .topology = topology, .speeds = speeds});
    EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(placement.status().message());
  };
  EXPECT_EQ(refusal({1, 8, 9, 3, 1, 1}, {}),
            "load has 1 layers x 9 experts, the topology has 1 x 8");
  EXPECT_THAT(refusal({1, 9, 12, 4, 2, 3}, {.hierarchy = Hierarchy::kStrict}), HasSubstr("3"));
  const std::vector<int32_t> unusable = {0};
  const GpuSpeeds speeds = *GpuSpeeds::Make(3, {}, unusable);
  EXPECT_EQ(refusal({1, 9, 12, 3, 1, 1}, {}, &speeds),
            "the 2 usable GPUs have 8 slots for 9 experts, next: 15 slots");
  EXPECT_EQ(refusal({1, 9, 12, 4, 1, 1}, {}, &speeds), "3 GPU speeds for 4 GPUs");
}

// Placements of a world without needless duplicates.
std::vector<std::vector<int32_t>> LegalPlacements(const SmallWorld& world) {
  std::vector<std::vector<int32_t>> placements = AllPlacements(world);
  std::erase_if(placements, [&](const std::vector<int32_t>& slots) {
    for (auto first = slots.begin(); first != slots.end(); first += world.slots_per_gpu) {
      if (static_cast<int32_t>(std::set<int32_t>(first, first + world.slots_per_gpu).size()) <
          std::min(world.slots_per_gpu, world.num_experts)) {
        return true;
      }
    }
    return false;
  });
  return placements;
}

// bound <= optimum <= found, and thorough finds the optimum, on all loads: one layer each.
void ExpectOptimal(const SmallWorld& world, const std::vector<std::vector<int64_t>>& loads) {
  const std::vector<std::vector<int32_t>> placements = LegalPlacements(world);
  const auto layers = static_cast<int32_t>(loads.size());
  LoadMatrix counts(layers, world.num_experts);
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (int32_t e = 0; e < world.num_experts; ++e) {
      counts(layer, e) = loads[static_cast<size_t>(layer)][static_cast<size_t>(e)];
    }
  }
  const Load load = *Load::FromCounts(counts);
  const Topology topology = *Topology::Make({.num_layers = layers,
                                             .num_experts = world.num_experts,
                                             .num_slots = world.num_gpus * world.slots_per_gpu,
                                             .num_gpus = world.num_gpus});
  const std::vector<double> bounds = *LowerBounds(load, topology);
  int optimal[3] = {};
  for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kThorough}) {
    const Placement placement = Solve({.effort = effort}, {.load = load, .topology = topology});
    const Evaluation evaluation = *Evaluate(load, placement);
    for (size_t layer = 0; layer < loads.size(); ++layer) {
      const double best = BestMaxGpuLoad(world, placements, loads[layer]);
      const double found = evaluation.max_gpu_load[layer];
      EXPECT_LE(bounds[layer], best * kRounding);
      EXPECT_LE(best, found * kRounding);
      optimal[static_cast<int>(effort)] += found <= best * (1 + 1e-5) ? 1 : 0;
      if (effort == Effort::kThorough) {
        EXPECT_LE(found, best * (1 + 1e-5)) << ::testing::PrintToString(loads[layer]);
      }
    }
  }
  std::printf("optimal on fast %d, default %d, thorough %d of %d loads\n", optimal[0], optimal[1],
              optimal[2], layers);
}

TEST(BalancedPolicyTest, ThoroughIsOptimalOnAllLoadsOfTheSmallWorld) {
  const SmallWorld world;
  constexpr int64_t kValues[] = {0, 1, 2, 5};
  ExpectOptimal(world, AllLoads(world, kValues));
}

TEST(BalancedPolicyTest, ThoroughIsOptimalOnSampledLoadsOfLargerWorlds) {
  SCOPED_TRACE(absl::StrCat("seed ", kBalancedPolicySeed));
  Random random(kBalancedPolicySeed);
  for (const SmallWorld& world : {SmallWorld{5, 3, 2}, SmallWorld{3, 2, 4}, SmallWorld{6, 2, 3}}) {
    std::vector<std::vector<int64_t>> loads;
    for (int i = 0; i < 40; ++i) {
      loads.emplace_back();
      for (int32_t e = 0; e < world.num_experts; ++e) loads.back().push_back(Pick(random, 0, 40));
    }
    ExpectOptimal(world, loads);
  }
}

}  // namespace
}  // namespace eplb
