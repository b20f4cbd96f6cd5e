#include "placement/search/arrangement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "placement/search/pack.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kArrangementSeed = 12;
constexpr int kDomains = 400;

std::vector<int32_t> LayoutOf(const Arrangement& arrangement) {
  return {arrangement.experts().begin(), arrangement.experts().end()};
}

// Calls `check` with random legal arrangements, half of them with affinities, a third with sites.
template <class Check>
void ForEachArrangement(int domains, const Check& check) {
  SCOPED_TRACE("seed " + std::to_string(kArrangementSeed));
  Random random(kArrangementSeed);
  for (int i = 0; i < domains; ++i) {
    Domain domain = RandomDomain(random, {.speeds = true, .duplicates = true});
    SCOPED_TRACE(Describe(domain));
    Arrangement arrangement(domain);
    Packer().Pack(RandomCounts(random, domain), arrangement);
    if (i % 2 == 1) AddNodeAffinity(random, arrangement.experts(), domain);
    if (i % 3 == 2) AddSites(random, arrangement.experts(), domain);
    ASSERT_EQ(WhyIllegal(domain, arrangement.experts()), "");
    check(random, arrangement);
    if (::testing::Test::HasFailure()) return;
  }
}

// One exchange or replacement, if a random one is legal.
void Step(Random& random, Arrangement& arrangement) {
  const int32_t a = Pick(random, 0, arrangement.num_slots() - 1);
  const int32_t b = Pick(random, 0, arrangement.num_slots() - 1);
  const int32_t expert = Pick(random, 0, arrangement.domain().num_experts() - 1);
  if (Pick(random, 0, 1) == 0) {
    if (arrangement.MayReplace(a, expert)) arrangement.Replace(a, expert);
  } else if (arrangement.gpu_of(a) != arrangement.gpu_of(b) && arrangement.MaySwap(a, b)) {
    arrangement.Swap(a, b);
  }
}

TEST(ArrangementTest, RandomStepsKeepWhatIsRecomputedFromScratch) {
  ForEachArrangement(kDomains, [](Random& random, Arrangement& arrangement) {
    ExpectConsistent(arrangement);
    for (int i = 0; i < 40; ++i) {
      Step(random, arrangement);
      ExpectConsistent(arrangement);
      ASSERT_EQ(WhyIllegal(arrangement.domain(), arrangement.experts()), "");
    }
  });
}

TEST(ArrangementTest, AnExchangeMayBeMadeExactlyWhenItLeavesALegalLayout) {
  ForEachArrangement(kDomains / 2, [](Random& random, Arrangement& arrangement) {
    for (int i = 0; i < 20; ++i) Step(random, arrangement);
    std::vector<int32_t> layout = LayoutOf(arrangement);
    for (int32_t a = 0; a < arrangement.num_slots(); ++a) {
      for (int32_t b = 0; b < arrangement.num_slots(); ++b) {
        if (arrangement.gpu_of(a) == arrangement.gpu_of(b)) continue;
        std::swap(layout[static_cast<size_t>(a)], layout[static_cast<size_t>(b)]);
        const bool differs = arrangement.expert_in(a) != arrangement.expert_in(b);
        EXPECT_EQ(arrangement.MaySwap(a, b),
                  differs && WhyIllegal(arrangement.domain(), layout).empty());
        std::swap(layout[static_cast<size_t>(a)], layout[static_cast<size_t>(b)]);
      }
    }
  });
}

TEST(ArrangementTest, AReplicaMayBeReplacedExactlyWhenThatLeavesALegalLayout) {
  ForEachArrangement(kDomains, [](Random& random, Arrangement& arrangement) {
    for (int i = 0; i < 20; ++i) Step(random, arrangement);
    std::vector<int32_t> layout = LayoutOf(arrangement);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      const int32_t before = arrangement.expert_in(slot);
      for (int32_t expert = 0; expert < arrangement.domain().num_experts(); ++expert) {
        layout[static_cast<size_t>(slot)] = expert;
        EXPECT_EQ(arrangement.MayReplace(slot, expert),
                  expert != before && WhyIllegal(arrangement.domain(), layout).empty());
      }
      layout[static_cast<size_t>(slot)] = before;
    }
  });
}

