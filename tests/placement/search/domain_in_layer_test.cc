#include "placement/search/domain_in_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

TEST(DomainInLayerTest, SlotsOfGpusOutsideOfTheDomainAreNeitherReadNorWritten) {
  // GPUs hold 3, 3, 2 and 2 slots; GPU 1 is unusable, GPU 3 outside.
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 10, .num_gpus = 4});
  const std::vector<int32_t> unusable = {1};
  const GpuSpeeds speeds = *GpuSpeeds::Make(4, std::vector<double>{1, 1, 0.5, 1}, unusable);
  DomainInLayer place = PlaceInLayer(topology, speeds, 0, 3);
  EXPECT_THAT(place.first_slot, ElementsAre(0, 6));
  EXPECT_THAT(place.domain.slots, ElementsAre(3, 2));
  EXPECT_THAT(place.domain.speed, ElementsAre(1, 0.5));
  EXPECT_THAT(place.Read(std::vector<int32_t>{0, 1, 2, 9, 9, 9, 3, 0, 9, 9}),
              ElementsAre(0, 1, 2, 3, 0));

  place.experts = {1, 3};  // in the layer
  place.domain.load = {1, 1};
  Arrangement arrangement(place.domain);
  arrangement.Assign(std::vector<int32_t>{0, 1, 0, 1, 0});
  std::vector<int32_t> slots(10, -7);
  place.Write(arrangement, slots);
  EXPECT_THAT(slots, ElementsAre(1, 3, 1, -7, -7, -7, 3, 1, -7, -7));
}

TEST(DomainInLayerTest, CopiesThatAGpuNeedNotHoldAreSpread) {
  Random random(71);
  int spread = 0;
  for (int i = 0; i < 200; ++i) {
    const Domain domain = RandomDomain(random, {});
    std::vector<int32_t> layout(static_cast<size_t>(domain.num_slots()));
    for (size_t slot = 0; slot < layout.size(); ++slot) {
      layout[slot] = slot < domain.load.size() ? static_cast<int32_t>(slot)
                                               : Pick(random, 0, domain.num_experts() - 1);
    }
    std::ranges::shuffle(layout, random);
    Arrangement arrangement(domain);
    arrangement.Assign(layout);
    if (!WhyIllegal(domain, layout).empty()) ++spread;
    SpreadCopies(arrangement);
    EXPECT_EQ(WhyIllegal(domain, arrangement.experts()), "") << Describe(domain);
    ExpectConsistent(arrangement);
    for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
      const auto first = layout.begin() + arrangement.first_slot(gpu);
      for (const int32_t expert : std::set<int32_t>(first, first + domain.slots[AsIndex(gpu)])) {
        EXPECT_GE(arrangement.CopiesOn(gpu, expert), 1) << Describe(domain);
      }
    }
  }
  EXPECT_GT(spread, 50);
}

}  // namespace
}  // namespace eplb
