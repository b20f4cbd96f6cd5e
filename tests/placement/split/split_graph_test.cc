#include "placement/split/split_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "placement/split/split_body.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/split/random_batch.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An expert on one GPU.
struct Holding {
  int32_t gpu = 0;
  std::vector<int32_t> slots;  // by replica rank

  friend bool operator==(const Holding&, const Holding&) = default;
};

// [E], GPUs by the first replica there: straight from the placement.
std::vector<std::vector<Holding>> HoldingsOf(const Placement& placement, LayerId layer) {
  std::vector<std::vector<Holding>> result;
  for (int32_t expert = 0; expert < placement.topology().num_experts(); ++expert) {
    std::vector<Holding>& holdings = result.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(layer, ExpertId{expert})) {
      const int32_t gpu = placement.topology().GpuOf(SlotId{slot}).value;
      auto at = std::find_if(holdings.begin(), holdings.end(),
                             [gpu](const Holding& holding) { return holding.gpu == gpu; });
      if (at == holdings.end()) at = holdings.insert(at, {.gpu = gpu, .slots = {}});
      at->slots.push_back(slot);
    }
  }
  return result;
}

std::vector<int32_t> GpusOf(const std::vector<Holding>& holdings) {
  std::vector<int32_t> gpus;
  gpus.reserve(holdings.size());
  for (const Holding& holding : holdings) gpus.push_back(holding.gpu);
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

// Fixed experts, and the parts of the replicated ones.
void CheckExperts(const SplitLayer& layer, const std::vector<std::vector<Holding>>& holdings) {
  int32_t fixed = 0;
  int32_t replicated = 0;
  for (int32_t expert = 0; expert < std::ssize(holdings); ++expert) {
    const std::vector<Holding>& of_expert = holdings[static_cast<size_t>(expert)];
    if (of_expert.size() == 1) {
      ASSERT_LT(fixed, layer.num_fixed);
      EXPECT_EQ(layer.fixed_expert[fixed], expert);
      EXPECT_EQ(layer.fixed_gpu[fixed++], of_expert.front().gpu);
      continue;
    }
    ASSERT_LT(replicated, layer.num_replicated);
    EXPECT_EQ(layer.expert[replicated], expert);
    int32_t before = 0;
    int32_t i = layer.first_of_expert[replicated];
    for (const Holding& holding : of_expert) {
      EXPECT_EQ(layer.expert_gpu[i], holding.gpu);
      EXPECT_EQ(layer.expert_slots[i], std::ssize(holding.slots));
      EXPECT_EQ(layer.slots_before[i], before);
      EXPECT_EQ(layer.expert_of[i], replicated);
      before += layer.expert_slots[i++];
    }
    EXPECT_EQ(layer.num_replicas[replicated], before);
    EXPECT_EQ(layer.first_of_expert[++replicated], i);
  }
  EXPECT_EQ(layer.num_fixed, fixed);
  EXPECT_EQ(layer.num_replicated, replicated);
}

// Parts by their number: GPU by GPU, and in a ring those of an expert.
void CheckParts(const SplitLayer& layer) {
  const int32_t num_parts = layer.num_parts;
  EXPECT_EQ(layer.first_of_expert[layer.num_replicated], num_parts);
  EXPECT_EQ(layer.first_on_gpu[0], 0);
  EXPECT_EQ(layer.first_on_gpu[layer.num_gpus], num_parts);
  std::vector<int32_t> seen(static_cast<size_t>(num_parts));
  for (int32_t expert = 0; expert < layer.num_replicated; ++expert) {
    for (int32_t i = layer.first_of_expert[expert]; i < layer.first_of_expert[expert + 1]; ++i) {
      const int32_t part = layer.expert_part[i];
      ++seen[static_cast<size_t>(part)];
      EXPECT_EQ(layer.part_place[part], i);
      EXPECT_EQ(layer.expert_of[i], expert);
      EXPECT_EQ(layer.ring_first[part], layer.first_of_expert[expert]);
      EXPECT_EQ(layer.ring_first[part] + layer.ring_size[part], layer.first_of_expert[expert + 1]);
      EXPECT_GE(part, layer.first_on_gpu[layer.expert_gpu[i]]);
      EXPECT_LT(part, layer.first_on_gpu[layer.expert_gpu[i] + 1]);
    }
  }
  EXPECT_EQ(seen, std::vector<int32_t>(seen.size(), 1)) << "each part has one expert";
}

void CheckInnerExperts(const SplitLayer& layer, const std::vector<std::vector<Holding>>& holdings) {
  const auto gpus_of = [&](int32_t replicated) {
    return GpusOf(holdings[static_cast<size_t>(layer.expert[replicated])]);
  };
  const std::vector<int32_t> outers(layer.outer_expert, layer.outer_expert + layer.num_inner);
  EXPECT_TRUE(std::is_sorted(outers.begin(), outers.end()));
  for (int32_t outer = 0; outer < layer.num_replicated; ++outer) {
    std::vector<int32_t> expected;
    bool is_first = true;  // first of those with its GPUs
    for (int32_t inner = 0; inner < layer.num_replicated; ++inner) {
      const std::vector<int32_t> of_outer = gpus_of(outer);
      const std::vector<int32_t> of_inner = gpus_of(inner);
      const bool is_inner = inner != outer && std::includes(of_outer.begin(), of_outer.end(),
                                                            of_inner.begin(), of_inner.end());
      if (is_inner) expected.push_back(inner);
      is_first = is_first && (inner >= outer || of_inner != of_outer);
    }
    if (!is_first) expected.clear();
    const auto [begin, end] = std::equal_range(outers.begin(), outers.end(), outer);
    std::vector<int32_t> inner(layer.inner_expert + (begin - outers.begin()),
                               layer.inner_expert + (end - outers.begin()));
    std::sort(inner.begin(), inner.end());
    EXPECT_EQ(inner, expected);
  }
}

void CheckSlots(const SplitLayer& layer, const std::vector<std::vector<Holding>>& holdings) {
  std::vector<std::pair<int32_t, int32_t>> shared(static_cast<size_t>(layer.num_slots), {1, 0});
  for (int32_t i = 0; i < layer.num_shared; ++i) {
    shared[static_cast<size_t>(layer.shared_slot[i])] = {layer.shared_among[i],
                                                         layer.shared_place[i]};
  }
  std::vector<std::pair<int32_t, int32_t>> expected(shared.size(), {0, 0});
  for (int32_t expert = 0; expert < std::ssize(holdings); ++expert) {
    std::vector<int32_t> replicas(layer.replica_slot + layer.first_slot[expert],
                                  layer.replica_slot + layer.first_slot[expert + 1]);
    for (const Holding& holding : holdings[static_cast<size_t>(expert)]) {
      for (size_t place = 0; place < holding.slots.size(); ++place) {
        const int32_t slot = holding.slots[place];
        EXPECT_EQ(std::count(replicas.begin(), replicas.end(), slot), 1);
        expected[static_cast<size_t>(slot)] = {std::ssize(holding.slots), place};
        const int32_t source = layer.slot_source[slot];
        if (holdings[static_cast<size_t>(expert)].size() == 1) {
          EXPECT_EQ(source, 2 * expert);
          continue;
        }
        ASSERT_EQ(source % 2, 1);
        EXPECT_EQ(layer.expert_gpu[layer.part_place[source / 2]], holding.gpu);
        EXPECT_EQ(layer.expert[layer.expert_of[layer.part_place[source / 2]]], expert);
      }
    }
  }
  EXPECT_EQ(shared, expected) << "slots without an expert share among 0";
}

TEST(SplitGraphTest, TablesAreThePlacement) {
  Random random(20261125);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const Placement of_usable = RandomPlacement(random, RandomTopology(random));
    const auto [placement, speeds] = WithRandomSpeeds(random, of_usable);
    const SplitGraph graph = *SplitGraph::Make(placement, {.speeds = &speeds});
    const Topology& topology = placement.topology();
    ASSERT_EQ(graph.num_layers(), topology.num_layers());
    EXPECT_EQ(graph.num_experts(), topology.num_experts());
    EXPECT_EQ(graph.num_slots(), topology.num_slots());
    EXPECT_EQ(graph.num_gpus(), topology.num_gpus());
    for (int32_t l = 0; l < graph.num_layers(); ++l) {
      const SplitLayer layer = graph.Layer(LayerId{l});
      const std::vector<std::vector<Holding>> holdings = HoldingsOf(placement, LayerId{l});
      CheckExperts(layer, holdings);
      CheckParts(layer);
      CheckInnerExperts(layer, holdings);
      CheckSlots(layer, holdings);
    }
    int32_t most_slots = 0;
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      most_slots = std::max(most_slots, topology.SlotsOf(GpuId{gpu}));
    }
    EXPECT_EQ(graph.Tables().shape.max_slots_of_gpu, most_slots);
  }
}