TEST(ArrangementTest, ARollBackGivesBackEveryBit) {
  ForEachArrangement(kDomains, [](Random& random, Arrangement& arrangement) {
    for (int round = 0; round < 5; ++round) {
      arrangement.BeginJournal();
      const std::vector<int32_t> layout = LayoutOf(arrangement);
      std::vector<double> tokens;
      tokens.reserve(static_cast<size_t>(arrangement.num_gpus()));
      for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
        tokens.push_back(arrangement.tokens(gpu));
      }
      for (int i = 0; i < 10; ++i) Step(random, arrangement);
      const bool back = Pick(random, 0, 3) != 0;
      if (!back) continue;
      arrangement.RollBack();
      EXPECT_EQ(LayoutOf(arrangement), layout);
      for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
        EXPECT_EQ(arrangement.tokens(gpu), tokens[static_cast<size_t>(gpu)]);
      }
      ExpectConsistent(arrangement);
    }
  });
}

TEST(ArrangementTest, AnAssignedLayoutCanBeRolledBackTo) {
  ForEachArrangement(50, [](Random& random, Arrangement& arrangement) {
    for (int i = 0; i < 10; ++i) Step(random, arrangement);  // no journal was begun for these
    const std::vector<int32_t> layout = LayoutOf(arrangement);
    arrangement.Assign(layout);
    arrangement.BeginJournal();
    for (int i = 0; i < 10; ++i) Step(random, arrangement);
    arrangement.RollBack();
    EXPECT_EQ(LayoutOf(arrangement), layout);
    ExpectConsistent(arrangement);
  });
}

TEST(ArrangementTest, CopiesArriveAndLeaveWithinTheLimitsOfTheGpu) {
  ForEachArrangement(kDomains, [](Random& random, Arrangement& arrangement) {
    const Domain& domain = arrangement.domain();
    for (int i = 0; i < 20; ++i) Step(random, arrangement);
    for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
      for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
        int32_t copies = 0;
        for (int32_t s = arrangement.first_slot(gpu); s < arrangement.end_slot(gpu); ++s) {
          copies += arrangement.expert_in(s) == expert ? 1 : 0;
        }
        EXPECT_EQ(arrangement.CopiesOn(gpu, expert), copies);
        EXPECT_EQ(arrangement.MayArrive(gpu, expert), copies < domain.MaxCopies(gpu));
        if (copies > 0) {
          EXPECT_EQ(arrangement.MayLeave(gpu, expert), copies > domain.MinCopies(gpu));
        }
      }
    }
  });
}

TEST(ArrangementTest, TheLastReplicaOnAffineNodeStays) {
  Domain domain = MakeDomain({4, 1, 1}, 6, 3);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 1, 0, 2, 0, 1});
  domain.affine_node_of_gpu = {0, 0, 1};
  domain.affine_node_of_expert = {0, 1, 0};
  EXPECT_TRUE(arrangement.MayReplace(0, 2));   // expert 0 has another at home
  EXPECT_FALSE(arrangement.MayReplace(5, 2));  // expert 1 has not
  EXPECT_TRUE(arrangement.MayReplace(1, 2));   // this one is not its last at home
  EXPECT_FALSE(arrangement.MaySwap(3, 4));     // expert 2 would leave home
  EXPECT_TRUE(arrangement.MaySwap(1, 3));      // both stay on their node
  arrangement.Swap(1, 3);
  EXPECT_EQ(LayoutOf(arrangement), (std::vector<int32_t>{0, 2, 0, 1, 0, 1}));
}

TEST(ArrangementTest, AReplicaMovesToAnEmptySlot) {
  const Domain domain = MakeDomain({6, 2}, 4, 2);
  Arrangement arrangement(domain);
  arrangement.Reset(std::vector<int32_t>{2, 2});
  arrangement.Put(0, 0);
  arrangement.Put(2, 1);
  arrangement.MoveToEmpty(0, 3);
  EXPECT_EQ(arrangement.expert_in(0), Arrangement::kEmpty);
  EXPECT_EQ(arrangement.tokens(0), 0);
  EXPECT_EQ(arrangement.tokens(1), 4);
  arrangement.Put(0, 0);
  arrangement.Put(1, 1);
  ExpectConsistent(arrangement);
}

}  // namespace
}  // namespace eplb
