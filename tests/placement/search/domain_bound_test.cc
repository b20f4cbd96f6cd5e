#include "placement/search/domain_bound.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/placement/random_placement.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kDomainBoundSeed = 16;
constexpr double kRounding = 1 + 1e-8;

TEST(DomainBoundTest, NoArrangementOfRandomSmallDomainsBeatsIt) {
  SCOPED_TRACE("seed " + std::to_string(kDomainBoundSeed));
  Random random(kDomainBoundSeed);
  int tight = 0;
  int scarce = 0;
  constexpr int kBoundDomains = 800;
  for (int i = 0; i < kBoundDomains; ++i) {
    Domain domain = RandomDomain(
        random, {.max_experts = 5, .max_gpus = 3, .max_slots = 7, .speeds = i % 2 == 0});
    domain.allow_duplicates = true;
    scarce += domain.num_slots() < domain.num_experts() + domain.num_gpus() ? 1 : 0;
    const double bound = DomainBound(domain);
    const double best = BestPeak(domain);
    ASSERT_LE(bound, best * kRounding) << Describe(domain);
    tight += bound * kRounding >= best ? 1 : 0;
  }
  std::printf("bound tight on %d of %d domains, %d of them scarce\n", tight, kBoundDomains, scarce);
  EXPECT_GT(scarce, 200);
}

// Six experts in six to eight slots: few to spare, where long units bind.
TEST(DomainBoundTest, NoArrangementOfScarceDomainsBeatsIt) {
  SCOPED_TRACE("seed " + std::to_string(kDomainBoundSeed));
  Random random(kDomainBoundSeed);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> load(6);
    for (double& tokens : load) tokens = Pick(random, 1, 60);
    Domain domain = MakeDomain(load, Pick(random, 6, 8), Pick(random, 2, 4));
    domain.allow_duplicates = i % 3 == 0;
    EXPECT_LE(DomainBound(domain), BestPeak(domain) * kRounding) << Describe(domain);
  }
}

TEST(DomainBoundTest, IsTheMeanWhereAnEvenArrangementExists) {
  EXPECT_DOUBLE_EQ(DomainBound(MakeDomain({3, 3, 3, 3}, 4, 2)), 6);
  Domain domain = MakeDomain({3, 3, 3}, 3, 2);
  domain.speed = {2, 1};
  EXPECT_DOUBLE_EQ(DomainBound(domain), 3);
}

TEST(DomainBoundTest, IsTheLargestUnitWhereAHotExpertHasTooFewReplicas) {
  // One spare slot: the hot expert has at most two replicas of 50.
  EXPECT_NEAR(DomainBound(MakeDomain({100, 1, 1, 1}, 5, 4)), 50, 1e-6);
  // On GPUs twice as fast that takes half the time.
  Domain fast = MakeDomain({100, 1, 1, 1}, 5, 4);
  fast.speed.assign(4, 2.0);
  EXPECT_NEAR(DomainBound(fast), 25, 1e-6);
}

TEST(DomainBoundTest, SeesThatTwoLongUnitsMeetWhereSlotsAreScarce) {
  // Three units of 1 on two GPUs: one GPU has two of them; the mean is 1.5.
  EXPECT_NEAR(DomainBound(MakeDomain({1, 1, 1}, 3, 2)), 2, 1e-6);
  // Five units on two GPUs: three meet; the mean is 2.5.
  EXPECT_NEAR(DomainBound(MakeDomain({1, 1, 1, 1, 1}, 5, 2)), 3, 1e-6);
}

}  // namespace
}  // namespace eplb
