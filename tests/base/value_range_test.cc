#include "base/value_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using Kind = WrittenValue::Kind;

constexpr Kind kAllKinds[] = {Kind::kInteger, Kind::kReal,    Kind::kText,
                              Kind::kTexts,   Kind::kUntyped, Kind::kOther};

template <class Range>
std::vector<Kind> KindsTaken(const Range& range, const std::string& text) {
  std::vector<Kind> taken;
  for (const Kind kind : kAllKinds) {
    if (range.Read({.kind = kind, .text = text})) taken.push_back(kind);
  }
  return taken;
}

TEST(ValueRangeTest, EveryRangeTakesItsOwnKindAndUntypedText) {
  constexpr DurationRange kDurations = {absl::ZeroDuration(), absl::Hours(1), "1s"};
  EXPECT_THAT(KindsTaken(IntegerRange{0, 9}, "7"), ElementsAre(Kind::kInteger, Kind::kUntyped));
  EXPECT_THAT(KindsTaken(NumberRange{0, 9}, "7"),
              ElementsAre(Kind::kInteger, Kind::kReal, Kind::kUntyped));
  EXPECT_THAT(KindsTaken(kDurations, "7s"), ElementsAre(Kind::kText, Kind::kUntyped));
  EXPECT_THAT(KindsTaken(WordRange{"on", "off"}, "on"), ElementsAre(Kind::kText, Kind::kUntyped));
}

template <class Range>
void ExpectReads(const Range& range, const std::vector<std::string>& good,
                 const std::vector<std::string>& bad) {
  for (const std::string& text : good) {
    const std::optional<Scalar> value = range.Read({.text = text});
    ASSERT_TRUE(value.has_value()) << text;
    EXPECT_TRUE(range.Holds(*value)) << text;
    EXPECT_EQ(ScalarText(*value), text);
  }
  for (const std::string& text : bad) EXPECT_FALSE(range.Read({.text = text})) << text;
}

TEST(ValueRangeTest, TheEndsAreHeldAndWhatIsNoSuchValueIsNot) {
  ExpectReads(IntegerRange{-2, 5}, {"-2", "0", "5"},
              {"-3", "6", "", "five", "5.0", "5 5", "+5", " 5", "9223372036854775808"});
  ExpectReads(NumberRange{-1, 1}, {"0.25", "-1", "1", "1e-05"},
              {"-1.1", "1.1", "nan", "inf", "-inf", "", "half", "+0.5", " 0.5", "-", "0x1p-3"});
  ExpectReads(NumberRange{0, 1}, {"0", "1"}, {"-0", "-0.5"});
  ExpectReads(DurationRange{absl::Seconds(1), absl::Hours(1), "60s"}, {"1s", "1m30s", "1h"},
              {"90", "", "999ms", "1h0m0.000000001s", "-5s", "+5s", "inf", "soon"});
  ExpectReads(WordRange{"auto", "json", "text"}, {"auto", "json", "text"}, {"", "Auto", "auto "});
}

TEST(ValueRangeTest, AFractionOnACommandLineMayBeAPercentage) {
  EXPECT_EQ((NumberRange{0, 1}).Read({.text = "5%"}), Scalar(0.05));
  EXPECT_FALSE((NumberRange{0, 1}).Read({.text = "101%"}));
  EXPECT_FALSE((NumberRange{0, 1}).Read({.text = "%"}));
  EXPECT_FALSE((NumberRange{0, 9}).Read({.text = "5%"}));
  EXPECT_FALSE((NumberRange{0, 1}).Read({.kind = Kind::kReal, .text = "5%"}));
}

TEST(ValueRangeTest, AValueOfAnotherTypeIsNotHeld) {
  EXPECT_FALSE((IntegerRange{0, 9}).Holds(1.0));
  EXPECT_FALSE((NumberRange{0, 9}).Holds(int64_t{1}));
  EXPECT_FALSE((DurationRange{absl::ZeroDuration(), absl::Hours(1), "1s"}).Holds("1s"));
  EXPECT_FALSE((WordRange{"a"}).Holds(int64_t{0}));
}

TEST(ValueRangeTest, WordsSayWhatIsExpected) {
  EXPECT_EQ((IntegerRange{0, 7, "0: not known"}).Expected(), "an integer in 0..7; 0: not known");
  EXPECT_EQ((NumberRange{0.01, 1e9}).Expected(), "a number in 0.01..1e9");
  EXPECT_EQ((DurationRange{absl::ZeroDuration(), absl::Hours(1), "50ms"}).Expected(),
            "a duration such as \"50ms\" in 0s..1h");
  EXPECT_EQ((WordRange{"a", "b", "c"}).Expected(), "\"a\", \"b\" or \"c\"");
  EXPECT_EQ((WordRange{"a", "b"}).Expected(), "\"a\" or \"b\"");
}

TEST(ValueRangeTest, NumbersHaveTheirShortestText) {
  EXPECT_EQ(ScalarText(0.1), "0.1");
  EXPECT_EQ(ScalarText(int64_t{-3}), "-3");
  EXPECT_EQ(ScalarText(absl::ZeroDuration()), "0s");
}

}  // namespace
}  // namespace eplb
