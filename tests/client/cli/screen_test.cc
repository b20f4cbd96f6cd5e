#include "client/cli/screen.h"

#include <gtest/gtest.h>

#include <string>

namespace eplb::cli {
namespace {

TEST(FitFrameTest, WhatFitsStaysAsItIs) {
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 10, .height = 2}), "a\nb");
  EXPECT_EQ(FitFrame("", "", {.width = 10, .height = 2}), "");
}

TEST(FitFrameTest, TheFirstLinesStayAndTheOthersAreCounted) {
  EXPECT_EQ(FitFrame("a\nb\nc\nd\n", "", {.width = 20, .height = 3}), "a\nb\n... 2 more lines");
  EXPECT_EQ(FitFrame("a\nb\nc\nd\n", "", {.width = 20, .height = 4}), "a\nb\nc\nd");
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 20, .height = 1}), "... 2 more lines");
  EXPECT_EQ(FitFrame("a\nb\n", "", {.width = 20, .height = 0}), "... 2 more lines");
}

TEST(FitFrameTest, NoLineIsWiderThanTheWindow) {
  EXPECT_EQ(FitFrame("abcdef\n", "", {.width = 4, .height = 3}), "abcd");
  EXPECT_EQ(FitFrame("\xC3\xA9\xC3\xA9\xC3\xA9\n", "", {.width = 2, .height = 3}),
            "\xC3\xA9\xC3\xA9");
}

TEST(FitFrameTest, ACutLineLeavesNoColourBehind) {
  EXPECT_EQ(FitFrame("\x1b[32mabcdef\x1b[0m\n", "", {.width = 4, .height = 3}),
            "\x1b[32mabcd\x1b[0m");
}

TEST(FitFrameTest, AProblemStandsAboveTheOldFrame) {
  EXPECT_EQ(FitFrame("a\nb\n", "no answer", {.width = 20, .height = 4}),
            "\x1b[31mno answer\x1b[0m\na\nb");
  EXPECT_EQ(FitFrame("a\nb\nc\n", "no answer", {.width = 20, .height = 3}),
            "\x1b[31mno answer\x1b[0m\na\n... 2 more lines");
  // A long problem is cut after three lines.
  const std::string frame = FitFrame("a\n", "one two three four five", {.width = 5, .height = 5});
  EXPECT_EQ(frame, "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m\n\x1b[31mthree\x1b[0m\na");
}

}  // namespace
}  // namespace eplb::cli
