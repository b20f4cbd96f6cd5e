#include "placement/backtest/load_forecast.h"

#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

Load Counts(const std::vector<std::vector<int64_t>>& layers) {
  LoadMatrix counts(std::ssize(layers), std::ssize(layers[0]));
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
    const std::vector<int64_t>& row = layers[static_cast<size_t>(layer)];
    counts.row(layer) = Eigen::Map<const LoadMatrix>(row.data(), 1, counts.cols());
  }
  return Load::FromCounts(counts).value();
}

// Two experts, of which the first has such parts of 10,000 tokens.
std::vector<Load> WindowsOf(const std::vector<double>& shares) {
  std::vector<Load> windows;
  for (const double share : shares) {
    const auto first = static_cast<int64_t>(10'000 * share + 0.5);
    windows.push_back(Counts({{first, 10'000 - first}}));
  }
  return windows;
}

double FirstOf(const absl::StatusOr<Load>& forecast) {
  EXPECT_EQ(forecast->counts().sum(), 10'000);
  return static_cast<double>(forecast->counts()(0, 0)) / 10'000;
}

TEST(LoadForecastTest, ATrendGoesOnWithThreeFifthsOfItsNewestChange) {
  EXPECT_DOUBLE_EQ(FirstOf(ForecastTrend(WindowsOf({0.9, 0.2, 0.3}))), 0.36);
  EXPECT_DOUBLE_EQ(FirstOf(ForecastTrend(WindowsOf({0.6, 0.1}))), 0) << "no load is below 0";
  EXPECT_DOUBLE_EQ(FirstOf(ForecastTrend(WindowsOf({0.6}))), 0.6);
}

TEST(LoadForecastTest, SharesAreForecastWhateverTheWindowsHaveOfTokens) {
  const std::vector<Load> windows = {Counts({{20, 80}, {0, 0}}), Counts({{300, 700}, {1, 3}})};
  EXPECT_EQ(ForecastTrend(windows).value(), Counts({{360, 640}, {1, 3}}));
  EXPECT_EQ(ForecastFiltered(windows).value(), windows[1]);
}

TEST(LoadForecastTest, ChangesThatGoOnAreNoNoise) {
  EXPECT_DOUBLE_EQ(FirstOf(ForecastFiltered(WindowsOf({0.1, 0.2, 0.3, 0.4}))), 0.4);
  EXPECT_DOUBLE_EQ(FirstOf(ForecastFiltered(WindowsOf({0.3, 0.3, 0.3}))), 0.3);
}

// Every change is undone by the next, so that all is noise: the mean of the roots of the shares.
TEST(LoadForecastTest, ChangesThatUndoEachOtherAreFilteredAway) {
  EXPECT_NEAR(FirstOf(ForecastFiltered(WindowsOf({0.4, 0.6, 0.4, 0.6}))), 0.5, 1e-4);
  EXPECT_NEAR(FirstOf(ForecastFiltered(WindowsOf({0.36, 0.64, 0.36, 0.64, 0.36, 0.64}))), 0.5,
              1e-4);
}

TEST(LoadForecastTest, EveryLayerHasItsOwnDriftAndNoise) {
  std::vector<Load> windows;
  for (const int64_t t : {0, 1, 2, 3}) {
    windows.push_back(
        Counts({{100 + 100 * t, 900 - 100 * t}, {t % 2 == 0 ? 400 : 600, t % 2 == 0 ? 600 : 400}}));
  }
  EXPECT_EQ(ForecastFiltered(windows).value(), Counts({{400, 600}, {500, 500}}));
}

}  // namespace
}  // namespace eplb
