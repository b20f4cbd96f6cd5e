#include "client/cli/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace eplb::cli {
namespace {

using ::testing::ElementsAre;

constexpr Terminal kPlain{.width = 80};
constexpr Terminal kRich{.width = 80, .colour = true, .unicode = true};

TEST(TextTest, NumbersAreGroupedByThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(-1234567), "-1,234,567");
  EXPECT_EQ(Grouped(INT64_MIN), "-9,223,372,036,854,775,808");
}

TEST(TextTest, TokensKeepFourDigitsOfAnySize) {
  EXPECT_EQ(Tokens(0), "0");
  EXPECT_EQ(Tokens(0.125), "0.125");
  EXPECT_EQ(Tokens(812), "812");
  EXPECT_EQ(Tokens(12345.6), "12,346");
  EXPECT_EQ(Tokens(1234567), "1.235 M");
  EXPECT_EQ(Tokens(9.2e18), "9.200 E");
  EXPECT_EQ(Tokens(1e300), "1e+300");
}

TEST(TextTest, DurationsTakeTheUnitOfTheirSize) {
  EXPECT_EQ(Seconds(0), "0 s");
  EXPECT_EQ(Seconds(-3.21), "-3.2 s");
  EXPECT_EQ(Seconds(41e-6), "41 us");
  EXPECT_EQ(Seconds(0.0041), "4.1 ms");
  EXPECT_EQ(Seconds(3.21), "3.2 s");
  EXPECT_EQ(Seconds(125), "2m 05s");
  EXPECT_EQ(Seconds(7500), "2h 05m");
  EXPECT_EQ(Seconds(400000), "4d 15h");
}

TEST(TextTest, OnlyOneIsSingular) {
  EXPECT_EQ(Counted(1, "layer"), "1 layer");
  EXPECT_EQ(Counted(0, "layer"), "0 layers");
  EXPECT_EQ(Counted(1200, "layer"), "1,200 layers");
}

TEST(TextTest, ColourSequencesAndCodePointsCountAsShown) {
  EXPECT_EQ(DisplayWidth("\x1b[31mab\xC3\xA9\x1b[0m"), 3);
  EXPECT_EQ(Paint(kPlain, Colour::kRed, "x"), "x");
  EXPECT_EQ(Paint(kRich, Colour::kRed, "x"), "\x1b[31mx\x1b[0m");
}

TEST(TextTest, LongTextIsCutAndMarked) {
  EXPECT_EQ(Shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(Shortened("abcdefg", 6), "abcd..");
  EXPECT_EQ(ShortenedName("abcdef", 6), "abcdef");
  EXPECT_EQ(ShortenedName("abcdefghi", 8), "abc..ghi");
  EXPECT_EQ(ShortenedName("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4), "\xC3\xA9..\xC3\xA9");
  EXPECT_EQ(Shortened("\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 4), "\xC3\xA9\xC3\xA9..");
}

TEST(TextTest, WordsWrapWithinTheWidth) {
  EXPECT_EQ(Wrapped("one two three four", 9, 2), "one two\n  three\n  four");
  EXPECT_EQ(Wrapped("", 9, 2), "");
  EXPECT_EQ(Wrapped("averyveryverylongword x", 9, 2), "averyveryverylongword\n  x");
}

TEST(TextTest, ColumnsAreAlignedAndLinesEndWithoutSpaces) {
  Table table({"name", ">n"});
  table.rows = {{"a", "10"}, {"long", "5"}};
  EXPECT_EQ(FormatTable(table, kPlain), "name   n\na     10\nlong   5\n");
}

TEST(TextTest, ColumnsAreLeftOutUntilATableFits) {
  Table table({"long name", ">b", "c"});
  table.rows = {{"1", "22", "333"}};
  table.drop = {"no such", "b", "c"};
  for (const auto& [width, heading] :
       {std::pair(18, "long name   b  c\n"), std::pair(17, "long name  c\n"),
        std::pair(13, "long name\n")}) {
    EXPECT_THAT(FormatTable(table, {.width = width}), ::testing::StartsWith(heading));
  }
}

TEST(TextTest, BarsShowTheirShare) {
  EXPECT_EQ(Bar(5, 10, 10, kPlain), "#####");
  EXPECT_EQ(Bar(0, 10, 10, kPlain), "");
  EXPECT_EQ(Bar(1e-9, 10, 10, kPlain), "#");
  EXPECT_EQ(Bar(20, 10, 10, kPlain), "##########");
  EXPECT_EQ(Bar(0, 0, 10, kPlain), "");
  EXPECT_EQ(Bar(10.0 / 16, 10, 8, kRich), "▌");
}

TEST(TextTest, ChartColumnsGrowFromTheBottom) {
  const std::vector<double> values = {0, 5, 10};
  EXPECT_THAT(ColumnChart(values, 10, 2, 3, kPlain), ElementsAre("  #", " ##"));
  EXPECT_THAT(ColumnChart({&values[0], 2}, 10, 2, 3, kPlain), ElementsAre("", " #"));
}

TEST(TextTest, AChartNarrowerThanItsValuesShowsTheLargestOfNeighbours) {
  const std::vector<double> values = {0, 10, 0, 0};
  EXPECT_THAT(ColumnChart(values, 10, 1, 2, kPlain), ElementsAre("#"));
}

}  // namespace
}  // namespace eplb::cli
