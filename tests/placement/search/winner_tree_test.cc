#include "placement/search/winner_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace eplb {
namespace {

TEST(WinnerTreeTest, TheWinnerIsTheLargestKeyAfterEveryChange) {
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  for (const size_t num_keys : {1, 2, 3, 7, 8, 9, 64, 100}) {
    std::vector<uint64_t> keys(num_keys);
    WinnerTree winner_tree(num_keys);
    for (size_t i = 0; i < num_keys; ++i) winner_tree.Set(i, keys[i] = random() % 50);
    winner_tree.Play();
    for (int change = 0; change < 200; ++change) {
      ASSERT_EQ(winner_tree.winner(), *std::max_element(keys.begin(), keys.end()))
          << "seed " << kSeed << ", " << num_keys << " keys, change " << change;
      const size_t index = random() % num_keys;
      winner_tree.Replace(index, keys[index] = random() % 50);
    }
  }
}

}  // namespace
}  // namespace eplb
