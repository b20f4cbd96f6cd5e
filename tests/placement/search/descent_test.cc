#include "placement/search/descent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "placement/search/pack.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kReplacementTrialSeed = 50;

// A trial predicts the change of every GPU that the replacement makes.
TEST(ReplacementTrialTest, ATrialTellsWhatReplacingDoes) {
  Random random(kReplacementTrialSeed);
  ReplacementTrial trial;  // one for all: nothing may be left of the trial before
  int trials = 0;
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kReplacementTrialSeed << " case " << i);
    const Domain domain = RandomDomain(random, {.speeds = true, .duplicates = true});
    std::vector<int32_t> layout;
    layout.reserve(static_cast<size_t>(domain.num_slots()));
    for (int32_t slot = 0; slot < domain.num_slots(); ++slot) {
      layout.push_back(slot % domain.num_experts());
    }
    Arrangement arrangement(domain);
    arrangement.Assign(layout);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      const int32_t expert = Pick(random, 0, domain.num_experts() - 1);
      const int32_t leaving = arrangement.expert_in(slot);
      if (arrangement.count(leaving) < 2 || expert == leaving) continue;
      std::vector<double> expected;
      expected.reserve(static_cast<size_t>(domain.num_gpus()));
      for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
        expected.push_back(arrangement.tokens(gpu));
      }
      const double peak = trial.PeakAfter(arrangement, slot, expert);
      std::vector<int32_t> touched;
      for (const ReplacementTrial::Change& change : trial.changes()) {
        expected[static_cast<size_t>(change.gpu)] += change.tokens;
        EXPECT_EQ(std::count(touched.begin(), touched.end(), change.gpu), 0);
        touched.push_back(change.gpu);
      }
      arrangement.Replace(slot, expert);
      double largest = 0;
      for (const int32_t gpu : touched) largest = std::max(largest, arrangement.load(gpu));
      const double rounding = 1e-9 * (1 + domain.total_load());
      EXPECT_NEAR(peak, largest, rounding);
      for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
        EXPECT_NEAR(arrangement.tokens(gpu), expected[static_cast<size_t>(gpu)], rounding);
      }
      ++trials;
    }
  }
  EXPECT_GT(trials, 500);
}

constexpr uint64_t kDescentSeed = 15;
constexpr int64_t kPlenty = 100'000'000;

// Calls `check` with random packed arrangements.
template <class Check>
void ForEachDomain(int domains, const DomainOptions& options, const Check& check) {
  SCOPED_TRACE("seed " + std::to_string(kDescentSeed));
  Random random(kDescentSeed);
  for (int i = 0; i < domains; ++i) {
    Domain domain = RandomDomain(random, options);
    SCOPED_TRACE(Describe(domain));
    Arrangement arrangement(domain);
    Packer().Pack(RandomCounts(random, domain), arrangement);
    if (i % 4 == 3) AddNodeAffinity(random, arrangement.experts(), domain);
    check(arrangement);
    if (::testing::Test::HasFailure()) return;
  }
}

// The largest load and the number of GPUs that have it, but for rounding.
std::pair<double, int> Heat(const Arrangement& arrangement) {
  int hottest = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    hottest += arrangement.load(gpu) > arrangement.MaxLoad() * (1 - 1e-13) ? 1 : 0;
  }
  return {arrangement.MaxLoad(), hottest};
}

TEST(DescentTest, EveryStepLowersTheMaximumOrTheNumberOfGpusAtIt) {
  ForEachDomain(500, {.speeds = true, .duplicates = true}, [](Arrangement& arrangement) {
    Descent descent;
    for (int step = 0; step < 1000; ++step) {
      const auto before = Heat(arrangement);
      const std::vector<int32_t> layout(arrangement.experts().begin(), arrangement.experts().end());
      WorkBudget one_step = {.left = 1};
      descent.SwapsAndCounts(0, arrangement, one_step);
      ASSERT_EQ(WhyIllegal(arrangement.domain(), arrangement.experts()), "");
      ExpectConsistent(arrangement);
      if (std::equal(layout.begin(), layout.end(), arrangement.experts().begin())) return;
      EXPECT_LT(Heat(arrangement), before);
    }
    ADD_FAILURE() << "no end";
  });
}

TEST(DescentTest, ExchangesKeepTheCounts) {
  ForEachDomain(500, {.speeds = true, .duplicates = true}, [](Arrangement& arrangement) {
    const std::vector<int32_t> counts(arrangement.counts().begin(), arrangement.counts().end());
    const double before = arrangement.MaxLoad();
    WorkBudget work = {.left = kPlenty};
    Descent().Swaps(0, arrangement, work);
    EXPECT_FALSE(work.spent());
    EXPECT_TRUE(std::equal(counts.begin(), counts.end(), arrangement.counts().begin()));
    EXPECT_LE(arrangement.MaxLoad(), before);
    EXPECT_EQ(WhyIllegal(arrangement.domain(), arrangement.experts()), "");
  });
}

// A legal layout in which no GPU of `touched` is as hot as `peak`.
bool Helps(const Domain& domain, const std::vector<int32_t>& layout,
           const std::vector<bool>& touched, double peak) {
  if (!WhyIllegal(domain, layout).empty()) return false;
  const std::vector<double> after = TokensOf(domain, layout);
  for (size_t gpu = 0; gpu < after.size(); ++gpu) {
    if (touched[gpu] && after[gpu] / domain.speed[gpu] >= peak * (1 - 1e-9)) return false;
  }
  return true;
}

