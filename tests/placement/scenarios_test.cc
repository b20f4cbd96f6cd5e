#include "placement/scenarios.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace eplb {
namespace {

using ::testing::HasSubstr;

Load OfRows(std::initializer_list<std::initializer_list<int64_t>> rows) {
  LoadMatrix counts(static_cast<Eigen::Index>(rows.size()),
                    static_cast<Eigen::Index>(rows.begin()->size()));
  Eigen::Index layer = 0;
  for (const auto& row : rows) {
    Eigen::Index expert = 0;
    for (const int64_t tokens : row) counts(layer, expert++) = tokens;
    ++layer;
  }
  return *Load::FromCounts(counts);
}

std::string MessageOf(const std::vector<Scenario>& scenarios) {
  return std::string(CheckScenarios(scenarios).message());
}

TEST(ScenariosTest, OneToSixtyFourScenariosAreAccepted) {
  const Scenario one = {.load = OfRows({{1, 0}})};
  EXPECT_EQ(MessageOf({one}), "");
  EXPECT_EQ(MessageOf(std::vector<Scenario>(kMaxScenarios, one)), "");
  EXPECT_EQ(MessageOf({}), "0 scenarios, expected 1..64");
  EXPECT_EQ(MessageOf(std::vector<Scenario>(kMaxScenarios + 1, one)),
            "65 scenarios, expected 1..64");
}

TEST(ScenariosTest, MessagesNameTheScenario) {
  const Scenario good = {.load = OfRows({{1, 2}, {3, 4}})};
  EXPECT_EQ(MessageOf({good, {.load = OfRows({{1, 2}})}}),
            "scenario 1 has 1 layers of 2 experts, scenario 0 has 2 of 2");
  EXPECT_EQ(MessageOf({good, good, {.load = OfRows({{1, 2, 3}, {1, 2, 3}})}}),
            "scenario 2 has 2 layers of 3 experts, scenario 0 has 2 of 2");
  EXPECT_EQ(MessageOf({good, {.load = OfRows({{0, 0}, {0, 0}})}}), "scenario 1 has no tokens");
  EXPECT_EQ(MessageOf({{.load = good.load, .weight = 0}}),
            "scenario 0 has the weight 0, expected 1e-9..1e9");
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(MessageOf({good, {.load = good.load, .weight = weight}}),
                HasSubstr("scenario 1 has the weight "));
  }
}

TEST(ScenariosTest, TheMeanGivesEachScenarioItsWeightInEveryLayer) {
  // Scenario 1 has four times the tokens, which changes nothing, and none in layer 1.
  const std::vector<Scenario> scenarios = {
      {.load = OfRows({{3, 1}, {1, 3}, {0, 0}})},
      {.load = OfRows({{0, 16}, {0, 0}, {0, 0}}), .weight = 3}};
  RealMatrix expected(3, 2);
  expected << 0.75 / 4, (0.25 + 3) / 4,  //
      0.25, 0.75,                        //
      0, 0;
  EXPECT_TRUE(MeanOfScenarios(scenarios).ToDouble().isApprox(expected, 1e-15))
      << MeanOfScenarios(scenarios).ToDouble();
}

}  // namespace
}  // namespace eplb
