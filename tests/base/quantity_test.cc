#include "base/quantity.h"

#include <gtest/gtest.h>

#include <limits>

namespace eplb {
namespace {

TEST(QuantityTest, SizesHaveDecimalAndBinaryUnits) {
  EXPECT_EQ(ParseBytes("88080384"), 88080384);
  EXPECT_EQ(ParseBytes("010"), 10);
  EXPECT_EQ(ParseBytes("88MB"), 88'000'000);
  EXPECT_EQ(ParseBytes(" 84 MiB "), 84 << 20);
  EXPECT_EQ(ParseBytes("1.5GiB"), 3 << 29);
  EXPECT_EQ(ParseBytes("4.4MB"), 4'400'000);
  EXPECT_EQ(ParseBytes("2kB"), 2000);
  EXPECT_EQ(ParseBytes("2KB"), 2000);
  EXPECT_EQ(ParseBytes("2KiB"), 2048);
  EXPECT_EQ(ParseBytes("0B"), 0);
  EXPECT_EQ(ParseBytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(QuantityTest, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "x", "MB", "88mb", "88Mb", "88M", "88 MB x", "-1", "-1MB", "0.5B",
                           "1.5", "1e6", "9223372036854775808", "1e30TB", "0x10", "inf", "nanB"}) {
    EXPECT_FALSE(ParseBytes(text)) << text;
  }
}

TEST(QuantityTest, FractionsMayBePercentages) {
  EXPECT_EQ(ParseFraction("0.05"), 0.05);
  EXPECT_EQ(ParseFraction("5%"), 0.05);
  EXPECT_EQ(ParseFraction("99.5 %"), 0.995);
  EXPECT_EQ(ParseFraction("-1"), -1);
  EXPECT_EQ(ParseFraction("+.5"), 0.5);
  for (const char* text : {"", "%", "5%%", "5 percent", "nan", "inf", "+-1", "0x1"}) {
    EXPECT_FALSE(ParseFraction(text)) << text;
  }
}

TEST(QuantityTest, TimesHaveUnitsAndMayBeCompound) {
  EXPECT_EQ(ParseNanoseconds("176", 1), 176);
  EXPECT_EQ(ParseNanoseconds("176ns", 1), 176);
  EXPECT_EQ(ParseNanoseconds("0.2us", 1), 200);
  EXPECT_EQ(ParseNanoseconds("5", 1e9), 5e9);
  EXPECT_EQ(ParseNanoseconds("500 ms", 1e9), 5e8);
  EXPECT_EQ(ParseNanoseconds("2min", 1e9), 120e9);
  EXPECT_EQ(ParseNanoseconds("1d", 1e9), 86400e9);
  EXPECT_EQ(ParseNanoseconds("1h30m", 1e9), 5400e9);
  for (const char* text : {"", "s", "5 parsecs", "inf", "nan", "1h30"}) {
    EXPECT_FALSE(ParseNanoseconds(text, 1e9)) << text;
  }
}

}  // namespace
}  // namespace eplb