// GPUs that an exchange of two slots changes, or a replica of `expert` in the first of them.
std::vector<bool> Touched(const Arrangement& arrangement, int32_t slot, int32_t other,
                          int32_t expert) {
  std::vector<bool> touched(static_cast<size_t>(arrangement.num_gpus()));
  touched[static_cast<size_t>(arrangement.gpu_of(slot))] = true;
  if (other >= 0) touched[static_cast<size_t>(arrangement.gpu_of(other))] = true;
  for (int32_t s = 0; other < 0 && s < arrangement.num_slots(); ++s) {
    const int32_t held = arrangement.expert_in(s);
    if (held == expert || held == arrangement.expert_in(slot)) {
      touched[static_cast<size_t>(arrangement.gpu_of(s))] = true;
    }
  }
  return touched;
}

// A step of a kind that descents take which would help, empty when there is none.
std::string StepLeft(const Arrangement& arrangement) {
  const Domain& domain = arrangement.domain();
  std::vector<int32_t> layout(arrangement.experts().begin(), arrangement.experts().end());
  const double peak = PeakOf(domain, layout);
  const int32_t hot = arrangement.HottestGpu();
  for (int32_t a = arrangement.first_slot(hot); a < arrangement.end_slot(hot); ++a) {
    for (int32_t b = 0; b < arrangement.num_slots(); ++b) {
      std::swap(layout[static_cast<size_t>(a)], layout[static_cast<size_t>(b)]);
      if (arrangement.gpu_of(b) != hot &&
          Helps(domain, layout, Touched(arrangement, a, b, -1), peak)) {
        return "exchange " + std::to_string(a) + " and " + std::to_string(b);
      }
      std::swap(layout[static_cast<size_t>(a)], layout[static_cast<size_t>(b)]);
    }
  }
  for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
    const int32_t held = arrangement.expert_in(slot);
    for (int32_t expert = 0; expert < domain.num_experts(); ++expert) {
      if (arrangement.gpu_of(slot) != hot && arrangement.CopiesOn(hot, expert) == 0) continue;
      layout[static_cast<size_t>(slot)] = expert;
      if (expert != held && Helps(domain, layout, Touched(arrangement, slot, -1, expert), peak)) {
        return "expert " + std::to_string(expert) + " into slot " + std::to_string(slot);
      }
    }
    layout[static_cast<size_t>(slot)] = held;
  }
  return "";
}

TEST(DescentTest, EndsWhereNoSingleStepHelps) {
  ForEachDomain(1500, {.speeds = true}, [](Arrangement& arrangement) {
    // A filter of the descent knows GPUs with at most one copy of an expert.
    if (arrangement.domain().MaxReplicas() > arrangement.num_gpus()) return;
    WorkBudget work = {.left = kPlenty};
    Descent().SwapsAndCounts(0, arrangement, work);
    EXPECT_EQ(StepLeft(arrangement), "") << ::testing::PrintToString(
        std::vector<int32_t>(arrangement.experts().begin(), arrangement.experts().end()));
  });
}

TEST(DescentTest, EndsAtTheTarget) {
  ForEachDomain(300, {.speeds = true}, [](Arrangement& arrangement) {
    const std::vector<int32_t> layout(arrangement.experts().begin(), arrangement.experts().end());
    WorkBudget work = {.left = kPlenty};
    Descent().SwapsAndCounts(arrangement.MaxLoad(), arrangement, work);
    EXPECT_TRUE(std::equal(layout.begin(), layout.end(), arrangement.experts().begin()));
    EXPECT_EQ(work.left, kPlenty);
  });
}

TEST(DescentTest, WorkEndsWithTheStepThatSpendsIt) {
  ForEachDomain(300, {.speeds = true}, [](Arrangement& arrangement) {
    const std::vector<int32_t> layout(arrangement.experts().begin(), arrangement.experts().end());
    WorkBudget none = {.left = 0};
    Descent().SwapsAndCounts(0, arrangement, none);
    EXPECT_EQ(none.left, 0);
    EXPECT_TRUE(std::equal(layout.begin(), layout.end(), arrangement.experts().begin()));
    // Looking at every exchange and at every change of counts once is the most a step can cost.
    const int64_t slots = arrangement.num_slots();
    const int64_t experts = arrangement.domain().num_experts();
    const int64_t most = int64_t{2} * arrangement.num_gpus() + slots * slots +
                         slots * (slots + experts) * (2 + 8 * slots);
    for (const int64_t budget : {1, 50, 1000}) {
      WorkBudget work = {.left = budget};
      Descent().SwapsAndCounts(0, arrangement, work);
      EXPECT_GE(work.left, -most);
    }
  });
}

// Giving expert 1 a replica where one of the idle expert 4 stands helps, although another replica
// of that expert stands on the hottest GPU.
TEST(DescentTest, AnIdleExpertOnTheHottestGpuGivesUpASlotElsewhere) {
  const Domain domain = MakeDomain({1, 8, 1, 1, 0}, 6, 2);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{1, 0, 4, 2, 3, 4});
  WorkBudget work = {.left = kPlenty};
  Descent().SwapsAndCounts(0, arrangement, work);
  EXPECT_LE(arrangement.MaxLoad(), 6);
  EXPECT_EQ(arrangement.count(1), 2);
}

}  // namespace
}  // namespace eplb
