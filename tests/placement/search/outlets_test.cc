#include "placement/search/outlets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

namespace eplb {
namespace {

constexpr uint64_t kOutletsSeed = 31;

Domain DomainOfLoads(std::vector<double> load, int32_t gpus, int32_t slots_per_gpu) {
  Domain domain;
  domain.load = std::move(load);
  domain.slots.assign(static_cast<size_t>(gpus), slots_per_gpu);
  domain.speed.assign(static_cast<size_t>(gpus), 1);
  return domain;
}

std::vector<double> RandomLoads(size_t experts, std::mt19937_64& random) {
  std::vector<double> load(experts);
  for (double& tokens : load) tokens = static_cast<double>(random() % 1000);
  return load;
}

// The GPUs that each expert of a layout is on.
std::vector<std::set<int32_t>> HoldersOf(const Domain& domain, const std::vector<int32_t>& layout) {
  std::vector<std::set<int32_t>> holders(domain.load.size());
  size_t slot = 0;
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
    for (int32_t i = 0; i < domain.slots[static_cast<size_t>(gpu)]; ++i, ++slot) {
      holders[static_cast<size_t>(layout[slot])].insert(gpu);
    }
  }
  return holders;
}

void ExpectValid(const Domain& domain, const std::vector<int32_t>& layout) {
  ASSERT_EQ(layout.size(), static_cast<size_t>(domain.num_slots()));
  const auto holders = HoldersOf(domain, layout);
  size_t held = 0;
  for (const std::set<int32_t>& gpus : holders) {
    EXPECT_FALSE(gpus.empty());
    held += gpus.size();
  }
  EXPECT_EQ(held, layout.size()) << "an expert twice on one GPU";
}

// GPUs that are reached from GPU 0 along experts that several GPUs hold.
size_t ReachedGpus(const Domain& domain, const std::vector<int32_t>& layout) {
  const auto holders = HoldersOf(domain, layout);
  std::set<int32_t> reached = {0};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const std::set<int32_t>& gpus : holders) {
      const bool meets = std::any_of(gpus.begin(), gpus.end(),
                                     [&](int32_t gpu) { return reached.count(gpu) > 0; });
      if (meets) reached.insert(gpus.begin(), gpus.end());
    }
  }
  return reached.size();
}

TEST(OutletsTest, ARingNeedsASpareSlotForEveryGpu) {
  EXPECT_TRUE(AllowsOutletRing(DomainOfLoads(std::vector<double>(64, 1), 8, 9)));
  EXPECT_FALSE(AllowsOutletRing(DomainOfLoads(std::vector<double>(65, 1), 8, 9)));
  EXPECT_FALSE(AllowsOutletRing(DomainOfLoads(std::vector<double>(4, 1), 8, 1)));
  EXPECT_FALSE(AllowsOutletRing(DomainOfLoads(std::vector<double>(4, 1), 1, 5)));
  EXPECT_FALSE(MakeOutletRing(DomainOfLoads(std::vector<double>(65, 1), 8, 9), 0).has_value());
}

TEST(OutletsTest, ARingIsValidAndConnectsAllGpusWhateverTheLoad) {
  std::mt19937_64 random(kOutletsSeed);
  for (const auto& [experts, gpus, slots] :
       {std::array{64, 8, 9}, {64, 8, 12}, {32, 16, 3}, {6, 2, 4}, {256, 32, 9}, {20, 5, 5}}) {
    SCOPED_TRACE(experts);
    const Domain domain =
        DomainOfLoads(RandomLoads(static_cast<size_t>(experts), random), gpus, slots);
    for (const double most : {0.0, 0.5, 0.9}) {
      const auto layout = MakeOutletRing(domain, most);
      ASSERT_TRUE(layout.has_value());
      ExpectValid(domain, *layout);
      if (most == 0) {
        EXPECT_EQ(ReachedGpus(domain, *layout), static_cast<size_t>(gpus));
      }
    }
  }
}

