#include "tests/placement/policy_contract.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "tests/support/exhaustive.h"

namespace eplb {
namespace {

constexpr uint64_t kPolicyContractSeed = 7;

// Shapes that no policy may refuse.
const std::vector<TopologyOptions>& Shapes() {
  static const std::vector<TopologyOptions> shapes = {
      {1, 1, 1, 1, 1, 1},   {2, 1, 4, 4, 1, 1},   {2, 8, 8, 4, 1, 1},    {3, 12, 16, 4, 1, 1},
      {2, 12, 16, 8, 2, 4}, {2, 64, 72, 8, 4, 8}, {1, 64, 64, 16, 4, 4}, {1, 96, 144, 24, 6, 24},
  };
  return shapes;
}

Load Counts(LoadMatrix counts) { return *Load::FromCounts(std::move(counts)); }

// The loads to try on a shape: spread over decades, equal, idle, one hot expert, above 2^24.
std::vector<Load> LoadsFor(const TopologyOptions& shape) {
  std::mt19937_64 random(kPolicyContractSeed);
  LoadMatrix spread(shape.num_layers, shape.num_experts);
  for (int64_t& cell : spread.reshaped()) cell = int64_t{1} << random() % 16;
  LoadMatrix hot = LoadMatrix::Zero(shape.num_layers, shape.num_experts);
  hot.col(shape.num_experts / 2) = 1000;
  LoadMatrix idle_first = spread;
  idle_first.row(0) = 0;
  const LoadMatrix equal = LoadMatrix::Constant(shape.num_layers, shape.num_experts, 5);
  const LoadMatrix large = spread + (int64_t{1} << 40) + 1;
  RealMatrix estimates = spread.cast<double>() / 3;
  return {Counts(spread), Counts(hot),   Counts(idle_first),
          Counts(equal),  Counts(large), *Load::FromEstimates(estimates)};
}

std::string Describe(const TopologyOptions& s) {
  return absl::StrCat("seed ", kPolicyContractSeed, ": ", s.num_layers, "x", s.num_experts, " on ",
                      s.num_slots, " slots, ", s.num_gpus, " GPUs, ", s.num_nodes, " nodes, ",
                      s.num_groups, " expert groups");
}

absl::StatusOr<Placement> Solve(const Policy& policy, const Load& load, const Topology& topology) {
  const Placement in_force = Placement::Static(topology);
  return policy.Solve({.load = load, .topology = topology, .previous = &in_force});
}

// Calls `check` with the policy's answer to every load on every shape.
template <class Check>
void ForEachAnswer(const Policy& policy, const Check& check) {
  for (const TopologyOptions& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    const Topology topology = *Topology::Make(shape);
    for (const Load& load : LoadsFor(shape)) {
      const absl::StatusOr<Placement> placement = Solve(policy, load, topology);
      ASSERT_TRUE(placement.ok()) << placement.status();
      check(load, *placement);
    }
  }
}

TEST_P(PolicyContractTest, EveryAnswerIsAValidPlacementOnTheGivenTopology) {
  ForEachAnswer(*policy_, [](const Load& load, const Placement& placement) {
    EXPECT_EQ(placement.topology().num_layers(), load.num_layers());
    const auto again = Placement::FromSlotsAndRanks(
        placement.topology(), placement.physical_to_logical_map(), placement.replica_rank());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE((again->logical_replica_count() == placement.logical_replica_count()).all());
    EXPECT_GE(placement.logical_replica_count().minCoeff(), 1);
  });
}

TEST_P(PolicyContractTest, EqualInputGivesAnEqualPlacement) {
  const std::unique_ptr<Policy> other = GetParam()();
  ForEachAnswer(*policy_, [&](const Load& load, const Placement& placement) {
    const auto again = Solve(*other, Load(load), placement.topology());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, placement);
  });
}

TEST_P(PolicyContractTest, AnAbandonedSearchIsCancelledAndOthersAreAsWithoutTheFlag) {
  const Topology topology = *Topology::Make({2, 12, 16, 8, 2, 4});
  const Load load = LoadsFor({2, 12, 16, 8, 2, 4}).front();
  std::atomic<bool> abandoned = false;
  const auto wanted = policy_->Solve({.load = load, .topology = topology, .abandoned = &abandoned});
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(*wanted, *policy_->Solve({.load = load, .topology = topology}));
  abandoned = true;
  EXPECT_EQ(
      policy_->Solve({.load = load, .topology = topology, .abandoned = &abandoned}).status().code(),
      absl::StatusCode::kCancelled);
}

TEST_P(PolicyContractTest, BalancednessIsAboveZeroAndAtMostOne) {
  ForEachAnswer(*policy_, [](const Load& load, const Placement& placement) {
    const Evaluation evaluation = *Evaluate(load, placement);
    for (const std::optional<double>& balancedness : evaluation.balancedness) {
      EXPECT_GT(balancedness.value_or(1), 0);
      EXPECT_LE(balancedness.value_or(1), 1);
    }
  });
}

TEST_P(PolicyContractTest, ALoadOfAnotherShapeIsRefused) {
  const Topology topology = *Topology::Make({2, 12, 16, 4, 1, 1});
  for (const auto& [layers, experts] : {std::pair{1, 12}, {3, 12}, {2, 11}, {2, 13}}) {
    const Load load = Counts(LoadMatrix::Constant(layers, experts, 3));
    const auto placement = Solve(*policy_, load, topology);
    EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(placement.status().message().find(absl::StrCat(layers)), std::string::npos);
  }
}

TEST_P(PolicyContractTest, AConstantLoadWithoutSpareSlotsIsPerfectlyEven) {
  const Topology topology = *Topology::Make({3, 24, 24, 8, 2, 4});
  const Load load = Counts(LoadMatrix::Constant(3, 24, 1000));
  const auto placement = Solve(*policy_, load, topology);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_TRUE((placement->logical_replica_count() == 1).all());
  EXPECT_EQ(Evaluate(load, *placement)->min_balancedness, 1);
}

TEST_P(PolicyContractTest, NoAnswerBeatsTheExhaustiveOptimumOfTheSmallWorld) {
  const SmallWorld world;
  const Topology topology = *Topology::Make({.num_layers = 1,
                                             .num_experts = world.num_experts,
                                             .num_slots = world.num_gpus * world.slots_per_gpu,
                                             .num_gpus = world.num_gpus});
  const std::vector<std::vector<int32_t>> placements = AllPlacements(world);
  ASSERT_EQ(placements.size(), 1560);
  constexpr int64_t kValues[] = {0, 1, 2, 5};
  double worst_ratio = 1;
  int optimal = 0;
  const std::vector<std::vector<int64_t>> loads = AllLoads(world, kValues);
  ASSERT_EQ(loads.size(), 256);
  for (const std::vector<int64_t>& cells : loads) {
    const Load load = Counts(
        Eigen::Map<const LoadMatrix>(cells.data(), 1, static_cast<Eigen::Index>(cells.size())));
    const auto placement = Solve(*policy_, load, topology);
    ASSERT_TRUE(placement.ok()) << placement.status();
    const double best = BestMaxGpuLoad(world, placements, cells);
    const IndexMatrix& slots = placement->physical_to_logical_map();
    const double found =
        MaxGpuLoad(world, {slots.data(), static_cast<size_t>(slots.size())}, cells);
    EXPECT_NEAR(found, Evaluate(load, *placement)->max_gpu_load[0], 1e-9);
    EXPECT_GE(found, best - 1e-9);
    if (found <= best + 1e-9) ++optimal;
    if (best > 0) worst_ratio = std::max(worst_ratio, found / best);
  }
  std::printf("%s: worst max GPU load / optimum %.4f, optimal on %d of %zu loads\n",
              std::string(policy_->name()).c_str(), worst_ratio, optimal, loads.size());
  RecordProperty("worst_ratio", absl::StrCat(worst_ratio));
  RecordProperty("optimal", optimal);
}

}  // namespace
}  // namespace eplb
