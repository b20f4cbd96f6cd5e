#include "client/cli/held_out.h"

#include <gtest/gtest.h>

#include <vector>

namespace eplb::cli {
namespace {

// Windows of ten steps; window i has i tokens.
std::vector<LoadWindow> Windows(int64_t count) {
  std::vector<LoadWindow> windows;
  for (int64_t i = 0; i < count; ++i) {
    windows.push_back({.first_step = 10 * i,
                       .last_step = 10 * i + 9,
                       .load = *Load::FromCounts(LoadMatrix::Constant(1, 1, i))});
  }
  return windows;
}

TEST(HeldOutTest, TheLaterHalfIsScoredAndNotPlannedOn) {
  const std::vector<LoadWindow> windows = Windows(5);
  const HeldOut held_out = HoldOut(windows);
  EXPECT_TRUE(held_out.out_of_sample);
  EXPECT_EQ(held_out.planned.size(), 3u);
  ASSERT_EQ(held_out.scored.size(), 2u);
  EXPECT_EQ(held_out.scored.front().counts()(0, 0), 3);
  EXPECT_EQ(held_out.scored_steps, 20);
  EXPECT_EQ(ScoredOnText(held_out), "Planned on windows 0..2, scored on windows 3..4");
  const std::vector<LoadWindow> two = Windows(2);
  EXPECT_EQ(ScoredOnText(HoldOut(two)), "Planned on window 0 (no tokens), scored on window 1");
}

TEST(HeldOutTest, OneWindowIsScoredOnItself) {
  const std::vector<LoadWindow> windows = Windows(1);
  const HeldOut held_out = HoldOut(windows);
  EXPECT_FALSE(held_out.out_of_sample);
  EXPECT_EQ(held_out.planned.size(), 1u);
  EXPECT_EQ(held_out.scored.size(), 1u);
}

}  // namespace
}  // namespace eplb::cli
