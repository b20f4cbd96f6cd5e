#include "base/hex.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(HexTest, TwoDigitsAreAByteInEitherCase) {
  EXPECT_EQ(BytesFromHex("00ff7aB0"), std::string("\x00\xff\x7a\xb0", 4));
  EXPECT_EQ(BytesFromHex(""), "");
}

TEST(HexTest, AnythingElseIsRefused) {
  for (const char* text : {"0", "0g", "-1", "+1", " 1", "0x", "123"}) {
    EXPECT_EQ(BytesFromHex(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace eplb
