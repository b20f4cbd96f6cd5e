#include "placement/search/layer_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/random_placement.h"
#include "tests/placement/search/random_layer.h"

namespace eplb {
namespace {

constexpr uint64_t kLayerSolverSeed = 19;

Layer Solve(const World& world, const LayerSolverOptions& options,
            const std::vector<Layer>& candidates = {}) {
  LayerSolver solver(world.topology, world.speeds, options);
  Layer slots(static_cast<size_t>(world.topology.num_slots()), -7);
  const std::vector<std::span<const int32_t>> spans(candidates.begin(), candidates.end());
  solver.Solve(world.load, spans, slots);
  return slots;
}

double PeakOf(const World& world, const Layer& slots) {
  std::vector<int32_t> counts(world.load.size());
  for (const int32_t expert : slots) {
    if (expert >= 0) ++counts[static_cast<size_t>(expert)];
  }
  std::vector<double> tokens(static_cast<size_t>(world.topology.num_gpus()));
  double peak = 0;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    const auto expert = static_cast<size_t>(slots[slot]);
    const GpuId gpu = world.topology.GpuOf(SlotId{static_cast<int32_t>(slot)});
    double& sum = tokens[static_cast<size_t>(gpu.value)];
    sum += world.load[expert] / counts[expert];
    peak = std::max(peak, sum / world.speeds.SpeedOf(gpu));
  }
  return peak;
}

template <class Check>
void ForEachWorld(int worlds, const Check& check) {
  SCOPED_TRACE(absl::StrCat("seed ", kLayerSolverSeed));
  Random random(kLayerSolverSeed);
  for (int i = 0; i < worlds; ++i) {
    for (const Hierarchy hierarchy : {Hierarchy::kNone, Hierarchy::kStrict, Hierarchy::kSoft}) {
      LayerSolverOptions options = {.hierarchy = hierarchy,
                                    .effort = i % 2 == 0 ? Effort::kFast : Effort::kDefault,
                                    .allow_duplicates = i % 4 == 3};
      const World world = RandomWorld(random, options);
      SCOPED_TRACE(absl::StrCat("hierarchy ", static_cast<int>(hierarchy), ", effort ",
                                static_cast<int>(options.effort), ": ", Describe(world)));
      check(random, world, options);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(LayerSolverTest, EveryAnswerObeysItsConstraints) {
  ForEachWorld(300, [](Random&, const World& world, const LayerSolverOptions& options) {
    ExpectLegal(world, options, Solve(world, options));
  });
}

TEST(LayerSolverTest, ThoroughAnswersObeyTheirConstraintsToo) {
  ForEachWorld(6, [](Random&, const World& world, LayerSolverOptions options) {
    options.effort = Effort::kThorough;
    World layer = world;
    TopologyOptions shape = {.num_layers = 2000,
                             .num_experts = world.topology.num_experts(),
                             .num_slots = world.topology.num_slots(),
                             .num_gpus = world.topology.num_gpus(),
                             .num_nodes = world.topology.num_nodes(),
                             .num_groups = world.topology.num_groups()};
    layer.topology = *Topology::Make(shape);
    ExpectLegal(layer, options, Solve(layer, options));
  });
}

// One solver for many layers answers as a fresh one for each.
TEST(LayerSolverTest, AnAnswerDoesNotDependOnTheLayersBefore) {
  ForEachWorld(30, [](Random& random, const World& world, const LayerSolverOptions& options) {
    LayerSolver solver(world.topology, world.speeds, options);
    for (int layer = 0; layer < 3; ++layer) {
      World now = world;
      for (double& tokens : now.load) tokens = layer == 1 ? 0 : Pick(random, 0, 50);
      Layer slots(static_cast<size_t>(world.topology.num_slots()));
      solver.Solve(now.load, {}, slots);
      EXPECT_EQ(slots, Solve(now, options));
    }
  });
}

// The answer of another effort obeys the same constraints and may be better, or lead to a better
// one.
TEST(LayerSolverTest, ACandidateIsTakenOrIsAStartIfThatIsBetter) {
  int taken = 0;
  ForEachWorld(100, [&](Random&, const World& world, const LayerSolverOptions& options) {
    LayerSolverOptions fast = options;
    fast.effort = Effort::kFast;
    LayerSolverOptions better = options;
    better.effort = Effort::kDefault;
    const Layer own = Solve(world, fast);
    const Layer candidate = Solve(world, better);
    const Layer found = Solve(world, fast, {candidate});
    const double least = std::min(PeakOf(world, own), PeakOf(world, candidate));
    EXPECT_LE(PeakOf(world, found), least * (1 + 1e-12));
    taken += found != own ? 1 : 0;
    if (PeakOf(world, candidate) >= PeakOf(world, own) && found != own) {
      EXPECT_LT(PeakOf(world, found), PeakOf(world, own) * (1 - 1e-12));
    }
  });
  EXPECT_GT(taken, 10);
}

// Candidates from everywhere: what comes out is legal, and the own answer or a better candidate.
TEST(LayerSolverTest, AnIllegalCandidateIsNeverTaken) {
  ForEachWorld(150, [](Random& random, const World& world, const LayerSolverOptions& options) {
    const Layer own = Solve(world, options);
    std::vector<Layer> candidates;
    for (int i = 0; i < 20; ++i) {
      Layer candidate = own;
      for (int j = Pick(random, 1, 4); j > 0; --j) {
        int32_t& slot =
            candidate[static_cast<size_t>(Pick(random, 0, world.topology.num_slots() - 1))];
        slot = Pick(random, -1, world.topology.num_experts() - 1);
      }
      candidates.push_back(candidate);
    }
    for (const Hierarchy other : {Hierarchy::kNone, Hierarchy::kSoft}) {
      if (!LayerSolver::Check(world.topology, world.speeds, {.hierarchy = other}).ok()) continue;
      candidates.push_back(Solve(world, {.hierarchy = other}));
      candidates.push_back(Solve(world, {.hierarchy = other, .allow_duplicates = true}));
    }
    const Layer found = Solve(world, options, candidates);
    ExpectLegal(world, options, found);
    EXPECT_TRUE(found == own || PeakOf(world, found) < PeakOf(world, own));
  });
}

TEST(LayerSolverTest, SoftUsesTheOtherNodesExpertsBeforeItHoldsOneTwice) {
  const World world = {*Topology::Make({200, 4, 6, 2, 2, 2}), GpuSpeeds::Equal(2), {9, 1, 5, 5}};
  for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kThorough}) {
    const LayerSolverOptions soft = {.hierarchy = Hierarchy::kSoft, .effort = effort};
    ExpectLegal(world, soft, Solve(world, soft));
  }
}

// Expert 0 is hot and needs the spare slot of its home. So its group must be on the node with four
// slots, although the loads of the nodes do not depend on that.
TEST(LayerSolverTest, SoftTriesOtherHomes) {
  const World world = {
      *Topology::Make({1, 6, 7, 2, 2, 2}), GpuSpeeds::Equal(2), {70, 9, 1, 5, 0, 2}};
  for (const Effort effort : {Effort::kDefault, Effort::kThorough}) {
    const Layer slots = Solve(world, {.hierarchy = Hierarchy::kSoft, .effort = effort});
    EXPECT_EQ(PeakOf(world, slots), 45) << ::testing::PrintToString(slots);
  }
}

// Under a strict hierarchy on each node, whose slots only its own experts may fill.
TEST(LayerSolverTest, ALayerWithoutLoadHasEvenCounts) {
  ForEachWorld(300, [](Random&, const World& world, const LayerSolverOptions& options) {
    World idle = world;
    std::fill(idle.load.begin(), idle.load.end(), 0.0);
    const Layer slots = Solve(idle, options);
    ExpectLegal(idle, options, slots);
    const int32_t parts = options.hierarchy == Hierarchy::kStrict ? idle.topology.num_nodes() : 1;
    std::vector<std::vector<int64_t>> counts(static_cast<size_t>(parts));
    for (int32_t e = 0; e < idle.topology.num_experts(); ++e) {
      const int32_t part = parts == 1 ? 0 : *NodesOf(idle, slots, e).begin();
      counts[static_cast<size_t>(part)].push_back(std::count(slots.begin(), slots.end(), e));
    }
    for (const std::vector<int64_t>& of_part : counts) {
      const auto [fewest, most] = std::minmax_element(of_part.begin(), of_part.end());
      EXPECT_LE(*most - *fewest, 1);
    }
  });
}

TEST(LayerSolverTest, SoftIsNotWorseThanStrict) {
  ForEachWorld(100, [](Random&, const World& world, LayerSolverOptions options) {
    if (options.hierarchy == Hierarchy::kNone) return;
    const int32_t node_experts = world.topology.num_experts() / world.topology.num_nodes();
    if (world.topology.max_slots_per_gpu() > node_experts) return;  // strict may have to copy
    options.hierarchy = Hierarchy::kStrict;
    const double strict = PeakOf(world, Solve(world, options));
    options.hierarchy = Hierarchy::kSoft;
    EXPECT_LE(PeakOf(world, Solve(world, options)), strict * (1 + 1e-12));
  });
}

TEST(LayerSolverTest, WhatCannotBeHeldIsRefusedWithTheNumbers) {
  const Topology topology = *Topology::Make({1, 8, 9, 4, 2, 4});
  const auto refusal = [&](const Topology& t, std::vector<int32_t> unusable, Hierarchy hierarchy) {
    const GpuSpeeds speeds = *GpuSpeeds::Make(4, {}, unusable);
    const absl::Status status = LayerSolver::Check(t, speeds, {.hierarchy = hierarchy});
    EXPECT_EQ(status.code(),
              status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(topology, {}, Hierarchy::kNone), "");
  EXPECT_EQ(refusal(topology, {}, Hierarchy::kStrict), "");
  EXPECT_EQ(refusal(topology, {1}, Hierarchy::kNone),
            "the 3 usable GPUs have 7 slots for 8 experts, next: 12 slots");
  EXPECT_EQ(refusal(topology, {3}, Hierarchy::kStrict),
            "node 1 has 2 usable slots for the 4 experts of its expert groups, next: 16 slots");
  EXPECT_EQ(refusal(topology, {0, 1}, Hierarchy::kSoft),
            "node 0 has 0 usable slots for the 4 experts of its expert groups");
  EXPECT_THAT(refusal(*Topology::Make({1, 9, 12, 4, 2, 3}), {}, Hierarchy::kStrict),
              ::testing::HasSubstr("3"));
  EXPECT_EQ(
      LayerSolver::Check(topology, GpuSpeeds::Equal(3), {.hierarchy = Hierarchy::kNone}).message(),
      "3 GPU speeds for 4 GPUs");
}

}  // namespace
}  // namespace eplb
