#include "client/cli/screen.h"

#include <gtest/gtest.h>

#include <string>

namespace eplb::cli {
namespace {

// From the first line on.
std::string Fit(const std::string& text, const std::string& problem, const Window& window) {
  int first = 0;
  return FitFrame(text, problem, window, first);
}

TEST(FitFrameTest, WhatFitsStaysAsItIs) {
  EXPECT_EQ(Fit("a\nb\n", "", {.width = 10, .height = 2}), "a\nb");
  EXPECT_EQ(Fit("", "", {.width = 10, .height = 2}), "");
}

TEST(FitFrameTest, TheFirstLinesStayAndTheOthersAreCounted) {
  EXPECT_EQ(Fit("a\nb\nc\nd\n", "", {.width = 20, .height = 3}), "a\nb\n... 2 more lines");
  EXPECT_EQ(Fit("a\nb\nc\nd\n", "", {.width = 20, .height = 4}), "a\nb\nc\nd");
  EXPECT_EQ(Fit("a\nb\n", "", {.width = 20, .height = 1}), "... 2 more lines");
  EXPECT_EQ(Fit("a\nb\n", "", {.width = 20, .height = 0}), "... 2 more lines");
}

TEST(FitFrameTest, NoLineIsWiderThanTheWindow) {
  EXPECT_EQ(Fit("abcdef\n", "", {.width = 4, .height = 3}), "abcd");
  EXPECT_EQ(Fit("\xC3\xA9\xC3\xA9\xC3\xA9\n", "", {.width = 2, .height = 3}), "\xC3\xA9\xC3\xA9");
}

TEST(FitFrameTest, ACutLineLeavesNoColourBehind) {
  EXPECT_EQ(Fit("\x1b[32mabcdef\x1b[0m\n", "", {.width = 4, .height = 3}), "\x1b[32mabcd\x1b[0m");
}

TEST(FitFrameTest, AProblemStandsAboveTheOldFrame) {
  EXPECT_EQ(Fit("a\nb\n", "no answer", {.width = 20, .height = 4}),
            "\x1b[31mno answer\x1b[0m\na\nb");
  EXPECT_EQ(Fit("a\nb\nc\n", "no answer", {.width = 20, .height = 3}),
            "\x1b[31mno answer\x1b[0m\na\n... 2 more lines");
  // A long problem is cut after three lines.
  const std::string frame = Fit("a\n", "one two three four five", {.width = 5, .height = 5});
  EXPECT_EQ(frame, "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m\n\x1b[31mthree\x1b[0m\na");
}

TEST(ScreenTest, AFrameScrollsAndNamesWhatIsAboveAndBelow) {
  const Window window{.width = 30, .height = 3};
  const auto from = [&window](int first) {
    std::string frame = FitFrame("a\nb\nc\nd\ne\n", "", window, first);
    return std::pair(std::move(frame), first);
  };
  EXPECT_EQ(from(1), std::pair(std::string("b\nc\n... 1 line above, 2 more lines"), 1));
  EXPECT_EQ(from(3), std::pair(std::string("d\ne\n... 3 lines above"), 3));
  EXPECT_EQ(from(1000), from(3)) << "the end is the last frame that is full";
  EXPECT_EQ(from(-5), std::pair(std::string("a\nb\n... 3 more lines"), 0));
  int first = 7;
  EXPECT_EQ(FitFrame("a\nb\n", "", window, first), "a\nb");
  EXPECT_EQ(first, 0) << "a later frame may be shorter";
}

}  // namespace
}  // namespace eplb::cli
