#include "client/cli/formats/load_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

LoadWindow Counts(int64_t a, int64_t b) {
  LoadMatrix counts(1, 2);
  counts << a, b;
  return {.load = *Load::FromCounts(counts)};
}

LoadWindow Estimates(double a, double b) {
  RealMatrix cells(1, 2);
  cells << a, b;
  return {.load = *Load::FromEstimates(cells)};
}

Load Combined(const std::vector<LoadWindow>& windows, const char* rule) {
  const absl::StatusOr<Load> load = CombineWindows(windows, *ParseWindowRule(rule));
  EXPECT_TRUE(load.ok()) << load.status();
  return *load;
}

TEST(LoadWindowTest, ABatchOfMoreTokensThanASplitTakesIsNamed) {
  constexpr int64_t kMost = int64_t{1} << 36;
  std::vector<LoadWindow> windows = {Counts(0, kMost), Counts(1, kMost), Estimates(1e30, 0)};
  EXPECT_EQ(CheckBatches(windows, kMost).message(),
            "window 1: layer 0 has 68719476737 tokens, a batch to split exactly has at most "
            "68719476736");
  windows[1].line = 3;
  EXPECT_THAT(std::string(CheckBatches(windows, kMost).message()), StartsWith("line 3: layer 0 "));
  windows.erase(windows.begin() + 1);  // the other two fit: an estimate is split into fractions
  EXPECT_TRUE(CheckBatches(windows, kMost).ok());
}

TEST(LoadWindowTest, SumsOfCountsAreExactAbovePrecisionOfDoubles) {
  const Load load = Combined({Counts((int64_t{1} << 53) + 1, 2), Counts(0, 5)}, "sum");
  ASSERT_TRUE(load.is_counts());
  EXPECT_EQ(load.counts()(0, 0), (int64_t{1} << 53) + 1);
  EXPECT_EQ(load.counts()(0, 1), 7);
}

TEST(LoadWindowTest, ASumAboveInt64NamesTheCell) {
  const std::vector<LoadWindow> windows = {Counts(0, INT64_MAX), Counts(0, 1)};
  const absl::Status status = CombineWindows(windows, WindowRule{}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer 0 expert 1 is above 2^63-1"));
}

TEST(LoadWindowTest, LastIsTheNewestWindow) {
  EXPECT_EQ(Combined({Counts(1, 2), Counts(3, 4)}, "last").counts()(0, 0), 3);
}

TEST(LoadWindowTest, TheAverageStartsWithTheOldestWindow) {
  const Load load = Combined({Counts(8, 0), Counts(0, 4), Counts(0, 4)}, "ema:0.5");
  EXPECT_EQ(load.ToDouble()(0, 0), 2.0);
  EXPECT_EQ(load.ToDouble()(0, 1), 3.0);
}

TEST(LoadWindowTest, OneWindowComesBackAsItIs) {
  for (const char* rule : {"sum", "last", "ema:0.9"}) {
    EXPECT_EQ(Combined({Counts(INT64_MAX, 0)}, rule).counts()(0, 0), INT64_MAX) << rule;
  }
}

TEST(LoadWindowTest, CountsAndEstimatesSumToEstimates) {
  const Load load = Combined({Counts(1, 2), Estimates(0.5, 0.25)}, "sum");
  EXPECT_FALSE(load.is_counts());
  EXPECT_EQ(load.ToDouble()(0, 0), 1.5);
}

TEST(LoadWindowTest, NoWindowAndOtherShapesAreRefused) {
  EXPECT_FALSE(CombineWindows({}, WindowRule{}).ok());
  const std::vector<LoadWindow> windows = {Counts(1, 2),
                                           {.load = *Load::FromCounts(LoadMatrix::Ones(1, 3))}};
  EXPECT_THAT(std::string(CombineWindows(windows, WindowRule{}).status().message()),
              HasSubstr("window 1 has 1 layers x 3 experts, window 0 has 1 x 2"));
}

TEST(LoadWindowTest, OnlyTheThreeRulesAreKnown) {
  EXPECT_EQ(ParseWindowRule("ema:0")->decay, 0.0);
  EXPECT_EQ(ParseWindowRule("ema:1")->decay, 1.0);
  for (const char* bad : {"", "mean", "ema", "ema:", "ema:x", "ema:1.5", "ema:-0.1", "ema:nan",
                          "ema:inf", "ema:0.9x", "SUM"}) {
    EXPECT_THAT(std::string(ParseWindowRule(bad).status().message()), HasSubstr("expected sum"))
        << bad;
  }
}

}  // namespace
}  // namespace eplb
