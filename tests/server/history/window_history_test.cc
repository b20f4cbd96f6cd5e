#include "server/history/window_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TopologyOptions kShape = {
    .num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = 2};
// 2 layers * (4 experts + 2 GPUs) * 8 B.
constexpr int64_t kBytes = int64_t{2} * (4 + 2) * 8;

// Loads 4 3 2 1 in both layers: on the static layout GPU 0 has 7 tokens and GPU 1 has 3.
core::PastWindow WindowAt(int64_t first_step, std::string run_id = "run") {
  LoadMatrix counts(2, 4);
  counts << 4, 3, 2, 1, 4, 3, 2, 1;
  RealMatrix on_gpus(2, 2);
  on_gpus << 6, 4, 6, 4;
  return {.run_id = std::move(run_id),
          .shape = kShape,
          .first_step = first_step,
          .last_step = first_step + 9,
          .coverage = 0.75,
          .step_seconds = 0.5,
          .load = std::make_shared<const Load>(*Load::FromCounts(counts)),
          .on_gpus = std::make_shared<const core::GpuTokens>(
              core::GpuTokens{.loads = on_gpus, .versions = {3, 4}})};
}

core::Measured MeasuredOf(SplitMode split) {
  return {.versions = {3, 4},
          .split = split,
          .balancedness = split == SplitMode::kBatch ? 0.95 : 5.0 / 6,
          .balancedness_static = 5.0 / 7,
          .balancedness_without_eplb = 0.6};
}

// Adds a window of steps 0..9 for each job.
void Fill(WindowHistory& history, const std::vector<std::string>& jobs) {
  for (const std::string& job : jobs) history.Add(job, WindowAt(0), absl::UnixEpoch());
}

std::vector<int64_t> NumbersOf(const std::vector<v1::Window>& windows) {
  std::vector<int64_t> numbers;
  numbers.reserve(windows.size());
  for (const v1::Window& one : windows) numbers.push_back(static_cast<int64_t>(one.window()));
  return numbers;
}

std::vector<bool> Held(const WindowHistory& history, const std::string& job) {
  std::vector<bool> held;
  for (const v1::Window& one : history.Figures(job, 0, 100)) held.push_back(one.has_loads());
  return held;
}

TEST(WindowHistoryTest, ARestoredHistoryGoesOnAboveItsNumbersAndHasNoLoads) {
  WindowHistory before({});
  before.Add("a", WindowAt(0), absl::UnixEpoch());
  before.Add("b", WindowAt(0), absl::UnixEpoch());
  before.Add("a", WindowAt(10), absl::UnixEpoch());
  std::vector<StoredWindow> unsaved = before.Unsaved(2);
  ASSERT_EQ(unsaved.size(), 2u) << "the oldest first";
  before.NoteSaved(static_cast<int64_t>(unsaved.back().figures.window()));
  unsaved.push_back(before.Unsaved(2).front());
  before.NoteSaved(static_cast<int64_t>(unsaved.back().figures.window()));
  EXPECT_THAT(before.Unsaved(2), IsEmpty());

  WindowHistory after({});
  after.Restore(unsaved);
  EXPECT_THAT(after.Unsaved(9), IsEmpty());
  EXPECT_THAT(NumbersOf(after.Figures("a", 0, 9)), ElementsAre(1, 3));
  EXPECT_THAT(Held(after, "a"), ElementsAre(false, false));
  EXPECT_THAT(after.Loads("a", std::nullopt).status().message(),
              HasSubstr("no complete window since the daemon started"));
  EXPECT_THAT(after.Loads("a", 3).status().message(), HasSubstr("those since its start"));
  after.Add("a", WindowAt(70), absl::UnixEpoch());
  EXPECT_THAT(NumbersOf(after.Figures("a", 0, 9)), ElementsAre(1, 3, 4));
  EXPECT_THAT(Held(after, "a"), ElementsAre(false, false, true));
  EXPECT_EQ(after.Unsaved(9).front().figures.window(), 4);
  EXPECT_EQ(after.load_bytes(), kBytes);
}

TEST(WindowHistoryTest, ARestoredHistoryKeepsToTheLimits) {
  std::vector<StoredWindow> stored;
  for (int64_t number = 1; number <= 9; ++number) {
    stored.push_back({.job = number % 3 == 0 ? "b" : "a", .figures = {}});
    stored.back().figures.set_window(static_cast<uint64_t>(number));
  }
  WindowHistory history({.max_windows = 4, .max_windows_of_all = 6});
  history.Restore(stored);
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 9)), ElementsAre(4, 5, 7, 8));
  EXPECT_THAT(NumbersOf(history.Figures("b", 0, 9)), ElementsAre(6, 9));
}

