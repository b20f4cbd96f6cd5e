#include "placement/split/source_quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "placement/split/batch_split.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Pick;
using testing::Random;

constexpr LayerId kOnly{0};

size_t Index(int32_t i) { return static_cast<size_t>(i); }

// Experts 0 and 1 on both GPUs, in slots 0 and 2, and 1 and 3.
Placement TwoGpus() {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 4, .num_gpus = 2});
  return Placement::Static(topology);
}

TEST(OwnQuotasTest, TokensStayOnTheirGpuAsFarAsItsQuotaGoes) {
  const Placement placement = TwoGpus();
  const std::vector<int64_t> quotas = {6, 2, 4, 2};
  const SplitBatch batch{placement, kOnly, quotas};
  // GPU 0 has 9 tokens of expert 0 and 1 of expert 1; GPU 1 has 1 and 3.
  const std::vector<int64_t> counts = {9, 1, 1, 3};
  std::vector<int64_t> own(4);
  ASSERT_TRUE(OwnQuotas(batch, counts, GpuId{0}, own).ok());
  EXPECT_THAT(own, ElementsAre(6, 1, 3, 0));
  ASSERT_TRUE(OwnQuotas(batch, counts, GpuId{1}, own).ok());
  EXPECT_THAT(own, ElementsAre(0, 1, 1, 2));
}

TEST(OwnQuotasTest, APrefixFillsSlotsInTheOrderOfReplicaRank) {
  const Placement placement = TwoGpus();
  const std::vector<int64_t> quotas = {6, 2, 4, 2};
  const SplitBatch batch{placement, kOnly, quotas};
  std::vector<int64_t> own(4);
  ASSERT_TRUE(
      OwnQuotasByPrefix(batch, std::vector<int64_t>{0, 0}, std::vector<int64_t>{9, 1}, own).ok());
  EXPECT_THAT(own, ElementsAre(6, 1, 3, 0));
  ASSERT_TRUE(
      OwnQuotasByPrefix(batch, std::vector<int64_t>{9, 1}, std::vector<int64_t>{1, 3}, own).ok());
  EXPECT_THAT(own, ElementsAre(0, 1, 1, 2));
}

TEST(OwnQuotasTest, WhatDoesNotAddUpIsRefusedByNameAndNothingIsWritten) {
  const Placement placement = TwoGpus();
  const std::vector<int64_t> quotas = {6, 2, 4, 2};
  const SplitBatch batch{placement, kOnly, quotas};
  std::vector<int64_t> own(4, -1);
  const auto refusal = [&](const std::vector<int64_t>& counts, GpuId source = GpuId{0}) {
    const absl::Status status = OwnQuotas(batch, counts, source, own);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({9, 1, 2, 3}),
              HasSubstr("layer 0: expert 0 has 11 tokens, its quotas sum to 10"));
  EXPECT_THAT(refusal({9, 5, 1, -1}), HasSubstr("expert 1 has -1 tokens of a source"));
  EXPECT_THAT(refusal({9, 1}), HasSubstr("2 counts, 4 quotas and 4 own ones, expected 4, 4 and 4"));
  EXPECT_THAT(refusal({9, 1, 1, 3}, GpuId{2}), HasSubstr("source 2 is not in 0..1"));
  const absl::Status beyond =
      OwnQuotasByPrefix(batch, std::vector<int64_t>{9, 1}, std::vector<int64_t>{2, 3}, own);
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("expert 0 has 11 tokens up to this rank"));
  EXPECT_THAT(own, ElementsAre(-1, -1, -1, -1));
}

struct Moves {
  int64_t local = 0;    // tokens that stay on their GPU
  int64_t on_node = 0;  // and on their node
};

