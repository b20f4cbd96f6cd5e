#include "placement/policies/flow_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "placement/align.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "placement/policies/balanced_policy.h"
#include "placement/policies/incremental_policy.h"
#include "placement/split/batch_split.h"
#include "tests/placement/policies/drift.h"
#include "tests/placement/policy_contract.h"
#include "tests/placement/recorded_trace.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// Asked for exact splits whatever its caller thinks of.
class BatchFlow final : public Policy {
 public:
  std::string_view name() const override { return flow_->name(); }
  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    PolicyInput batch = input;
    batch.split = SplitMode::kBatch;
    return flow_->Solve(batch);
  }

 private:
  std::unique_ptr<Policy> flow_ = MakeFlowPolicy({});
};

std::unique_ptr<Policy> MakeFlow() { return MakeFlowPolicy({}); }
std::unique_ptr<Policy> MakeBatchFlow() { return std::make_unique<BatchFlow>(); }

INSTANTIATE_TEST_SUITE_P(FlowOfEqualShares, PolicyContractTest, ::testing::Values(&MakeFlow));
INSTANTIATE_TEST_SUITE_P(Flow, PolicyContractTest, ::testing::Values(&MakeBatchFlow));

constexpr uint64_t kFlowPolicySeed = 51;

Topology ShapeOf(int32_t layers, int32_t experts, int32_t slots, int32_t gpus) {
  return *Topology::Make(
      {.num_layers = layers, .num_experts = experts, .num_slots = slots, .num_gpus = gpus});
}

Load SumOf(std::span<const Load> windows) {
  std::vector<const Load*> loads;
  for (const Load& window : windows) loads.push_back(&window);
  return *CombineLoads(loads, std::nullopt);
}

// Returns what a policy reaches if it is asked again and again.
struct Followed {
  double all = 0;           // mean balancedness of the windows, split exactly
  double first = 0;         // mean of the windows before `first_windows`
  double after_switch = 0;  // mean from the first switch up to `first_windows`
  double moved = 0;         // part of the slots that a decision copies, without the first one
  int below_equal = 0;      // layers of windows with a higher peak than in equal shares
};

struct FollowCase {
  int64_t every = 1;
  int64_t history = 1;
  int64_t late = 0;  // windows between a decision and its first window
  int64_t first_windows = 0;
};

Followed Follow(const Policy& policy, const Topology& topology, std::span<const Load> windows,
                const FollowCase& follow) {
  Followed result;
  Placement now = Placement::Static(topology);
  Placement next = now;
  const auto count = static_cast<int64_t>(windows.size());
  int64_t decisions = 0;
  int64_t watched = 0;
  int64_t in_force = -1;
  for (int64_t t = 0; t < count; ++t) {
    if (t > 0 && t % follow.every == 0) {
      const int64_t first = std::max<int64_t>(0, t - follow.history);
      const auto recent =
          windows.subspan(static_cast<size_t>(first), static_cast<size_t>(t - first));
      const Load load = SumOf(recent);
      next = *SolveAligned(policy, {.load = load,
                                    .topology = topology,
                                    .previous = &now,
                                    .split = SplitMode::kBatch,
                                    .recent = recent});
      if (in_force >= 0) {
        result.moved += static_cast<double>(SummariseMoves(now, next)->transfers);
        ++decisions;
      }
      in_force = t + follow.late;
    }
    if (t == in_force) now = next;
    const Evaluation split = *EvaluateBatch(windows[static_cast<size_t>(t)], now);
    const Evaluation equal = *Evaluate(windows[static_cast<size_t>(t)], now);
    for (size_t layer = 0; layer < split.max_gpu_load.size(); ++layer) {
      if (split.max_gpu_load[layer] > std::ceil(equal.max_gpu_load[layer])) ++result.below_equal;
    }
    result.all += *split.mean_balancedness / static_cast<double>(count);
    if (t >= follow.first_windows) continue;
    result.first += *split.mean_balancedness / static_cast<double>(follow.first_windows);
    if (t < follow.every + follow.late) continue;
    result.after_switch += *split.mean_balancedness;
    ++watched;
  }
  const double cells = static_cast<double>(topology.num_layers()) * topology.num_slots();
  if (decisions > 0) result.moved /= static_cast<double>(decisions) * cells;
  if (watched > 0) result.after_switch /= static_cast<double>(watched);
  return result;
}

