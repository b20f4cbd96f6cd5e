#include "placement/search/replicate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kReplicateSeed = 13;
using Counts = std::vector<int32_t>;

bool IsIdle(const Domain& domain) { return domain.total_load() == 0; }

// The largest unit of some experts.
double LargestUnit(const Domain& domain, const Counts& counts, std::span<const int32_t> experts) {
  double largest = 0;
  for (const int32_t expert : experts) {
    const auto e = static_cast<size_t>(expert);
    largest = std::max(largest, domain.load[e] / counts[e]);
  }
  return largest;
}

// The least largest unit of `experts` that share `slots`, with `least` to `most` replicas each.
double BestLargestUnit(const Domain& domain, std::span<const int32_t> experts, int32_t slots,
                       int32_t least, int32_t most) {
  if (experts.empty()) return slots == 0 ? 0 : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (int32_t count = least; count <= std::min(most, slots); ++count) {
    const double rest = BestLargestUnit(domain, experts.subspan(1), slots - count, least, most);
    best =
        std::min(best, std::max(domain.load[static_cast<size_t>(experts.front())] / count, rest));
  }
  return best;
}

void ExpectWithinLimits(const Domain& domain, const Counts& counts) {
  ASSERT_EQ(counts.size(), domain.load.size());
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), domain.num_slots());
  EXPECT_GE(*std::min_element(counts.begin(), counts.end()), domain.MinReplicas());
  EXPECT_LE(*std::max_element(counts.begin(), counts.end()), domain.MaxReplicas());
}

