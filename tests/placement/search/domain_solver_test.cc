#include "placement/search/domain_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kDomainSolverSeed = 17;
constexpr double kSolverRounding = 1 + 1e-8;

// Limits of an effort on one of many layers, so that hard domains end soon.
SearchLimits Limits(Effort effort, const Domain& domain) { return LimitsOf(effort, domain, 2000); }

std::vector<int32_t> SolveWith(DomainSolver& solver, const SearchLimits& limits) {
  solver.Begin(limits);
  const Arrangement& found = solver.Solve();
  return {found.experts().begin(), found.experts().end()};
}

std::vector<int32_t> Solve(const Domain& domain, Effort effort) {
  DomainSolver solver(domain);
  return SolveWith(solver, Limits(effort, domain));
}

// At 128 x 1024 experts on 2048 slots too, where a part of the thorough search's total is little.
TEST(DomainSolverTest, MoreEffortIsNeverLessWork) {
  for (const auto& [experts, slots, gpus] :
       {std::tuple(8, 16, 8), std::tuple(256, 288, 32), std::tuple(1024, 2048, 512)}) {
    const Domain domain =
        MakeDomain(std::vector<double>(static_cast<size_t>(experts)), slots, gpus);
    for (const int32_t layers : {1, 58, 128, 2000}) {
      const int64_t fast = LimitsOf(Effort::kFast, domain, layers).work;
      const int64_t normal = LimitsOf(Effort::kDefault, domain, layers).work;
      EXPECT_LT(fast, normal);
      EXPECT_LE(normal, LimitsOf(Effort::kThorough, domain, layers).work) << layers << " layers";
    }
  }
}

// Share of random small domains on which thorough finds the optimum.
void ExpectOptimal(const DomainOptions& options, int domains) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < domains; ++i) {
    const Domain domain = RandomDomain(random, options);
    SCOPED_TRACE(Describe(domain));
    DomainSolver solver(domain);
    const std::vector<int32_t> found = SolveWith(solver, Limits(Effort::kThorough, domain));
    ASSERT_EQ(WhyIllegal(domain, found), "");
    const double best = BestPeak(domain);
    EXPECT_LE(solver.bound(), best * kSolverRounding);
    EXPECT_LE(PeakOf(domain, found), best * (1 + 1e-5));
  }
}

TEST(DomainSolverTest, ThoroughFindsTheOptimumOfRandomSmallDomains) {
  ExpectOptimal({.max_experts = 5, .max_gpus = 3, .max_slots = 8}, 150);
  ExpectOptimal({.max_experts = 5, .max_gpus = 3, .max_slots = 7, .speeds = true}, 150);
  ExpectOptimal({.max_experts = 4, .max_gpus = 3, .max_slots = 7, .duplicates = true}, 150);
}

// Two GPUs, one slot more than experts on each: which expert a GPU holds twice is the choice.
TEST(DomainSolverTest, ThoroughFindsTheOptimumWhereDuplicatesAreForced) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> load(3);
    for (double& tokens : load) tokens = Pick(random, 1, 30);
    const Domain domain = MakeDomain(load, 8, 2);
    EXPECT_LE(PeakOf(domain, Solve(domain, Effort::kThorough)), BestPeak(domain) * (1 + 1e-5))
        << Describe(domain);
  }
}

TEST(DomainSolverTest, EveryEffortIsLegalAndNeverBelowItsBound) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 400; ++i) {
    const Domain domain = RandomDomain(random, {.speeds = i % 2 == 0, .duplicates = true});
    SCOPED_TRACE(Describe(domain));
    for (const Effort effort : {Effort::kFast, Effort::kDefault}) {
      DomainSolver solver(domain);
      const std::vector<int32_t> found = SolveWith(solver, Limits(effort, domain));
      ASSERT_EQ(WhyIllegal(domain, found), "");
      EXPECT_GE(PeakOf(domain, found) * kSolverRounding, solver.bound());
    }
  }
}

// One pass over exchanges and changes of counts is the most by which a search can overdraw.
TEST(DomainSolverTest, TheWorkIsBounded) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 100; ++i) {
    const Domain domain = RandomDomain(random, {.speeds = true});
    const int64_t slots = domain.num_slots();
    const int64_t most_over =
        slots * slots * 20 + slots * (slots + domain.num_experts()) * (2 + 8 * slots);
    DomainSolver solver(domain);
    for (const Effort effort : {Effort::kFast, Effort::kDefault}) {
      const SearchLimits limits = Limits(effort, domain);
      SolveWith(solver, limits);
      EXPECT_LE(solver.work_done(), limits.work + most_over) << Describe(domain);
    }
  }
}

