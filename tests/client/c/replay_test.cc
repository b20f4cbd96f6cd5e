// Replays of recorded loads by the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "client/c/eplb_plan.h"

namespace eplb::c {

namespace {

using ::testing::HasSubstr;

constexpr int32_t kExperts = 4;

// Windows of one layer whose experts 0 and 1 get most tokens.
constexpr int64_t kThreeWindows[] = {60, 60, 20, 20, 60, 60, 20, 20, 60, 60, 20, 20};

std::vector<int64_t> ThreeWindows() { return {std::begin(kThreeWindows), std::end(kThreeWindows)}; }

eplb_replay_options Options() {
  eplb_replay_options options;
  EXPECT_EQ(eplb_replay_options_init(&options, sizeof(options)), EPLB_OK);
  options.num_windows = 3;
  options.num_layers = 1;
  options.num_experts = kExperts;
  options.num_slots = 4;
  options.num_gpus = 2;
  return options;
}

eplb_replay_figures FiguresOf(const eplb_replay_options& options) {
  eplb_replay_figures figures = {};
  figures.struct_size = sizeof(figures);
  EXPECT_EQ(eplb_replay(&options, kThreeWindows, &figures), EPLB_OK) << eplb_last_message();
  return figures;
}

TEST(CReplayTest, TheFirstWindowRunsWithoutADecision) {
  const eplb_replay_figures figures = FiguresOf(Options());
  EXPECT_DOUBLE_EQ(figures.balancedness_without_eplb, 80.0 / 120);
  EXPECT_DOUBLE_EQ(figures.seconds_without_eplb, 3 * 120 * 176e-9);
  EXPECT_GT(figures.balancedness, figures.balancedness_without_eplb);
  EXPECT_GE(figures.rebalances, 1);
  EXPECT_GT(figures.seconds_saved, 0);
  EXPECT_EQ(figures.seconds_spent, 0) << "moves have no price";
}

TEST(CReplayTest, WindowsWithoutTokensHaveNoFigure) {
  const std::vector<int64_t> none(std::size(kThreeWindows));
  eplb_replay_figures figures = {};
  figures.struct_size = sizeof(figures);
  const eplb_replay_options options = Options();
  ASSERT_EQ(eplb_replay(&options, none.data(), &figures), EPLB_OK);
  EXPECT_TRUE(std::isnan(figures.balancedness));
  EXPECT_TRUE(std::isnan(figures.balancedness_without_eplb));
}

TEST(CReplayTest, MistakesAreNamed) {
  const auto refusal = [](void (*change)(eplb_replay_options&),
                          std::vector<int64_t> counts = ThreeWindows()) {
    eplb_replay_options options = Options();
    change(options);
    eplb_replay_figures figures = {};
    figures.struct_size = sizeof(figures);
    EXPECT_EQ(eplb_replay(&options, counts.data(), &figures), EPLB_INVALID_ARGUMENT);
    return std::string(eplb_last_message());
  };
  EXPECT_THAT(refusal([](auto& options) { options.split = "some"; }), HasSubstr("split: \"some\""));
  EXPECT_THAT(refusal([](auto& options) { options.policy = "best"; }), HasSubstr("best"));
  EXPECT_THAT(refusal([](auto& options) { options.min_gain = 2; }), HasSubstr("min_gain: 2"));
  EXPECT_THAT(refusal([](auto& options) { options.token_ns = NAN; }), HasSubstr("token_ns: nan"));
  EXPECT_THAT(refusal([](auto& options) { options.expert_bytes = -1; }), HasSubstr("expert_bytes"));
  EXPECT_THAT(refusal([](auto& options) { options.steps_of_window = 0; }), HasSubstr("steps_of_w"));
  EXPECT_THAT(refusal([](auto& options) { options.num_windows = 0; }), HasSubstr("num_windows 0"));
  EXPECT_THAT(refusal([](auto& options) { options.num_gpus = 0; }), HasSubstr("num_gpus"));
  EXPECT_THAT(refusal([](auto& options) { options.every = 0; }), HasSubstr("every"));
  EXPECT_THAT(refusal([](auto& options) { options.reserved = 7; }), HasSubstr("reserved is not 0"));
  EXPECT_THAT(refusal([](auto& options) {
                options.policy = "best";
                options.num_windows = 1;  // nothing is decided
              }),
              HasSubstr("best"));
  std::vector<int64_t> negative = ThreeWindows();
  negative[5] = -1;
  EXPECT_THAT(refusal([](auto&) {}, negative), HasSubstr("window 1: "));
  const eplb_replay_options options = Options();
  EXPECT_EQ(eplb_replay(&options, kThreeWindows, nullptr), EPLB_INVALID_ARGUMENT);
  eplb_replay_figures figures = {};
  figures.struct_size = sizeof(figures);
  EXPECT_EQ(eplb_replay(&options, nullptr, &figures), EPLB_INVALID_ARGUMENT);
}

}  // namespace

}  // namespace eplb::c
