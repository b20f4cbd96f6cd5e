#include "placement/split/source_quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "placement/split/batch_split.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

constexpr LayerId kOnly{0};

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
  OwnQuotas(batch, counts, GpuId{0}, own);
  EXPECT_THAT(own, ElementsAre(6, 1, 3, 0));
  OwnQuotas(batch, counts, GpuId{1}, own);
  EXPECT_THAT(own, ElementsAre(0, 1, 1, 2));
}

TEST(OwnQuotasTest, APrefixFillsSlotsInTheOrderOfReplicaRank) {
  const Placement placement = TwoGpus();
  const std::vector<int64_t> quotas = {6, 2, 4, 2};
  const SplitBatch batch{placement, kOnly, quotas};
  std::vector<int64_t> own(4);
  OwnQuotasByPrefix(batch, std::vector<int64_t>{0, 0}, std::vector<int64_t>{9, 1}, own);
  EXPECT_THAT(own, ElementsAre(6, 1, 3, 0));
  OwnQuotasByPrefix(batch, std::vector<int64_t>{9, 1}, std::vector<int64_t>{1, 3}, own);
  EXPECT_THAT(own, ElementsAre(0, 1, 1, 2));
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
    std::vector<int64_t> of_gpu(AsIndex(topology.num_gpus()));
    for (const int32_t slot : batch.placement.ReplicasOf(batch.layer, ExpertId{expert})) {
      of_gpu[AsIndex(topology.GpuOf(SlotId{slot}).value)] += batch.quotas[AsIndex(slot)];
    }
    std::vector<int64_t> quota_of_node(AsIndex(topology.num_nodes()));
    std::vector<int64_t> tokens_of_node(AsIndex(topology.num_nodes()));
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      const int64_t tokens =
          counts[AsIndex(gpu) * AsIndex(topology.num_experts()) + AsIndex(expert)];
      const size_t node = AsIndex(topology.NodeOf(GpuId{gpu}).value);
      most.local += std::min(tokens, of_gpu[AsIndex(gpu)]);
      quota_of_node[node] += of_gpu[AsIndex(gpu)];
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
  const size_t num_experts = AsIndex(topology.num_experts());
  std::vector<int64_t> counts(AsIndex(topology.num_gpus()) * num_experts);
  std::vector<int64_t> total(num_experts);
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = Pick(random, 0, 2) == 0 ? 0 : Pick(random, 0, 30);
    total[i % num_experts] += counts[i];
  }
  const SplitGraph graph = *SplitGraph::Make(placement);
  std::vector<int64_t> quotas(AsIndex(topology.num_slots()));
  ASSERT_TRUE(BatchSplitter(graph).Split(kOnly, total, quotas).ok());
  const SplitBatch batch{placement, kOnly, quotas};

  std::vector<int64_t> taken(quotas.size());
  std::vector<int64_t> taken_by_prefix(quotas.size());
  std::vector<int64_t> before(num_experts);
  Moves moves;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    const auto mine = std::span(counts).subspan(AsIndex(gpu) * num_experts, num_experts);
    std::vector<int64_t> own(quotas.size());
    std::vector<int64_t> by_prefix(quotas.size());
    OwnQuotas(batch, counts, GpuId{gpu}, own);
    OwnQuotasByPrefix(batch, before, mine, by_prefix);
    std::vector<int64_t> sums(num_experts);
    std::vector<int64_t> prefix_sums(num_experts);
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      taken[AsIndex(slot)] += own[AsIndex(slot)];
      taken_by_prefix[AsIndex(slot)] += by_prefix[AsIndex(slot)];
      const int32_t expert = placement.ExpertIn(kOnly, SlotId{slot}).value;
      sums[AsIndex(expert)] += own[AsIndex(slot)];
      prefix_sums[AsIndex(expert)] += by_prefix[AsIndex(slot)];
      const GpuId to = topology.GpuOf(SlotId{slot});
      moves.local += to == GpuId{gpu} ? own[AsIndex(slot)] : 0;
      moves.on_node += topology.NodeOf(to) == topology.NodeOf(GpuId{gpu}) ? own[AsIndex(slot)] : 0;
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
    CheckBatch(random, RandomPlacement(random, RandomTopology(random)));
  }
}

}  // namespace
}  // namespace eplb