TEST(WindowHistoryTest, AWindowComesBackWithItsFigures) {
  WindowHistory history({});
  core::PastWindow window = WindowAt(10);
  window.measured = MeasuredOf(SplitMode::kEqual);
  history.Add("a", window, absl::FromUnixSeconds(1000));
  const std::vector<v1::Window> windows = history.Figures("a", 0, 9);
  ASSERT_EQ(windows.size(), 1);
  const v1::Window& one = windows.front();
  EXPECT_EQ(one.window(), 1);
  EXPECT_EQ(one.completed_unix_micros(), 1'000'000'000);
  EXPECT_EQ(one.run_id(), "run");
  EXPECT_EQ(one.first_step(), 10);
  EXPECT_EQ(one.last_step(), 19);
  EXPECT_THAT(one.versions(), ElementsAre(3, 4));
  EXPECT_EQ(one.coverage(), 0.75);
  EXPECT_EQ(one.step_seconds(), 0.5);
  EXPECT_EQ(one.tokens(), 20);
  EXPECT_EQ(one.split(), "equal");
  EXPECT_EQ(one.balancedness(), 5.0 / 6);
  EXPECT_EQ(one.balancedness_equal(), one.balancedness());
  EXPECT_EQ(one.balancedness_static(), 5.0 / 7);
  EXPECT_EQ(one.balancedness_without_eplb(), 0.6);
  EXPECT_TRUE(one.has_loads());
}

TEST(WindowHistoryTest, WithExactSplitsTheFiguresOfEqualSharesAreComputed) {
  WindowHistory history({});
  core::PastWindow window = WindowAt(10);
  window.split = SplitMode::kBatch;
  window.measured = MeasuredOf(SplitMode::kBatch);
  history.Add("a", window, absl::UnixEpoch());
  const v1::Window one = history.Figures("a", 0, 1).front();
  EXPECT_EQ(one.split(), "batch");
  EXPECT_EQ(one.balancedness(), 0.95);
  EXPECT_DOUBLE_EQ(one.balancedness_equal(), 5.0 / 6);
}

TEST(WindowHistoryTest, WhatCouldNotBeMeasuredHasNoBalancedness) {
  WindowHistory history({});
  core::PastWindow window = WindowAt(10);
  window.on_gpus = nullptr;
  history.Add("a", window, absl::UnixEpoch());
  const v1::Window one = history.Figures("a", 0, 1).front();
  EXPECT_THAT(one.versions(), IsEmpty());
  EXPECT_FALSE(one.has_balancedness() || one.has_balancedness_equal() ||
               one.has_balancedness_static());
  const WindowLoads loads = *history.Loads("a", std::nullopt);
  EXPECT_EQ(loads.on_gpus, nullptr);
  EXPECT_EQ(loads.on_gpus_static(0, 0), 7);
}

TEST(WindowHistoryTest, LoadsComeWithThoseOfTheStaticLayout) {
  WindowHistory history({});
  history.Add("a", WindowAt(10), absl::UnixEpoch());
  history.Add("a", WindowAt(20), absl::UnixEpoch());
  const WindowLoads first = *history.Loads("a", 1);
  EXPECT_EQ(first.figures.first_step(), 10);
  EXPECT_EQ(first.load->counts()(1, 2), 2);
  EXPECT_EQ(first.on_gpus->loads(0, 0), 6);
  EXPECT_EQ(first.on_gpus_static.rows(), 2);
  EXPECT_EQ(first.on_gpus_static(1, 0), 7);
  EXPECT_EQ(first.on_gpus_static(1, 1), 3);
  EXPECT_EQ(history.Loads("a", std::nullopt)->figures.window(), 2) << "none is the newest";
}

TEST(WindowHistoryTest, NumbersRiseOverAllJobsAndReadingOnMissesNone) {
  WindowHistory history({});
  Fill(history, {"a", "b", "a", "a", "b"});
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 9)), ElementsAre(1, 3, 4));
  EXPECT_THAT(NumbersOf(history.Figures("b", 0, 9)), ElementsAre(2, 5));
  EXPECT_THAT(NumbersOf(history.Figures("a", 1, 9)), ElementsAre(3, 4));
  EXPECT_THAT(NumbersOf(history.Figures("a", 2, 9)), ElementsAre(3, 4));
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 2)), ElementsAre(3, 4)) << "the newest";
  EXPECT_THAT(history.Figures("a", 4, 9), IsEmpty());
  EXPECT_THAT(history.Figures("a", std::numeric_limits<int64_t>::max(), 9), IsEmpty());
  EXPECT_THAT(history.Figures("a", 0, 0), IsEmpty());
  EXPECT_THAT(history.Figures("a", 0, -1), IsEmpty());
  EXPECT_THAT(history.Figures("c", 0, 9), IsEmpty());
}

TEST(WindowHistoryTest, WindowsOfAnEarlierRunStayWithItsIdAndShape) {
  WindowHistory history({});
  history.Add("a", WindowAt(10, "first"), absl::UnixEpoch());
  core::PastWindow smaller = WindowAt(0, "second");
  smaller.shape.num_gpus = 1;
  smaller.on_gpus = nullptr;
  history.Add("a", smaller, absl::UnixEpoch());
  const std::vector<v1::Window> windows = history.Figures("a", 0, 9);
  EXPECT_EQ(windows.at(0).run_id(), "first");
  EXPECT_EQ(windows.at(1).run_id(), "second");
  EXPECT_EQ(windows.at(1).first_step(), 0) << "steps may begin again";
  EXPECT_EQ(history.Loads("a", 1)->on_gpus_static.cols(), 2);
  EXPECT_EQ(history.Loads("a", 2)->on_gpus_static.cols(), 1);
}

