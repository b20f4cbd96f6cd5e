#include "placement/search/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "placement/search/replicate.h"
#include "tests/placement/random_placement.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kPackSeed = 14;

void ExpectPacks(Packer& packer, const std::vector<int32_t>& counts, Arrangement& arrangement) {
  packer.Pack(counts, arrangement);
  ASSERT_EQ(WhyIllegal(arrangement.domain(), arrangement.experts()), "");
  EXPECT_TRUE(std::equal(counts.begin(), counts.end(), arrangement.counts().begin()));
  ExpectConsistent(arrangement);
}

// Every vector of counts of every shape up to 5 experts and 4 GPUs, with loads that make the first,
// the last or no expert the longest unit.
TEST(PackerTest, EveryCountsWithinTheLimitsPackLegally) {
  int packed = 0;
  for (const bool duplicates : {false, true}) {
    for (int32_t gpus = 1; gpus <= 4; ++gpus) {
      for (int32_t experts = 1; experts <= 5; ++experts) {
        for (int32_t slots = std::max(gpus, experts); slots <= 11; ++slots) {
          Domain domain =
              MakeDomain(std::vector<double>(static_cast<size_t>(experts)), slots, gpus);
          domain.allow_duplicates = duplicates;
          for (const int32_t slope : {-1, 0, 1}) {
            for (size_t e = 0; e < domain.load.size(); ++e) {
              domain.load[e] = 10 + slope * static_cast<double>(e);
            }
            Packer packer;
            Arrangement arrangement(domain);
            for (const std::vector<int32_t>& counts : AllCounts(domain)) {
              SCOPED_TRACE(Describe(domain));
              ExpectPacks(packer, counts, arrangement);
              ++packed;
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(packed, 10'000);
}

TEST(PackerTest, RandomCountsPackLegally) {
  SCOPED_TRACE("seed " + std::to_string(kPackSeed));
  Random random(kPackSeed);
  for (int i = 0; i < 3000; ++i) {
    const Domain domain = RandomDomain(random, {.speeds = i % 2 == 0, .duplicates = true});
    SCOPED_TRACE(Describe(domain));
    Packer packer;
    Arrangement arrangement(domain);
    for (int j = 0; j < 3; ++j) {
      ExpectPacks(packer, RandomCounts(random, domain), arrangement);
    }
    if (HasFailure()) return;
  }
}

TEST(PackerTest, TheLongestUnitGoesFirstToTheLightestGpu) {
  const Domain domain = MakeDomain({5, 4, 3, 3}, 4, 2);
  Arrangement arrangement(domain);
  Packer().Pack(std::vector<int32_t>{1, 1, 1, 1}, arrangement);
  EXPECT_EQ(arrangement.tokens(0), 8);
  EXPECT_EQ(arrangement.tokens(1), 7);
}

TEST(PackerTest, AFasterGpuGetsMore) {
  Domain domain = MakeDomain({6, 5, 4, 3, 2, 1}, 6, 2);
  domain.speed = {2, 1};
  Arrangement arrangement(domain);
  Packer().Pack(std::vector<int32_t>(6, 1), arrangement);
  EXPECT_EQ(arrangement.tokens(0), 13);
  EXPECT_EQ(arrangement.tokens(1), 8);
}

TEST(PackerTest, EveryExpertHasAReplicaOnAffineNode) {
  Random random(kPackSeed);
  int packed = 0;
  for (int i = 0; i < 300; ++i) {
    Domain domain;
    domain.slots = {4, 4, 4, 4};
    domain.speed = {1, 1, 1, 1};
    domain.affine_node_of_gpu = {0, 0, 1, 1};
    for (int32_t expert = 0; expert < 12; ++expert) {
      domain.load.push_back(Pick(random, 0, 1000));
      domain.affine_node_of_expert.push_back(expert % 2);
    }
    Replicator replicator(domain);
    replicator.Begin();
    std::vector<int32_t> counts;
    replicator.Greedy(counts);
    Arrangement arrangement(domain);
    Packer packer;
    if (!packer.PackOnAffineNode(counts, arrangement)) continue;
    ++packed;
    std::vector<bool> on_affine_node(12);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      const int32_t expert = arrangement.expert_in(slot);
      ASSERT_GE(expert, 0) << "seed " << kPackSeed << " case " << i;
      EXPECT_EQ(arrangement.CopiesOn(arrangement.gpu_of(slot), expert), 1);
      if (arrangement.gpu_of(slot) / 2 == expert % 2)
        on_affine_node[static_cast<size_t>(expert)] = true;
    }
    for (int32_t expert = 0; expert < 12; ++expert) {
      EXPECT_TRUE(on_affine_node[static_cast<size_t>(expert)])
          << "seed " << kPackSeed << " case " << i;
    }
  }
  EXPECT_GT(packed, 250);
}

}  // namespace
}  // namespace eplb
