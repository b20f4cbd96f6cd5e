#include "placement/search/domain.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kDomainSeed = 11;

TEST(DomainTest, SumsSlotsAndLoadAndComparesSpeeds) {
  Domain domain = MakeDomain({1, 2, 4}, 5, 2);
  EXPECT_EQ(domain.slots, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(domain.num_slots(), 5);
  EXPECT_EQ(domain.total_load(), 7);
  EXPECT_TRUE(domain.equal_speeds());
  EXPECT_FALSE(domain.has_node_affinity());
  domain.speed[1] = 0.5;
  EXPECT_FALSE(domain.equal_speeds());
}

TEST(DomainTest, AGpuWithAtMostAsManySlotsAsExpertsHoldsEachOnce) {
  const Domain domain = MakeDomain({1, 1, 1, 1}, 7, 2);
  EXPECT_EQ(domain.MinCopies(0), 1);  // 4 slots for 4 experts: all of them
  EXPECT_EQ(domain.MaxCopies(0), 1);
  EXPECT_EQ(domain.MinCopies(1), 0);
  EXPECT_EQ(domain.MaxCopies(1), 1);
  EXPECT_EQ(domain.MinReplicas(), 1);
  EXPECT_EQ(domain.MaxReplicas(), 2);
}

TEST(DomainTest, ForcedDuplicatesAreSpread) {
  const Domain domain = MakeDomain({1, 1}, 8, 2);
  EXPECT_EQ(domain.MinCopies(0), 2);
  EXPECT_EQ(domain.MaxCopies(0), 2);
  const Domain uneven = MakeDomain({1, 1}, 9, 2);
  EXPECT_EQ(uneven.MinCopies(0), 2);
  EXPECT_EQ(uneven.MaxCopies(0), 3);
  EXPECT_EQ(uneven.MinReplicas(), 4);
  EXPECT_EQ(uneven.MaxReplicas(), 5);
}

TEST(DomainTest, AllowedDuplicatesKnowNoLimitButTheSlots) {
  Domain domain = MakeDomain({1, 1}, 9, 2);
  domain.allow_duplicates = true;
  EXPECT_EQ(domain.MinCopies(0), 0);
  EXPECT_EQ(domain.MaxCopies(0), 5);
  EXPECT_EQ(domain.MinReplicas(), 1);
  EXPECT_EQ(domain.MaxReplicas(), 9);
}

TEST(DomainTest, TheLimitsLeaveRoomForAllSlots) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSeed));
  Random random(kDomainSeed);
  for (int i = 0; i < 2000; ++i) {
    const Domain domain = RandomDomain(random, {.duplicates = true});
    EXPECT_LE(domain.MinReplicas() * domain.num_experts(), domain.num_slots()) << Describe(domain);
    EXPECT_GE(domain.MaxReplicas() * domain.num_experts(), domain.num_slots()) << Describe(domain);
  }
}

}  // namespace
}  // namespace eplb