TEST(WindowHistoryTest, TheOldestLoadsOfAllJobsGoFirstAndTheirFiguresStay) {
  WindowHistory history({.max_load_bytes = 3 * kBytes});
  Fill(history, {"a", "b", "a", "b"});
  EXPECT_EQ(history.load_bytes(), 3 * kBytes);
  EXPECT_THAT(Held(history, "a"), ElementsAre(false, true));
  EXPECT_THAT(Held(history, "b"), ElementsAre(true, true));
  const absl::Status gone = history.Loads("a", 1).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("the loads of window 1 of job a are not kept any more"));
  history.Add("b", WindowAt(0), absl::UnixEpoch());
  EXPECT_THAT(Held(history, "b"), ElementsAre(false, true, true));
  EXPECT_EQ(history.load_bytes(), 3 * kBytes);
}

TEST(WindowHistoryTest, TheNewestWindowOfEachJobKeepsItsLoadsWhateverTheBoundIs) {
  WindowHistory history({.max_load_bytes = 1});
  Fill(history, {"a", "b", "a"});
  EXPECT_THAT(Held(history, "a"), ElementsAre(false, true));
  EXPECT_THAT(Held(history, "b"), ElementsAre(true));
  EXPECT_EQ(history.load_bytes(), 2 * kBytes);
  EXPECT_TRUE(history.Loads("a", std::nullopt).ok());
}

TEST(WindowHistoryTest, AJobKeepsItsNewestWindows) {
  WindowHistory history({.max_windows = 3});
  for (int64_t step = 0; step < 5; ++step) {
    history.Add("a", WindowAt(step), absl::UnixEpoch());
  }
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 9)), ElementsAre(3, 4, 5));
  EXPECT_EQ(history.load_bytes(), 3 * kBytes) << "what is dropped is no longer counted";
  const absl::Status gone = history.Loads("a", 2).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("job a has no window 2; those that are kept are within 3..5"));
  EXPECT_EQ(history.Loads("a", 6).status().code(), absl::StatusCode::kNotFound);
}

TEST(WindowHistoryTest, FiguresOfAllJobsAreBoundedAndEachJobKeepsItsNewest) {
  WindowHistory history({.max_windows_of_all = 3});
  Fill(history, {"a", "b", "a", "a", "c", "a"});
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 9)), ElementsAre(6));
  EXPECT_THAT(NumbersOf(history.Figures("b", 0, 9)), ElementsAre(2));
  EXPECT_THAT(NumbersOf(history.Figures("c", 0, 9)), ElementsAre(5));
  EXPECT_EQ(history.load_bytes(), 3 * kBytes);
}

TEST(WindowHistoryTest, AForgottenJobLeavesNothing) {
  WindowHistory history({});
  history.Add("a", WindowAt(0), absl::UnixEpoch());
  history.Add("a", WindowAt(10), absl::UnixEpoch());
  history.Add("b", WindowAt(0), absl::UnixEpoch());
  history.Forget("a");
  history.Forget("nobody");
  EXPECT_EQ(history.load_bytes(), kBytes);
  EXPECT_THAT(history.Figures("a", 0, 9), IsEmpty());
  const absl::Status none = history.Loads("a", std::nullopt).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("has no complete window since the daemon"));
  history.Add("a", WindowAt(0), absl::UnixEpoch());
  EXPECT_THAT(NumbersOf(history.Figures("a", 0, 9)), ElementsAre(4)) << "no number comes again";
}

// A layer's sum fits an int64; that of two layers need not.
TEST(WindowHistoryTest, TokensAboveTheLargestNumberAreThatNumber) {
  WindowHistory history({});
  core::PastWindow window = WindowAt(0);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  window.load =
      std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Constant(2, 4, kMost / 4)));
  history.Add("a", window, absl::UnixEpoch());
  EXPECT_EQ(history.Figures("a", 0, 1).front().tokens(), kMost);
}

TEST(WindowHistoryTest, ReadersAndTheWriterMayBeThreads) {
  WindowHistory history({.max_load_bytes = 4 * kBytes, .max_windows = 8});
  std::thread writer([&history] {
    for (int64_t i = 0; i < 200; ++i) {
      history.Add(i % 2 == 0 ? "a" : "b", WindowAt(i), absl::UnixEpoch());
      if (i % 50 == 49) history.Forget("b");
    }
  });
  for (int i = 0; i < 200; ++i) {
    const std::vector<v1::Window> windows = history.Figures("a", 0, 100);
    EXPECT_LE(windows.size(), 8);
    if (!windows.empty()) {
      EXPECT_TRUE(history.Loads("a", std::nullopt).ok());
    }
    (void)history.Loads("b", std::nullopt);
  }
  writer.join();
  EXPECT_LE(history.load_bytes(), 4 * kBytes);
}

}  // namespace
}  // namespace eplb
