#include "placement/load_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/placement/backtest/loads.h"

namespace eplb {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

void Add(LoadHistory& history, const SeenWindow& window) {
  history.Add(window.load, static_cast<double>(window.num_steps));
}

std::vector<double> WindowsOf(const LoadHistory& history) {
  std::vector<double> windows;
  for (const TypicalLoad& one : history.loads()) windows.push_back(one.num_windows);
  return windows;
}

TEST(LoadHistoryTest, TheMostSimilarLoadsBecomeTheirMean) {
  LoadHistory history;
  for (int32_t i = 0; i < 6; ++i) Add(history, HotWindow(2 * i));
  ASSERT_EQ(history.loads().size(), kMaxTypicalLoads);
  const TypicalLoad before = history.loads()[1];
  EXPECT_EQ(*before.load, *HotWindow(2).load);
  SeenWindow again = HotWindow(2);
  again.num_steps = 30;
  LoadMatrix counts = again.load->counts();
  counts(1, 5) += 20;
  again.load = std::make_shared<const Load>(Load::FromCounts(counts).value());
  Add(history, again);
  ASSERT_EQ(history.loads().size(), kMaxTypicalLoads);
  const TypicalLoad& mean = history.loads()[1];
  EXPECT_THAT(mean.num_windows, DoubleNear(2, 0.05));
  EXPECT_THAT(mean.num_steps, DoubleNear(20, 0.2));
  EXPECT_THAT(mean.load->ToDouble()(1, 5), DoubleNear(before.load->ToDouble()(1, 5) + 10, 0.2));
  EXPECT_EQ(mean.load->ToDouble()(0, 0), 100) << "equal in both";
  EXPECT_EQ(*history.loads()[2].load, *HotWindow(4).load) << "others stay as they are";
}

TEST(LoadHistoryTest, LoadsThatTakeTurnsStayApartHoweverLongTheirTurns) {
  LoadHistory history;
  for (int turn = 0; turn < 6; ++turn) {
    for (int window = 0; window < 40; ++window) Add(history, HotWindow(turn % 2 == 0 ? 0 : 8));
  }
  ASSERT_EQ(history.loads().size(), kMaxTypicalLoads);
  double first = 0;
  double second = 0;
  for (const TypicalLoad& one : history.loads()) {
    const RealMatrix tokens = one.load->ToDouble();
    EXPECT_TRUE(tokens(0, 0) == 100 || tokens(0, 8) == 100) << "no mean of both";
    (tokens(0, 0) > 100 ? first : second) += one.num_windows;
  }
  EXPECT_GT(first, 40);
  EXPECT_GT(second, first) << "the newer turns count more";
}

TEST(LoadHistoryTest, WeightHalvesWith128WindowsAndAnOutlierIsForgotten) {
  LoadHistory history;
  for (int i = 0; i < 20; ++i) Add(history, HotWindow(0));
  Add(history, HotWindow(4));
  const auto has = [&history](int32_t cold) {
    return std::ranges::any_of(history.loads(), [cold](const TypicalLoad& one) {
      return one.load->ToDouble()(0, cold) == 100 && one.load->ToDouble()(0, cold + 4) > 100;
    });
  };
  for (int i = 0; i < 15; ++i) Add(history, HotWindow(8));
  EXPECT_TRUE(has(0)) << "15 windows ago";
  for (int i = 0; i < 6; ++i) Add(history, HotWindow(8));
  EXPECT_FALSE(has(0)) << "of the newest 16 none is like it";
  double windows = 0;
  for (const TypicalLoad& one : history.loads()) {
    if (one.load->ToDouble()(0, 0) > 100) windows += one.num_windows;
  }
  EXPECT_THAT(windows, DoubleNear(19 * std::exp2(-32 / 128.0), 4)) << "20 windows stay";
}

TEST(LoadHistoryTest, AStartThatDoesNotReturnLeavesRoomForLoadsThatDo) {
  LoadHistory history;
  for (int32_t i = 0; i < 6; ++i) {  // far from each other and from what follows
    LoadMatrix counts = LoadMatrix::Constant(2, 16, 1);
    counts.col(i) = 100'000;
    Add(history, {std::make_shared<const Load>(Load::FromCounts(counts).value())});
  }
  for (int window = 0; window < 120; ++window) Add(history, HotWindow(window / 4 % 2 * 8));
  double apart = 0;
  for (const TypicalLoad& one : history.loads()) {
    const RealMatrix tokens = one.load->ToDouble();
    if (tokens(0, 0) == 100 || tokens(0, 8) == 100) apart += one.num_windows;
  }
  EXPECT_GT(apart, 50) << "no mean of both";
}

TEST(LoadHistoryTest, AnotherShapeBeginsAnewAndAWindowWithoutTokensIsIgnored) {
  LoadHistory history;
  Add(history, HotWindow(0));
  Add(history, {std::make_shared<const Load>(Load::FromCounts(LoadMatrix::Zero(2, 16)).value())});
  EXPECT_THAT(WindowsOf(history), ElementsAre(1));
  Add(history, HotWindow(0, 3));
  ASSERT_EQ(history.loads().size(), 1u);
  EXPECT_EQ(history.loads().front().load->num_layers(), 3);
}

TEST(LoadHistoryTest, GoesOnFromItsLoads) {
  LoadHistory history;
  for (int32_t i = 0; i < 9; ++i) Add(history, HotWindow(i));
  LoadHistory other({history.loads().begin(), history.loads().end()});
  Add(history, HotWindow(3));
  Add(other, HotWindow(3));
  EXPECT_EQ(WindowsOf(other), WindowsOf(history));
}

}  // namespace
}  // namespace eplb
