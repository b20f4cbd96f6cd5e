#include "client/trainer/job_channel.h"

#include <gtest/gtest.h>

#include <thread>

namespace eplb {
namespace {

TEST(JobChannelTest, EveryRankGetsEverybodysValuesInRankOrder) {
  // 5 ranks x 30 values need three collectives of at most 64 values.
  constexpr int32_t kWorldSize = 5;
  auto channels = MakeInprocControlChannels(kWorldSize);
  std::vector<std::vector<int64_t>> gathered(kWorldSize);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kWorldSize; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int64_t> mine;
      for (int64_t i = 0; i < 30; ++i) mine.push_back(rank * 1000 + i);
      const auto all = AllGather(*channels[static_cast<size_t>(rank)], mine, absl::Seconds(10));
      if (all.ok()) gathered[static_cast<size_t>(rank)] = *all;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int64_t>& all : gathered) {
    ASSERT_EQ(all.size(), 150u);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i], static_cast<int64_t>(i / 30 * 1000 + i % 30));
    }
  }
}

}  // namespace
}  // namespace eplb
