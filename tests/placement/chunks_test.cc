// CutIntoChunks of placement/migration_plan.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/migration_plan.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

Topology TwoNodes() {
  return *Topology::Make(
      {.num_layers = 1, .num_experts = 4, .num_slots = 8, .num_gpus = 4, .num_nodes = 2});
}

TEST(CutIntoChunksTest, RandomChunksChainFromCurrentToTarget) {
  constexpr uint64_t kSeed = 92;
  testing::Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, " case ", i));
    const Topology topology = testing::RandomTopology(random);
    const Placement current = testing::RandomPlacement(random, topology);
    const Placement target = testing::SwapSlots(random, current, testing::Pick(random, 0, 3));
    const int32_t size = testing::Pick(random, 1, 4);
    const auto chunks = CutIntoChunks(current, target, size);
    ASSERT_TRUE(chunks.ok()) << chunks.status();
    Placement before = current;
    std::vector<LayerId> layers;
    for (const Chunk& chunk : *chunks) {
      ASSERT_LE(chunk.layers.size(), static_cast<size_t>(size));
      ASSERT_FALSE(chunk.layers.empty());
      for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
        const bool in_chunk = std::find(chunk.layers.begin(), chunk.layers.end(), LayerId{layer}) !=
                              chunk.layers.end();
        const Placement& wanted = in_chunk ? target : before;
        ASSERT_EQ(chunk.after.Layer(LayerId{layer}), wanted.Layer(LayerId{layer}));
        ASSERT_TRUE(!in_chunk || before.Layer(LayerId{layer}) != target.Layer(LayerId{layer}));
      }
      layers.insert(layers.end(), chunk.layers.begin(), chunk.layers.end());
      before = chunk.after;
    }
    ASSERT_EQ(before, target);
    ASSERT_TRUE(std::is_sorted(layers.begin(), layers.end()));
    if (!chunks->empty()) {
      ASSERT_EQ(chunks->size(),
                (layers.size() + static_cast<size_t>(size) - 1) / static_cast<size_t>(size));
    }
  }
}

TEST(CutIntoChunksTest, RefusesEmptyChunksAndOtherShapes) {
  const Placement placement = Placement::Static(TwoNodes());
  EXPECT_THAT(CutIntoChunks(placement, placement, 0).status().message(),
              HasSubstr("layers_per_chunk is 0"));
  const Placement other =
      Placement::Static(*Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 8}));
  EXPECT_THAT(CutIntoChunks(placement, other, 1).status().message(), HasSubstr("layers"));
}

}  // namespace
}  // namespace eplb