template <class Check>
void ForEachCounts(int domains, const DomainOptions& options, const Check& check) {
  SCOPED_TRACE("seed " + std::to_string(kReplicateSeed));
  Random random(kReplicateSeed);
  for (int i = 0; i < domains; ++i) {
    const Domain domain = RandomDomain(random, options);
    SCOPED_TRACE(Describe(domain));
    Replicator replicator(domain);
    replicator.Begin();
    check(random, domain, replicator);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ReplicatorTest, GreedyCountsHaveTheLeastLargestUnit) {
  ForEachCounts(600, {.max_experts = 5, .max_gpus = 4, .max_slots = 12, .duplicates = true},
                [](Random&, const Domain& domain, Replicator& replicator) {
                  Counts counts;
                  replicator.Greedy(counts);
                  ExpectWithinLimits(domain, counts);
                  Counts all(domain.load.size());
                  std::iota(all.begin(), all.end(), 0);
                  EXPECT_EQ(LargestUnit(domain, counts, all),
                            BestLargestUnit(domain, all, domain.num_slots(), domain.MinReplicas(),
                                            domain.MaxReplicas()));
                });
}

TEST(ReplicatorTest, TheFirstExpertWinsTies) {
  const Domain domain = MakeDomain({5, 5, 5}, 5, 3);
  Replicator replicator(domain);
  replicator.Begin();
  Counts counts;
  replicator.Greedy(counts);
  EXPECT_EQ(counts, (Counts{2, 2, 1}));
}

// Slots that the cold experts get before the heaviest of them get the rest.
int32_t ColdLeast(const Domain& domain, Replicator::Spare spare, int32_t num_cold, int32_t slots) {
  const int32_t least = domain.MinReplicas();
  if (spare == Replicator::Spare::kToHeaviest || least == domain.MaxReplicas()) return least;
  return slots >= (least + 1) * num_cold ? least + 1 : least;
}

void CheckHot(const Domain& domain, Replicator& replicator, int32_t num_hot, int32_t hot_slots,
              Replicator::Spare spare) {
  const int32_t least = domain.MinReplicas();
  const int32_t most = domain.MaxReplicas();
  const int32_t num_cold = domain.num_experts() - num_hot;
  const int32_t cold_slots = domain.num_slots() - hot_slots;
  const bool possible = hot_slots >= least * num_hot && hot_slots <= most * num_hot &&
                        cold_slots >= least * num_cold && cold_slots <= most * num_cold;
  Counts counts;
  ASSERT_EQ(replicator.GreedyWithHot(num_hot, hot_slots, spare, counts), possible);
  if (!possible) return;
  ExpectWithinLimits(domain, counts);
  const std::span<const int32_t> order(replicator.by_load());
  const auto hot = order.first(static_cast<size_t>(num_hot));
  const auto cold = order.subspan(static_cast<size_t>(num_hot));
  EXPECT_EQ(LargestUnit(domain, counts, hot), BestLargestUnit(domain, hot, hot_slots, least, most));
  const int32_t cold_least = ColdLeast(domain, spare, num_cold, cold_slots);
  if (spare == Replicator::Spare::kToHeaviest || cold_least > least) {
    EXPECT_EQ(LargestUnit(domain, counts, cold),
              BestLargestUnit(domain, cold, cold_slots, cold_least, most));
    return;
  }
  // The lightest have one more.
  int32_t left = cold_slots - least * num_cold;
  for (auto expert = cold.rbegin(); expert != cold.rend() && least < most; ++expert, --left) {
    EXPECT_EQ(counts[static_cast<size_t>(*expert)], least + (left > 0 ? 1 : 0));
  }
}

TEST(ReplicatorTest, HotExpertsShareExactlyTheirSlots) {
  ForEachCounts(400, {.max_experts = 5, .max_gpus = 4, .max_slots = 11, .duplicates = true},
                [](Random&, const Domain& domain, Replicator& replicator) {
                  if (IsIdle(domain)) return;
                  for (int32_t hot = 1; hot <= domain.num_experts(); ++hot) {
                    for (int32_t slots = 0; slots <= domain.num_slots(); ++slots) {
                      SCOPED_TRACE(std::to_string(hot) + " hot on " + std::to_string(slots));
                      CheckHot(domain, replicator, hot, slots, Replicator::Spare::kToHeaviest);
                      CheckHot(domain, replicator, hot, slots, Replicator::Spare::kToLightest);
                    }
                  }
                });
}

TEST(ReplicatorTest, ALevelIsReachedOrRefusedForWantOfSlots) {
  int reached = 0;
  ForEachCounts(1000, {.duplicates = true},
                [&](Random& random, const Domain& domain, Replicator& replicator) {
                  if (IsIdle(domain)) return;
                  const double mean = domain.total_load() / domain.num_gpus();
                  const double level = mean * Pick(random, 5, 40) / 20;
                  double needed = 0;
                  double capacity = 0;  // for what is left
                  for (const double load : domain.load) {
                    const double count =
                        std::min<double>(domain.MaxReplicas(), std::ceil(load / level));
                    needed += std::max<double>(count, domain.MinReplicas());
                    if (count <= domain.MinReplicas())
                      capacity += domain.MaxReplicas() - domain.MinReplicas();
                  }
                  Counts counts;
                  const bool possible =
                      needed <= domain.num_slots() && needed + capacity >= domain.num_slots();
                  ASSERT_EQ(replicator.Level(level, counts), possible);
                  if (!possible) return;
                  ++reached;
                  ExpectWithinLimits(domain, counts);
                  for (size_t expert = 0; expert < counts.size(); ++expert) {
                    if (counts[expert] == domain.MaxReplicas()) continue;
                    EXPECT_LE(domain.load[expert] / counts[expert], level * (1 + 1e-12));
                  }
                });
  EXPECT_GT(reached, 100);
}

TEST(ReplicatorTest, ExpertsComeByFallingLoad) {
  const Domain domain = MakeDomain({3, 7, 3, 9}, 4, 1);
  Replicator replicator(domain);
  replicator.Begin();
  EXPECT_EQ(replicator.by_load(), (std::vector<int32_t>{3, 1, 0, 2}));
}

}  // namespace
}  // namespace eplb