// Experts 0 and 2 on GPUs 0 and 1, expert 2 twice on GPU 0; expert 1 on GPUs 1 and 2; expert 3
// twice on GPU 2.
Placement ThreeGpus() {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 9, .num_gpus = 3});
  const std::vector<int32_t> slots = {0, 2, 2, 1, 0, 2, 3, 1, 3};
  return *Placement::FromSlots(topology, Eigen::Map<const IndexMatrix>(slots.data(), 1, 9));
}

TEST(SplitGraphTest, SpeedsAreOneWhereAllAreEqualAndElseHave24Bits) {
  const Placement placement = ThreeGpus();
  EXPECT_THAT(SplitGraph::Make(placement)->speeds(), ElementsAre(1, 1, 1));
  const auto speeds_of = [&](std::vector<double> values) {
    const GpuSpeeds speeds = *GpuSpeeds::Make(3, values, {});
    const SplitGraph graph = *SplitGraph::Make(placement, {.speeds = &speeds});
    EXPECT_EQ(graph.Layer(LayerId{0}).equal_speeds, speeds.all_equal());
    return std::vector<int64_t>(graph.speeds().begin(), graph.speeds().end());
  };
  EXPECT_THAT(speeds_of({0.7, 0.7, 0.7}), ElementsAre(1, 1, 1));
  EXPECT_THAT(speeds_of({2, 1, 0.5}),
              ElementsAre(kMaxSplitSpeed, kMaxSplitSpeed / 2, kMaxSplitSpeed / 4));
}

