#include "server/core/values/counters.h"

#include <gtest/gtest.h>

namespace eplb::core {
namespace {

TEST(CountersTest, ASumOfWhatRanksSayEndsAtItsMostAndNeverOverflows) {
  int64_t sum = 0;
  AddCapped(sum, 5);
  EXPECT_EQ(sum, 5);
  AddCapped(sum, kMostSummed);
  EXPECT_EQ(sum, kMostSummed);
  AddCapped(sum, kMostSummed);
  EXPECT_EQ(sum, kMostSummed);
}

}  // namespace
}  // namespace eplb::core
