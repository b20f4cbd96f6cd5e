#include "placement/alias_domain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using testing::Pick;
using testing::Random;

struct Solved {
  std::vector<int32_t> slots;
  std::vector<int64_t> quotas;
};

Solved Solve(const std::vector<int64_t>& loads, const std::vector<int32_t>& slots_of_gpu) {
  std::vector<int32_t> experts(loads.size());
  std::iota(experts.begin(), experts.end(), 0);
  const int32_t slots = std::accumulate(slots_of_gpu.begin(), slots_of_gpu.end(), 0);
  Solved solved{.slots = std::vector<int32_t>(static_cast<size_t>(slots), -1),
                .quotas = std::vector<int64_t>(static_cast<size_t>(slots), -1)};
  AliasSolver().Solve({.experts = experts, .loads = loads, .slots_of_gpu = slots_of_gpu},
                      solved.slots, solved.quotas);
  return solved;
}

// No expert twice on a GPU, at most ceil(mean) tokens on each, none lost.
void ExpectEven(const std::vector<int64_t>& loads, const std::vector<int32_t>& slots_of_gpu,
                const Solved& solved) {
  const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const auto gpus = static_cast<int64_t>(slots_of_gpu.size());
  std::vector<int64_t> left = loads;
  std::vector<int32_t> replicas(loads.size());
  size_t slot = 0;
  for (const int32_t held : slots_of_gpu) {
    int64_t tokens = 0;
    std::set<int32_t> experts;
    for (const size_t end = slot + static_cast<size_t>(held); slot < end; ++slot) {
      ASSERT_GE(solved.slots[slot], 0) << "slot " << slot;
      ASSERT_GE(solved.quotas[slot], 0) << "slot " << slot;
      const auto expert = static_cast<size_t>(solved.slots[slot]);
      EXPECT_TRUE(experts.insert(solved.slots[slot]).second) << "slot " << slot;
      ++replicas[expert];
      tokens += solved.quotas[slot];
      left[expert] -= solved.quotas[slot];
    }
    EXPECT_LE(tokens, sum / gpus + (sum % gpus != 0 ? 1 : 0)) << "up to slot " << slot;
  }
  EXPECT_EQ(left, std::vector<int64_t>(loads.size()));
  EXPECT_GT(*std::min_element(replicas.begin(), replicas.end()), 0);
  if (sum > 0) return;
  const auto [fewest, most] = std::minmax_element(replicas.begin(), replicas.end());
  EXPECT_LE(*most - *fewest, 1);
}

TEST(AliasDomainTest, GpusWithMoreSlotsThanOthersAreEvenToo) {
  constexpr uint64_t kSeed = 607;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  int32_t uneven = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> slots_of_gpu(static_cast<size_t>(Pick(random, 1, 8)));
    const int32_t fewest = Pick(random, 2, 6);
    for (int32_t& slots : slots_of_gpu) slots = fewest + Pick(random, 0, 2);
    std::vector<int64_t> loads(static_cast<size_t>(Pick(random, 1, 40)));
    const int32_t most = 1 << Pick(random, 0, 20);
    for (int64_t& tokens : loads) tokens = Pick(random, 0, 3) == 0 ? Pick(random, 0, most) : 0;
    if (!AliasFits(static_cast<int64_t>(loads.size()), slots_of_gpu)) continue;
    const auto [least, largest] = std::minmax_element(slots_of_gpu.begin(), slots_of_gpu.end());
    uneven += *least < *largest ? 1 : 0;
    SCOPED_TRACE(::testing::Message() << "case " << i);
    ASSERT_NO_FATAL_FAILURE(ExpectEven(loads, slots_of_gpu, Solve(loads, slots_of_gpu)));
    if (HasFailure()) return;
  }
  EXPECT_GT(uneven, 500);
}

TEST(AliasDomainTest, SumsNearTheRangeOfInt64AreExact) {
  constexpr uint64_t kSeed = 603;
  Random random(kSeed);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    std::vector<int64_t> loads(16);
    int64_t left = INT64_MAX;
    for (int64_t& tokens : loads) {
      tokens = static_cast<int64_t>(random() % (uint64_t{1} << Pick(random, 1, 62)));
      tokens = std::min(tokens, left);
      left -= tokens;
    }
    loads[static_cast<size_t>(Pick(random, 0, 15))] += left;  // the sum is 2^63 - 1
    const std::vector<int32_t> slots_of_gpu = {5, 5, 5, 5};
    ASSERT_NO_FATAL_FAILURE(ExpectEven(loads, slots_of_gpu, Solve(loads, slots_of_gpu)));
  }
}

TEST(AliasDomainTest, TheGpuWithFewestSlotsDecidesWhetherItFits) {
  EXPECT_TRUE(AliasFits(8, std::vector<int32_t>{3, 3, 3, 3}));
  EXPECT_FALSE(AliasFits(9, std::vector<int32_t>{4, 4, 4, 3}));
  EXPECT_TRUE(AliasFits(4, std::vector<int32_t>{4, 3}));
  EXPECT_FALSE(AliasFits(4, std::vector<int32_t>{5, 4})) << "a GPU would hold an expert twice";
  EXPECT_FALSE(AliasFits(1, std::vector<int32_t>{}));
}

// The slots that no token needs hold experts whose load per replica is high.
TEST(AliasDomainTest, LeftOverSlotsHoldTheHeaviestThatTheGpuLacks) {
  // GPUs {3, 2}, {0}, {1}, each 30; five slots are left. GPU 0 takes 0 (30), GPU 1 takes 1 (30) and
  // 2 (20), GPU 2 takes 0 (15 by then) and 3 (10, as 2 has by then with more replicas).
  const Solved solved = Solve({30, 30, 20, 10}, {3, 3, 3});
  std::vector<std::set<int32_t>> held(3);
  for (size_t slot = 0; slot < 9; ++slot) held[slot / 3].insert(solved.slots[slot]);
  EXPECT_EQ(held, (std::vector<std::set<int32_t>>{{0, 2, 3}, {0, 1, 2}, {0, 1, 3}}));
}

}  // namespace
}  // namespace eplb
