#include "client/session/load_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

wire::LoadReport Window(int64_t first_step, int64_t last_step) {
  return {.first_step = first_step, .last_step = last_step, .counts = LoadMatrix::Zero(1, 1)};
}

std::string RecordError(LoadWindows& windows, int32_t layer, const std::vector<int64_t>& counts) {
  const absl::Status status = windows.Record(layer, counts);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LoadWindowsTest, WindowHoldsTheSumOfItsSteps) {
  LoadWindows windows(2, 3, 2, 0);
  ASSERT_TRUE(windows.Record(0, std::vector<int64_t>{1, 2, 3}).ok());
  ASSERT_TRUE(windows.Record(0, std::vector<int64_t>{10, 0, 0}).ok());
  EXPECT_FALSE(windows.EndStep(0).has_value());
  ASSERT_TRUE(windows.Record(1, std::vector<int64_t>{0, 0, 7}).ok());
  const std::optional<wire::LoadReport> window = windows.EndStep(1);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->first_step, 0);
  EXPECT_EQ(window->last_step, 1);
  LoadMatrix expected(2, 3);
  expected << 11, 2, 3, 0, 0, 7;
  EXPECT_TRUE((window->counts == expected).all());
}

TEST(LoadWindowsTest, TheWindowHasTheMeanOfTheRecordedStepTimes) {
  LoadWindows windows(1, 1, 2, 0);
  ASSERT_TRUE(windows.RecordStepTime(1).ok());
  ASSERT_TRUE(windows.RecordStepTime(0.5).ok());
  ASSERT_FALSE(windows.EndStep(0).has_value());
  ASSERT_TRUE(windows.RecordStepTime(0.5).ok());
  EXPECT_EQ(windows.EndStep(1)->step_seconds, 1);
  ASSERT_FALSE(windows.EndStep(2).has_value());
  EXPECT_EQ(windows.EndStep(3)->step_seconds, 0) << "the next window begins at zero";
  for (const double wrong : {-1.0, 2e6, std::nan("")}) {
    EXPECT_THAT(std::string(windows.RecordStepTime(wrong).message()), HasSubstr("step time is "));
  }
}

TEST(LoadWindowsTest, SplitsAddUp) {
  LoadWindows windows(2, 3, 2, 0);
  ASSERT_TRUE(windows.RecordSplits(0, {6, 3, 4, 5}).ok());
  EXPECT_FALSE(windows.EndStep(0).has_value());
  ASSERT_TRUE(windows.RecordSplits(0, {11, 10, 7, 9}).ok());
  const std::optional<wire::LoadReport> window = windows.EndStep(1);
  EXPECT_EQ(window->split_tokens, (std::vector<int64_t>{6 + 11, 0}));
  EXPECT_EQ(window->split_peaks, (std::vector<int64_t>{3 + 10, 0}));
  EXPECT_EQ(window->split_peaks_static, (std::vector<int64_t>{4 + 7, 0}));
  EXPECT_EQ(window->split_peaks_without_eplb, (std::vector<int64_t>{5 + 9, 0}));
  EXPECT_FALSE(windows.EndStep(2).has_value());
  EXPECT_TRUE(windows.EndStep(3)->split_tokens.empty()) << "none in this window";
  ASSERT_TRUE(windows.RecordSplits(1, {.tokens = kMax}).ok());
  EXPECT_EQ(windows.RecordSplits(1, {.tokens = 1, .peak = 1}).message(),
            "layer 1: the window's split tokens exceed 2^63-1");
  EXPECT_FALSE(windows.EndStep(4).has_value());
  EXPECT_EQ(windows.EndStep(5)->split_peaks[1], 0);
}

TEST(LoadWindowsTest, NextWindowStartsEmpty) {
  LoadWindows windows(1, 1, 1, 0);
  ASSERT_TRUE(windows.Record(0, std::vector<int64_t>{kMax}).ok());
  ASSERT_TRUE(windows.EndStep(0).has_value());
  ASSERT_TRUE(windows.Record(0, std::vector<int64_t>{4}).ok());
  const std::optional<wire::LoadReport> window = windows.EndStep(1);
  EXPECT_EQ(window->first_step, 1);
  EXPECT_EQ(window->counts(0, 0), 4);
}

TEST(LoadWindowsTest, FirstWindowOfALateStartEndsWhereOthersEnd) {
  LoadWindows windows(1, 1, 50, 120);
  for (int64_t step = 120; step < 149; ++step) ASSERT_FALSE(windows.EndStep(step).has_value());
  const std::optional<wire::LoadReport> window = windows.EndStep(149);
  EXPECT_EQ(window->first_step, 120);
  EXPECT_EQ(window->last_step, 149);
}

