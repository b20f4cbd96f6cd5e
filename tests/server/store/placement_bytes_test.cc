#include "server/store/placement_bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "placement/digest.h"
#include "tests/server/store/store_contract.h"

namespace eplb {
namespace {

TEST(PlacementBytesTest, EveryTruncationIsDataLoss) {
  const std::string bytes = PlacementToBytes(ReversedPlacement(1));
  ASSERT_EQ(*PlacementFromBytes(bytes), ReversedPlacement(1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(PlacementFromBytes(bytes.substr(0, size)).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  EXPECT_FALSE(PlacementFromBytes(bytes + "x").ok());
}

TEST(PlacementBytesTest, AFlippedMagicShapeOrExpertIsNeverTheSamePlacement) {
  const Placement placement = ReversedPlacement(1);
  const std::string bytes = PlacementToBytes(placement);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    const absl::StatusOr<Placement> read = PlacementFromBytes(damaged);
    EXPECT_FALSE(read.ok() && DigestOf(*read) == DigestOf(placement)) << "byte " << i;
  }
}

}  // namespace
}  // namespace eplb
