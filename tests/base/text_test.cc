#include "base/text.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(FigureTextTest, TwoNumbersThatDifferReadDifferently) {
  EXPECT_EQ(CompareSeconds(0.0462, 0.0460).of, "46.2 ms");
  EXPECT_EQ(CompareSeconds(0.0462, 0.0460).than, "46 ms");
  EXPECT_EQ(CompareSeconds(2, 1).of, "2 s");
  EXPECT_EQ(CompareSeconds(2, 2).than, "2 s");
  EXPECT_EQ(CompareSeconds(1234.5, 1234.25).of, "1234.5 s");
}

TEST(FigureTextTest, NumbersHaveUnits) {
  EXPECT_EQ(SecondsText(0), "0 s");
  EXPECT_EQ(SecondsText(0.21), "0.21 s");
  EXPECT_EQ(SecondsText(1.9), "1.9 s");
  EXPECT_EQ(SecondsText(99.96), "100 s");
  EXPECT_EQ(SecondsText(0.0034), "3.4 ms");
  EXPECT_EQ(SecondsText(12e-6), "12 us");
  EXPECT_EQ(BytesText(812), "812 B");
  EXPECT_EQ(BytesText(1'800'000'000), "1.8 GB");
  EXPECT_EQ(CountText(1, "transfer"), "1 transfer");
}

}  // namespace
}  // namespace eplb