// The windows of steps [0, num_steps) of a rank that hears of `pace` just before step `heard`.
std::vector<std::pair<int64_t, int64_t>> Ranges(int64_t num_steps, int64_t heard,
                                                const wire::SetReportInterval& pace) {
  LoadWindows windows(1, 1, 4, 0);
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t step = 0; step < num_steps; ++step) {
    if (step == heard) windows.SetReportInterval(pace);
    if (const auto window = windows.EndStep(step)) {
      ranges.emplace_back(window->first_step, window->last_step);
    }
  }
  return ranges;
}

TEST(LoadWindowsTest, RanksThatHearOfTheReportIntervalAtDifferentMomentsHaveTheSameWindows) {
  const wire::SetReportInterval pace{.report_every = 6, .from_step = 24};
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 3},   {4, 7},   {8, 11},  {12, 15},
                                                             {16, 19}, {20, 23}, {24, 29}, {30, 35},
                                                             {36, 41}, {42, 47}};
  for (int64_t heard = 0; heard < 24; ++heard)
    EXPECT_EQ(Ranges(48, heard, pace), expected) << heard;
}

TEST(LoadWindowsTest, ARankThatHearsOfTheReportIntervalTooLateIsAlignedAtTheNextCommonMultiple) {
  const auto ranges = Ranges(48, 25, {.report_every = 6, .from_step = 24});
  ASSERT_EQ(ranges.size(), 11u);
  EXPECT_EQ(ranges[6], std::pair(int64_t{24}, int64_t{27}));
  EXPECT_EQ(ranges[8], std::pair(int64_t{32}, int64_t{35}));
  EXPECT_EQ(ranges[9], std::pair(int64_t{36}, int64_t{41}));
}

TEST(LoadWindowsTest, TheIntervalInForceAndOneBelowOneChangeNothing) {
  LoadWindows windows(1, 1, 2, 0);
  windows.SetReportInterval({.report_every = 3, .from_step = 0});
  windows.SetReportInterval({.report_every = 2, .from_step = 0});  // taken back
  windows.SetReportInterval({.report_every = 0, .from_step = 0});
  for (int64_t step = 0; step < 12; ++step)
    EXPECT_EQ(windows.EndStep(step).has_value(), step % 2 == 1);
}

// Ends a step in which expert 0 got `tokens`.
std::optional<wire::LoadReport> Step(LoadWindows& windows, int64_t step, int64_t tokens) {
  EXPECT_TRUE(windows.Record(0, std::vector<int64_t>{tokens}).ok());
  return windows.EndStep(step);
}

TEST(LoadWindowsTest, AWindowTellsWhichPlacementsItsStepsRanUnder) {
  LoadWindows windows(1, 1, 4, 0, 3);
  EXPECT_FALSE(Step(windows, 0, 1));
  windows.Switched(0, 4);
  EXPECT_FALSE(Step(windows, 1, 10));
  EXPECT_FALSE(Step(windows, 2, 100));
  windows.Switched(2, 7);
  const std::optional<wire::LoadReport> window = Step(windows, 3, 1000);
  ASSERT_TRUE(window);
  EXPECT_EQ(window->counts(0, 0), 1111);
  EXPECT_EQ(window->version, 7);
  ASSERT_EQ(window->earlier.size(), 2u);
  EXPECT_EQ(window->earlier[0].last_step, 0);
  EXPECT_EQ(window->earlier[0].version, 3);
  EXPECT_EQ(window->earlier[0].counts(0, 0), 1);
  EXPECT_EQ(window->earlier[1].last_step, 2);
  EXPECT_EQ(window->earlier[1].version, 4);
  EXPECT_EQ(window->earlier[1].counts(0, 0), 110);
}

TEST(LoadWindowsTest, ASwitchBetweenTwoWindowsMakesNoPart) {
  LoadWindows windows(1, 1, 2, 0, 3);
  EXPECT_FALSE(Step(windows, 0, 1));
  const std::optional<wire::LoadReport> before = Step(windows, 1, 1);
  windows.Switched(1, 4);
  EXPECT_FALSE(Step(windows, 2, 1));
  const std::optional<wire::LoadReport> after = Step(windows, 3, 1);
  EXPECT_EQ(before->version, 3);
  EXPECT_EQ(after->version, 4);
  EXPECT_TRUE(before->earlier.empty());
  EXPECT_TRUE(after->earlier.empty());
}