TEST(SplitGraphTest, MarginsAreTakenTo20Bits) {
  const Placement placement = ThreeGpus();
  for (const double margin : {0.0, 0.25, 1.0}) {
    const SplitGraph graph =
        *SplitGraph::Make(placement, {.slack = margin, .tolerance = 1 - margin});
    EXPECT_EQ(graph.margins().slack, margin * kSplitSlackUnit);
    EXPECT_EQ(graph.margins().tolerance, (1 - margin) * kSplitSlackUnit);
  }
}

TEST(SplitGraphTest, WhatCannotBeSplitIsRefusedByName) {
  const Placement placement = ThreeGpus();
  const auto refusal = [&](const BatchSplitOptions& options) {
    const absl::Status status = SplitGraph::Make(placement, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const GpuSpeeds two = GpuSpeeds::Equal(2);
  const GpuSpeeds one_off = *GpuSpeeds::Make(3, {}, std::vector<int32_t>{1});
  EXPECT_THAT(refusal({.speeds = &two}), HasSubstr("2 GPU speeds, the placement has 3 GPUs"));
  EXPECT_THAT(refusal({.speeds = &one_off}),
              HasSubstr("GPU 1 is unusable, but the placement has experts on it"));
  EXPECT_THAT(refusal({.slack = -0.1}), HasSubstr("slack is -0.1, expected 0..1"));
  EXPECT_THAT(refusal({.slack = 1.5}), HasSubstr("slack is 1.5, expected 0..1"));
  EXPECT_THAT(refusal({.slack = std::nan("")}), HasSubstr("slack is nan, expected 0..1"));
  EXPECT_THAT(refusal({.tolerance = 1.5}), HasSubstr("tolerance is 1.5, expected 0..1"));
  const Topology large =
      *Topology::Make({.num_layers = 1, .num_experts = 1, .num_slots = 1025, .num_gpus = 1025});
  EXPECT_THAT(std::string(SplitGraph::Make(Placement::Static(large)).status().message()),
              HasSubstr("an EP group of 1025 GPUs, batches are split over at most 1024"));
}

}  // namespace
}  // namespace eplb