// The most that can stay, expert by expert: no more than a GPU or node has of both.
Moves MostThatCanStay(const SplitBatch& batch, const std::vector<int64_t>& counts) {
  const Topology& topology = batch.placement.topology();
  Moves most;
  for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
    std::vector<int64_t> of_gpu(Index(topology.num_gpus()));
    for (const int32_t slot : batch.placement.ReplicasOf(batch.layer, ExpertId{expert})) {
      of_gpu[Index(topology.GpuOf(SlotId{slot}).value)] += batch.quotas[Index(slot)];
    }
    std::vector<int64_t> quota_of_node(Index(topology.num_nodes()));
    std::vector<int64_t> tokens_of_node(Index(topology.num_nodes()));
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      const int64_t tokens = counts[Index(gpu) * Index(topology.num_experts()) + Index(expert)];
      const size_t node = Index(topology.NodeOf(GpuId{gpu}).value);
      most.local += std::min(tokens, of_gpu[Index(gpu)]);
      quota_of_node[node] += of_gpu[Index(gpu)];
      tokens_of_node[node] += tokens;
    }
    for (size_t node = 0; node < quota_of_node.size(); ++node) {
      most.on_node += std::min(quota_of_node[node], tokens_of_node[node]);
    }
  }
  return most;
}

void CheckBatch(Random& random, const Placement& placement) {
  const Topology& topology = placement.topology();
  const size_t num_experts = Index(topology.num_experts());
  std::vector<int64_t> counts(Index(topology.num_gpus()) * num_experts);
  std::vector<int64_t> total(num_experts);
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = Pick(random, 0, 2) == 0 ? 0 : Pick(random, 0, 30);
    total[i % num_experts] += counts[i];
  }
  const SplitGraph graph = *SplitGraph::Make(placement);
  std::vector<int64_t> quotas(Index(topology.num_slots()));
  ASSERT_TRUE(BatchSplitter(graph).Split(kOnly, total, quotas).ok());
  const SplitBatch batch{placement, kOnly, quotas};

  std::vector<int64_t> taken(quotas.size());
  std::vector<int64_t> taken_by_prefix(quotas.size());
  std::vector<int64_t> before(num_experts);
  Moves moves;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    const auto mine = std::span(counts).subspan(Index(gpu) * num_experts, num_experts);
    std::vector<int64_t> own(quotas.size());
    std::vector<int64_t> by_prefix(quotas.size());
    ASSERT_TRUE(OwnQuotas(batch, counts, GpuId{gpu}, own).ok());
    ASSERT_TRUE(OwnQuotasByPrefix(batch, before, mine, by_prefix).ok());
    std::vector<int64_t> sums(num_experts);
    std::vector<int64_t> prefix_sums(num_experts);
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      taken[Index(slot)] += own[Index(slot)];
      taken_by_prefix[Index(slot)] += by_prefix[Index(slot)];
      const int32_t expert = placement.ExpertIn(kOnly, SlotId{slot}).value;
      sums[Index(expert)] += own[Index(slot)];
      prefix_sums[Index(expert)] += by_prefix[Index(slot)];
      const GpuId to = topology.GpuOf(SlotId{slot});
      moves.local += to == GpuId{gpu} ? own[Index(slot)] : 0;
      moves.on_node += topology.NodeOf(to) == topology.NodeOf(GpuId{gpu}) ? own[Index(slot)] : 0;
    }
    EXPECT_EQ(sums, std::vector<int64_t>(mine.begin(), mine.end()));
    EXPECT_EQ(prefix_sums, sums);
    for (size_t expert = 0; expert < num_experts; ++expert) before[expert] += mine[expert];
  }
  EXPECT_EQ(taken, quotas);
  EXPECT_EQ(taken_by_prefix, quotas);
  const Moves most = MostThatCanStay(batch, counts);
  EXPECT_EQ(moves.local, most.local);
  EXPECT_EQ(moves.on_node, most.on_node);
}

TEST(OwnQuotasTest, AllRanksTogetherMeetTheQuotasAndAsManyTokensStayAsCan) {
  Random random(20261124);
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    CheckBatch(random, testing::RandomPlacement(random, testing::RandomTopology(random)));
  }
}

}  // namespace
}  // namespace eplb