TEST(LoadWindowsTest, OfTooManyPartsNoneIsToldAndTheNextWindowTellsAgain) {
  LoadWindows windows(1, 1, 100, 0, 0);
  for (int64_t step = 0; step < 99; ++step) {
    EXPECT_FALSE(Step(windows, step, 1));
    if (step <= wire::kMaxLoadParts) windows.Switched(step, step + 1);
  }
  const std::optional<wire::LoadReport> window = Step(windows, 99, 1);
  EXPECT_TRUE(window->parts_unknown);
  EXPECT_TRUE(window->earlier.empty());
  EXPECT_EQ(window->counts(0, 0), 100);
  for (int64_t step = 100; step < 199; ++step) EXPECT_FALSE(Step(windows, step, 1));
  windows.Switched(198, 60);
  const std::optional<wire::LoadReport> next = Step(windows, 199, 1);
  EXPECT_FALSE(next->parts_unknown);
  ASSERT_EQ(next->earlier.size(), 1u);
  EXPECT_EQ(next->earlier[0].version, wire::kMaxLoadParts + 1);
  EXPECT_EQ(next->earlier[0].counts(0, 0), 99);
}

// 640 layers x 1,024 experts: 2.5 MiB a part, and 5 MiB should the window need 8 bytes a count.
TEST(LoadWindowsTest, PartsAreBoundedInBytesToo) {
  LoadWindows windows(640, 1024, 3, 0, 0);
  EXPECT_FALSE(windows.EndStep(0));
  windows.Switched(0, 1);
  EXPECT_FALSE(windows.EndStep(1));
  windows.Switched(1, 2);
  const std::optional<wire::LoadReport> window = windows.EndStep(2);
  EXPECT_TRUE(window->parts_unknown);
  EXPECT_TRUE(window->earlier.empty());
}

TEST(LoadWindowsTest, BadCountsAreNamedAndNothingIsAdded) {
  LoadWindows windows(2, 2, 1, 0);
  ASSERT_TRUE(windows.Record(1, std::vector<int64_t>{5, 0}).ok());
  EXPECT_EQ(RecordError(windows, 2, {1, 1}), "counts of layer 2, expected 0..1");
  EXPECT_EQ(RecordError(windows, -1, {1, 1}), "counts of layer -1, expected 0..1");
  EXPECT_EQ(RecordError(windows, 0, {1}), "layer 0: 1 counts, the model has 2 experts");
  EXPECT_EQ(RecordError(windows, 1, {9, -3}), "layer 1 expert 1: count -3, expected >= 0");
  EXPECT_THAT(RecordError(windows, 1, {9, kMax - 13}), HasSubstr("layer 1 expert 1"));
  const LoadMatrix counts = windows.EndStep(0)->counts;
  EXPECT_EQ(counts(1, 0), 5);
  EXPECT_EQ(counts.sum(), 5);
}

TEST(LoadWindowsTest, LayerCanHoldExactlyTheLargestCount) {
  LoadWindows windows(1, 2, 1, 0);
  ASSERT_TRUE(windows.Record(0, std::vector<int64_t>{kMax - 1, 1}).ok());
  EXPECT_EQ(windows.EndStep(0)->counts(0, 0), kMax - 1);
}

TEST(WindowBufferTest, KeepsTheNewestStepsAndCountsTheRest) {
  WindowBuffer buffer(100);
  for (int64_t step = 0; step < 200; step += 50) buffer.Add(Window(step, step + 49));
  EXPECT_EQ(buffer.dropped_steps(), 100);
  const std::optional<wire::LoadReport> oldest = buffer.Take();
  EXPECT_EQ(oldest->first_step, 100);
  EXPECT_EQ(oldest->dropped_steps, 100);
  EXPECT_EQ(buffer.Take()->dropped_steps, 0);
  EXPECT_FALSE(buffer.Take().has_value());
  EXPECT_EQ(buffer.dropped_steps(), 100);
}

TEST(WindowBufferTest, NewestWindowStaysWhateverItsLength) {
  WindowBuffer buffer(10);
  buffer.Add(Window(0, 4));
  buffer.Add(Window(5, 99));
  EXPECT_EQ(buffer.dropped_steps(), 5);
  EXPECT_EQ(buffer.Take()->last_step, 99);
}

}  // namespace
}  // namespace eplb