TEST(FlowPolicyTest, EqualSharesAreLeftToIncremental) {
  const Topology topology = ShapeOf(2, 64, 72, 8);
  Drift drift(2, 64, 1, 0.2, kFlowPolicySeed);
  const Load load = drift.Next();
  const Placement previous = Placement::Static(topology);
  const PolicyInput input{.load = load, .topology = topology, .previous = &previous};
  EXPECT_EQ(*MakeFlowPolicy({})->Solve(input), *MakeIncrementalPolicy({})->Solve(input));
}

TEST(FlowPolicyTest, AConstantLoadIsMovedOnce) {
  const Topology topology = ShapeOf(2, 64, 72, 8);
  Drift drift(2, 64, 1, 0, kFlowPolicySeed + 1);
  const std::unique_ptr<Policy> policy = MakeFlowPolicy({});
  Placement now = Placement::Static(topology);
  for (int window = 0; window < 6; ++window) {
    const Load load = drift.Next();  // with the noise of counts
    const Placement next = *SolveAligned(*policy, {.load = load,
                                                   .topology = topology,
                                                   .previous = &now,
                                                   .split = SplitMode::kBatch,
                                                   .recent = {&load, 1}});
    EXPECT_EQ(SummariseMoves(now, next)->transfers == 0, window > 0) << window;
    now = next;
    EXPECT_GT(EvaluateBatch(load, now)->min_balancedness, 0.99);
  }
}

TEST(FlowPolicyTest, ThePeaksOfTheWindowsNeverRise) {
  const Topology topology = ShapeOf(3, 64, 72, 8);
  const std::unique_ptr<Policy> policy = MakeFlowPolicy({});
  Drift drift(3, 64, 1.2, 0.3, kFlowPolicySeed + 2);
  Placement now = Placement::Static(topology);
  for (int window = 0; window < 8; ++window) {
    const Load load = drift.Next();
    const Placement next = *SolveAligned(*policy, {.load = load,
                                                   .topology = topology,
                                                   .previous = &now,
                                                   .split = SplitMode::kBatch,
                                                   .recent = {&load, 1}});
    const Evaluation before = *EvaluateBatch(load, now);
    const Evaluation after = *EvaluateBatch(load, next);
    for (size_t layer = 0; layer < 3; ++layer) {
      EXPECT_LE(after.max_gpu_load[layer], before.max_gpu_load[layer] + 1);
    }
    now = next;
  }
}

TEST(FlowPolicyTest, NoGpuGetsMoreCopiesThanAllowed) {
  const Topology topology = ShapeOf(3, 64, 72, 8);
  Drift drift(3, 64, 1.2, 1, kFlowPolicySeed + 3);
  const Load first = drift.Next();
  const auto solve = [&](const Load& load, const Placement* previous, std::optional<int32_t> most) {
    return *SolveAligned(*MakeFlowPolicy({.max_moves_per_gpu = most}), {.load = load,
                                                                        .topology = topology,
                                                                        .previous = previous,
                                                                        .split = SplitMode::kBatch,
                                                                        .recent = {&load, 1}});
  };
  const Placement start = solve(first, nullptr, std::nullopt);
  const Load second = drift.Next();
  EXPECT_GT(SummariseMoves(start, solve(second, &start, std::nullopt))->transfers, 0);
  for (const int32_t most : {0, 1, 2}) {
    EXPECT_LE(SummariseMoves(start, solve(second, &start, most))->max_per_gpu, most);
  }
}

TEST(FlowPolicyTest, UnusableGpusHoldNothingAndSlowOnesGetLess) {
  const Topology topology = ShapeOf(2, 48, 72, 8);
  Drift drift(2, 48, 1, 0.2, kFlowPolicySeed + 4);
  const Load load = drift.Next();
  const std::vector<double> numbers = {1, 1, 0.5, 1, 1, 1, 1, 1};
  const std::vector<int32_t> unusable = {6};
  const GpuSpeeds speeds = *GpuSpeeds::Make(8, numbers, unusable);
  const Placement previous = Placement::Static(topology);
  const auto placement = SolveAligned(*MakeFlowPolicy({}), {.load = load,
                                                            .topology = topology,
                                                            .previous = &previous,
                                                            .speeds = &speeds,
                                                            .split = SplitMode::kBatch});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_FALSE(placement->Holds(GpuId{6}));
  EXPECT_GT(EvaluateBatch(load, *placement, &speeds)->min_balancedness, 0.97);
}

