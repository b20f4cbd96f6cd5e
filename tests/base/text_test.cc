#include "base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace eplb::wire {
namespace {

TEST(ClippedTest, WhatFitsIsLeftAsItIs) {
  EXPECT_EQ(Clipped("", 8), "");
  EXPECT_EQ(Clipped("12345678", 8), "12345678");
  EXPECT_EQ(Clipped(std::string(kMaxText, 'x')), std::string(kMaxText, 'x'));
}

TEST(ClippedTest, LongerTextEndsInDots) {
  EXPECT_EQ(Clipped("123456789", 8), "12345...");
  EXPECT_EQ(Clipped(std::string(1 << 20, 'x')), std::string(kMaxText - 3, 'x') + "...");
}

TEST(ClippedTest, NoCharacterIsCut) {
  const std::string euro = "\xE2\x82\xAC";  // three bytes
  EXPECT_EQ(Clipped("1" + euro + euro + euro, 8), "1" + euro + "...");
  EXPECT_EQ(Clipped(euro + euro + euro, 8), euro + "...");
  EXPECT_EQ(Clipped(euro + euro + euro, 5), "...");
}

}  // namespace
}  // namespace eplb::wire