TEST(OutletsTest, EveryGpuCanPassOnItsHeaviestExpert) {
  std::mt19937_64 random(kOutletsSeed + 1);
  const Domain domain = DomainOfLoads(RandomLoads(64, random), 8, 9);
  const auto layout = *MakeOutletRing(domain, 0);
  const auto holders = HoldersOf(domain, layout);
  std::vector<double> fixed(8, 0);
  std::vector<double> shared(8, 0);
  for (size_t expert = 0; expert < 64; ++expert) {
    for (const int32_t gpu : holders[expert]) {
      double& heaviest = (holders[expert].size() > 1 ? shared : fixed)[static_cast<size_t>(gpu)];
      heaviest = std::max(heaviest, domain.load[expert]);
    }
  }
  for (size_t gpu = 0; gpu < 8; ++gpu) EXPECT_GE(shared[gpu], fixed[gpu]);
}

TEST(OutletsTest, AnExpertAboveTheMeanGetsMoreOutletsWhereTheyAreAskedFor) {
  std::vector<double> load(64, 10);
  load[5] = 640;
  const Domain domain = DomainOfLoads(load, 8, 9);
  EXPECT_GE(HoldersOf(domain, *MakeOutletRing(domain, 0.5))[5].size(), 8u);
  EXPECT_EQ(HoldersOf(domain, *MakeOutletRing(domain, 0))[5].size(), 2u);
}

TEST(OutletsTest, StepsFromARingForTheSameLoadChangeNothingMuch) {
  std::mt19937_64 random(kOutletsSeed + 2);
  const Domain domain = DomainOfLoads(RandomLoads(64, random), 8, 9);
  const auto layout = *MakeOutletRing(domain, 0);
  OutletSteps steps(domain);
  ASSERT_TRUE(steps.Start(layout));
  EXPECT_EQ(steps.WithOutlets(), layout);
}

TEST(OutletsTest, StepsFollowADriftingLoadWithFewCopies) {
  std::mt19937_64 random(kOutletsSeed + 3);
  Domain domain = DomainOfLoads(RandomLoads(64, random), 8, 9);
  std::vector<int32_t> layout = *MakeOutletRing(domain, 0);
  for (int window = 0; window < 20; ++window) {
    for (double& tokens : domain.load) {
      tokens *= 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000;
    }
    OutletSteps steps(domain);
    ASSERT_TRUE(steps.Start(layout));
    int swaps = 0;
    while (steps.Swap()) ASSERT_LT(++swaps, 200);
    const std::vector<int32_t> next = steps.WithOutlets();
    ExpectValid(domain, next);
    EXPECT_EQ(ReachedGpus(domain, next), 8u);
    EXPECT_LE(CopiesBetween(domain, layout, next).sum, 2 * swaps + 8);
    layout = next;
  }
}

TEST(OutletsTest, ALayoutWhoseSpareSlotsAreOnOneGpuHasNoOwners) {
  const Domain domain = DomainOfLoads(std::vector<double>(64, 1), 8, 9);
  std::vector<int32_t> layout(72);
  for (int32_t slot = 0; slot < 72; ++slot) layout[static_cast<size_t>(slot)] = slot % 64;
  OutletSteps steps(domain);
  EXPECT_FALSE(steps.Start(layout));
}

TEST(OutletsTest, FasterGpusOwnMore) {
  std::mt19937_64 random(kOutletsSeed + 4);
  Domain domain = DomainOfLoads(RandomLoads(64, random), 8, 9);
  domain.speed[3] = 0.5;
  const auto layout = *MakeOutletRing(domain, 0);
  ExpectValid(domain, layout);
  const auto holders = HoldersOf(domain, layout);
  double slow = 0;
  for (size_t expert = 0; expert < 64; ++expert) {
    if (holders[expert] == std::set<int32_t>{3}) slow += domain.load[expert];
  }
  const double mean = domain.total_load() / 7.5;
  EXPECT_LE(slow, 0.5 * mean);
}

}  // namespace
}  // namespace eplb
