#include "tests/cuda/echo_case.h"

#include <gtest/gtest.h>

#include <utility>

#include "placement/echo/echo_plan.h"
#include "tests/support/echo_loads.h"

namespace eplb::cuda::testing {
namespace {

using eplb::testing::EchoShape;
using eplb::testing::LoadWithImbalance;
using eplb::testing::Skew;

constexpr double kTolerance = 0.01;

// What EchoPlanner gives, one layer after the other.
EchoOutputs Expected(const Placement& homes, const EchoOptions& options,
                     const std::vector<int64_t>& counts) {
  EchoOutputs expected;
  EchoPlanner planner = *EchoPlanner::Make(homes, options);
  const auto num_experts = static_cast<size_t>(homes.topology().num_experts());
  for (int32_t layer = 0; layer < homes.topology().num_layers(); ++layer) {
    EchoPlan plan;
    const std::span<const int64_t> of_layer(
        counts.data() + static_cast<size_t>(layer) * num_experts, num_experts);
    const absl::Status status = planner.Plan(LayerId{layer}, of_layer, plan);
    EXPECT_TRUE(status.ok()) << status;
    expected.home_tokens.insert(expected.home_tokens.end(), plan.home_tokens.begin(),
                                plan.home_tokens.end());
    expected.source.insert(expected.source.end(), plan.source.begin(), plan.source.end());
    expected.spare_tokens.insert(expected.spare_tokens.end(), plan.spare_tokens.begin(),
                                 plan.spare_tokens.end());
    expected.peaks.push_back(plan.peak);
  }
  return expected;
}

EchoCase CaseOf(std::string name, const Placement& homes, const EchoOptions& options,
                std::vector<int64_t> counts) {
  const Topology& topology = homes.topology();
  EchoCase result;
  result.name = std::move(name);
  result.shape = {.num_layers = topology.num_layers(),
                  .num_experts = topology.num_experts(),
                  .num_slots = topology.num_slots(),
                  .num_gpus = topology.num_gpus(),
                  .gpus_per_domain = topology.num_gpus() / options.num_domains,
                  .spares_per_gpu = options.spare_slots,
                  .tolerance = static_cast<int64_t>(kTolerance * kEchoToleranceUnit)};
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    result.first_slot.push_back(topology.FirstSlotOf(GpuId{gpu}).value);
  }
  result.first_slot.push_back(topology.num_slots());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const ExpertId expert = homes.ExpertIn(LayerId{layer}, SlotId{slot});
      result.slot_expert.push_back(expert.value);
      result.slot_num_replicas.push_back(
          expert.value < 0 ? 0 : homes.ReplicaCount(LayerId{layer}, expert));
      result.slot_replica_rank.push_back(homes.replica_rank()(layer, slot));
    }
  }
  result.expected = Expected(homes, options, counts);
  result.counts = std::move(counts);
  return result;
}

EchoCase At64Gpus(double imbalance, int32_t num_domains) {
  const EchoShape shape;
  constexpr int32_t kLayers = 3;
  std::vector<int64_t> counts;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const Skew skew = layer % 2 == 0 ? Skew::kZipf : Skew::kOneHotExpertEach;
    const std::vector<int64_t> load = LoadWithImbalance(shape, skew, imbalance, layer);
    counts.insert(counts.end(), load.begin(), load.end());
  }
  const int32_t num_experts = shape.num_gpus * shape.homes;
  const Placement homes = Placement::Static(*Topology::Make({.num_layers = kLayers,
                                                             .num_experts = num_experts,
                                                             .num_slots = num_experts,
                                                             .num_gpus = shape.num_gpus}));
  return CaseOf("64 GPUs", homes,
                {.spare_slots = 2, .tolerance = kTolerance, .num_domains = num_domains},
                std::move(counts));
}

// Experts with two homes; GPU 1 of 3 is unusable.
EchoCase WithUnusableGpu() {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 5, .num_slots = 9, .num_gpus = 3});
  IndexMatrix slots(1, 9);
  slots << 0, 1, 2, -1, -1, -1, 3, 4, 0;
  return CaseOf("an unusable GPU", *Placement::FromSlots(topology, slots),
                {.spare_slots = 1, .tolerance = kTolerance, .num_domains = 1},
                {1001, 900, 30, 2, 1});
}

// 33 GPUs, 35 experts in 37 slots.
EchoCase Ragged() {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 35, .num_slots = 37, .num_gpus = 33});
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < 70; ++i) counts.push_back(i * i * 31 % 977 + (i % 9 == 0 ? 3000 : 0));
  return CaseOf("33 GPUs", Placement::Static(topology),
                {.spare_slots = 3, .tolerance = kTolerance, .num_domains = 3}, std::move(counts));
}

// The layer in the middle has a count below 0, the last one too many tokens.
EchoCase WithBadCounts() {
  const Topology topology =
      *Topology::Make({.num_layers = 3, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
  EchoCase result = CaseOf("bad counts", Placement::Static(topology),
                           {.spare_slots = 1, .tolerance = kTolerance, .num_domains = 1},
                           {9, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  result.counts[5] = -1;
  result.counts[9] = kMaxEchoTokens;
  result.counts[11] = 1;
  result.expected.peaks[1].num_replicas = -1;
  result.expected.peaks[2].num_replicas = -1;
  return result;
}

}  // namespace

std::vector<EchoCase> EchoCases() {
  std::vector<EchoCase> cases;
  cases.push_back(CaseOf("one GPU",
                         Placement::Static(*Topology::Make(
                             {.num_layers = 1, .num_experts = 2, .num_slots = 2, .num_gpus = 1})),
                         {.spare_slots = 1, .tolerance = kTolerance, .num_domains = 1}, {5, 6}));
  for (const double imbalance : {1.51, 2.01, 3.03}) {
    cases.push_back(At64Gpus(imbalance, 1));
    cases.push_back(At64Gpus(imbalance, 8));
  }
  cases.push_back(WithUnusableGpu());
  cases.push_back(Ragged());
  cases.push_back(WithBadCounts());
  return cases;
}

EchoOutputs MakeOutputs(const EchoArgs& shape) {
  const auto layers = static_cast<size_t>(shape.num_layers);
  const size_t spares = layers * static_cast<size_t>(NumEchoSpares(shape));
  return {.home_tokens = std::vector<int64_t>(layers * static_cast<size_t>(shape.num_slots), -77),
          .source = std::vector<int32_t>(spares, -77),
          .spare_tokens = std::vector<int64_t>(spares, -77),
          .peaks = std::vector<EchoPeak>(layers, EchoPeak{.before = -77})};
}

}  // namespace eplb::cuda::testing