TEST(DomainSolverTest, RepeatedAndFreshSolversAgree) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 60; ++i) {
    Domain domain = RandomDomain(random, {.speeds = true, .duplicates = true});
    const std::vector<double> load = domain.load;
    DomainSolver kept(domain);
    for (const Effort effort : {Effort::kDefault, Effort::kFast, Effort::kDefault}) {
      const std::vector<int32_t> first = SolveWith(kept, Limits(effort, domain));
      std::reverse(domain.load.begin(), domain.load.end());  // another problem in between
      SolveWith(kept, Limits(Effort::kDefault, domain));
      domain.load = load;
      EXPECT_EQ(SolveWith(kept, Limits(effort, domain)), first) << Describe(domain);
      EXPECT_EQ(Solve(domain, effort), first) << Describe(domain);
    }
  }
}

TEST(DomainSolverTest, AGpuHalfAsFastGetsHalfTheTokens) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  std::vector<double> load(64);
  for (double& tokens : load) tokens = Pick(random, 1, 1000);
  Domain domain = MakeDomain(load, 80, 8);
  domain.speed[3] = 0.5;
  const std::vector<double> tokens = TokensOf(domain, Solve(domain, Effort::kDefault));
  const double full = domain.total_load() / 7.5;
  for (size_t gpu = 0; gpu < tokens.size(); ++gpu) {
    EXPECT_NEAR(tokens[gpu], full * domain.speed[gpu], 0.01 * full) << "GPU " << gpu;
  }
}

TEST(DomainSolverTest, AnIdleDomainGetsEvenCounts) {
  for (const int32_t slots : {12, 14, 17, 24, 30}) {
    const Domain domain = MakeDomain(std::vector<double>(12), slots, 5);
    for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kThorough}) {
      const std::vector<int32_t> found = Solve(domain, effort);
      EXPECT_EQ(WhyIllegal(domain, found), "");
      std::vector<int32_t> counts(12);
      for (const int32_t expert : found) ++counts[static_cast<size_t>(expert)];
      const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
      EXPECT_LE(*most - *fewest, 1);
    }
  }
}

TEST(DomainSolverTest, ABetterOfferIsTheLeastItReturns) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 60; ++i) {
    const Domain domain = RandomDomain(random, {.speeds = true});
    const std::vector<int32_t> offer = Solve(domain, Effort::kThorough);
    DomainSolver solver(domain);
    solver.Begin(Limits(Effort::kFast, domain));
    solver.Offer(offer);
    EXPECT_LE(PeakOf(domain, solver.Solve().experts()), PeakOf(domain, offer) * (1 + 1e-12));
  }
}

TEST(DomainSolverTest, WithHomesItImprovesTheOfferAndLeavesNoExpertAway) {
  SCOPED_TRACE("seed " + std::to_string(kDomainSolverSeed));
  Random random(kDomainSolverSeed);
  for (int i = 0; i < 200; ++i) {
    Domain domain = RandomDomain(random, {.speeds = i % 2 == 0});
    Arrangement start(domain);
    Packer().Pack(RandomCounts(random, domain), start);
    AddNodeAffinity(random, start.experts(), domain);
    SCOPED_TRACE(Describe(domain));
    for (const Effort effort : {Effort::kFast, Effort::kDefault}) {
      DomainSolver solver(domain);
      solver.Begin(Limits(effort, domain));
      solver.Offer(start.experts());
      const Arrangement& found = solver.Solve();
      ASSERT_EQ(WhyIllegal(domain, found.experts()), "");
      EXPECT_LE(found.MaxLoad(), start.MaxLoad() * (1 + 1e-12));
    }
  }
}

TEST(DomainSolverTest, EnoughEndsTheSearch) {
  const Domain domain = MakeDomain({9, 8, 7, 6, 5, 4, 3}, 9, 3);
  DomainSolver solver(domain);
  solver.Begin(Limits(Effort::kThorough, domain));
  solver.set_enough(1000);
  solver.Solve();
  EXPECT_LT(solver.work_done(), 1000);
}

}  // namespace
}  // namespace eplb
