#include "placement/search/tournament.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace eplb {
namespace {

TEST(TournamentTest, TheWinnerIsTheLargestKeyAfterEveryChange) {
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  for (const size_t num_keys : {1, 2, 3, 7, 8, 9, 64, 100}) {
    std::vector<uint64_t> keys(num_keys);
    Tournament tournament(num_keys);
    for (size_t i = 0; i < num_keys; ++i) tournament.Set(i, keys[i] = random() % 50);
    tournament.Play();
    for (int change = 0; change < 200; ++change) {
      ASSERT_EQ(tournament.winner(), *std::max_element(keys.begin(), keys.end()))
          << "seed " << kSeed << ", " << num_keys << " keys, change " << change;
      const size_t index = random() % num_keys;
      tournament.Replace(index, keys[index] = random() % 50);
    }
  }
}

}  // namespace
}  // namespace eplb
