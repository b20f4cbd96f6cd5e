#include "client/cli/daemon/rank_names.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace eplb::cli {
namespace {

TEST(RankNamesTest, OneFewAndMany) {
  EXPECT_EQ(NameRanks({}, 0), "");
  EXPECT_EQ(NameRanks({3}, 9), "rank 3");
  EXPECT_EQ(NameRanks({0}, 1), "rank 0");
  EXPECT_EQ(NameRanks({0, 1}, 9), "ranks 0, 1");
  EXPECT_EQ(NameRanks({0, 1}, 2), "all 2 ranks");
  std::vector<uint32_t> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(NameRanks(ranks, 9), "ranks 0, 1, 2, 3, 4, 5, 6, 7");
  ranks.push_back(9);
  EXPECT_EQ(NameRanks(ranks, 10), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
  EXPECT_EQ(NameRanks(ranks, 9), "all 9 ranks");
}

}  // namespace
}  // namespace eplb::cli