TEST(FlowPolicyTest, AStrictHierarchyKeepsExpertsOnTheirNode) {
  const Topology topology = *Topology::Make({.num_layers = 2,
                                             .num_experts = 64,
                                             .num_slots = 80,
                                             .num_gpus = 8,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  Drift drift(2, 64, 1, 0.3, kFlowPolicySeed + 5);
  const std::unique_ptr<Policy> policy = MakeFlowPolicy({});
  std::optional<Placement> now;
  for (int window = 0; window < 4; ++window) {
    const Load load = drift.Next();
    const auto next = SolveAligned(*policy, {.load = load,
                                             .topology = topology,
                                             .previous = now ? &*now : nullptr,
                                             .split = SplitMode::kBatch});
    ASSERT_TRUE(next.ok()) << next.status();
    for (int32_t expert = 0; expert < 64; ++expert) {
      const auto slots = next->ReplicasOf(LayerId{0}, ExpertId{expert});
      for (const int32_t slot : slots) {
        EXPECT_EQ(slot / 40, slots.front() / 40) << "expert " << expert;
        const int32_t of_group = next->PrimaryOf(LayerId{0}, ExpertId{expert / 16 * 16}).value / 40;
        EXPECT_EQ(slot / 40, of_group);
      }
    }
    now = *next;
  }
}

TEST(FlowPolicyTest, WithoutSpareSlotsItIsNoWorseThanTheIncumbent) {
  const Topology topology = ShapeOf(2, 64, 68, 8);
  Drift drift(2, 64, 1, 0.3, kFlowPolicySeed + 6);
  const Load load = drift.Next();
  const Placement previous = Placement::Static(topology);
  const Placement next = *SolveAligned(
      *MakeFlowPolicy({}),
      {.load = load, .topology = topology, .previous = &previous, .split = SplitMode::kBatch});
  EXPECT_GT(EvaluateBatch(load, next)->mean_balancedness,
            EvaluateBatch(load, previous)->mean_balancedness);
  const PolicyInput fresh{.load = load, .topology = topology, .split = SplitMode::kBatch};
  EXPECT_EQ(EvaluateBatch(load, *MakeFlowPolicy({})->Solve(fresh))->mean_balancedness,
            EvaluateBatch(load, *MakeBalancedPolicy({})->Solve(fresh))->mean_balancedness);
}

TEST(FlowPolicyTest, MoreGpusThanSplitsAllowAreRefused) {
  const Topology topology = ShapeOf(1, 2048, 4096, 2048);
  const Load load = *Load::FromCounts(LoadMatrix::Constant(1, 2048, 3));
  const auto status = MakeFlowPolicy({})
                          ->Solve({.load = load, .topology = topology, .split = SplitMode::kBatch})
                          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 1024"));
}

TEST(FlowPolicyTest, TheRecordedTraceIsFollowedAndNoRecordIsBelowEqualShares) {
  const std::vector<Load> windows = RecordedWindows();
  ASSERT_EQ(windows.size(), 240u);
  const Topology topology = ShapeOf(8, 64, 72, 8);
  const Followed flow = Follow(*MakeFlowPolicy({}), topology, windows,
                               {.every = 8, .history = 6, .late = 2, .first_windows = 96});
  std::printf(
      "moe64: %.4f over all windows, %.4f over the first 96, %.4f of them from the first "
      "switch on, %.1f %% of slots moved a decision\n",
      flow.all, flow.first, flow.after_switch, 100 * flow.moved);
  EXPECT_GE(flow.all, 0.91);
  EXPECT_GE(flow.after_switch, 0.83);
  EXPECT_LE(flow.moved, 0.25);
  EXPECT_EQ(flow.below_equal, 0);
}

TEST(FlowPolicyTest, TrainingDriftOnDeepSeekShapesIsFollowedWithFewMoves) {
  const Topology topology = ShapeOf(2, 256, 288, 32);
  Drift drift(2, 256, 0.5, 0.05, kFlowPolicySeed + 7);
  std::vector<Load> windows;
  std::generate_n(std::back_inserter(windows), 14, [&drift] { return drift.Next(); });
  const Followed flow = Follow(*MakeFlowPolicy({}), topology, windows,
                               {.every = 1, .history = 2, .late = 0, .first_windows = 14});
  std::printf("256 experts: %.4f from the first switch on, %.1f %% of slots moved a window\n",
              flow.after_switch, 100 * flow.moved);
  EXPECT_GE(flow.after_switch, 0.98);
  EXPECT_LE(flow.moved, 0.07);
  EXPECT_EQ(flow.below_equal, 0);
}

}  // namespace
}  // namespace eplb
