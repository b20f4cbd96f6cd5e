#include "tests/bench/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace eplb::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kExpertBytes = 44'040'192;

bool IsMet(const Target& target) { return VerdictOn(target) == Verdict::kOk; }

TEST(TargetsTest, ACopyAtLeastAsFastAs85PercentIsMet) {
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.176, 1.05), true), 0);
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.177, 1.05), true), 1);
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.176, 1.051), true), 1);
}

TEST(TargetsTest, OneRowAndSmallRowsHaveNoTarget) {
  EXPECT_THAT(CopyTargets(1, kExpertBytes, 9, 9), IsEmpty());
  EXPECT_THAT(CopyTargets(1024, 10'752, 9, 9), IsEmpty());
}

TEST(TargetsTest, AMillionPairsAreHeldToTheCopyAndFewerToATime) {
  const auto met = [](int64_t num_tokens, double memcpy_us, double fused_us) {
    const std::vector<Target> targets = RouteTargets({.num_tokens = num_tokens,
                                                      .top_k = 8,
                                                      .id_bytes = 4,
                                                      .memcpy_us = memcpy_us,
                                                      .fused_us = fused_us});
    EXPECT_THAT(targets, SizeIs(1));
    return IsMet(targets.front());
  };
  EXPECT_TRUE(met(131'072, 10, 12));
  EXPECT_FALSE(met(131'072, 10, 12.1));
  EXPECT_TRUE(met(4096, 1, 20));
  EXPECT_FALSE(met(4096, 100, 20.1));
}

TEST(TargetsTest, ASplitHasTwentyMicrosecondsOn32GpusAndFiftyOn64) {
  EXPECT_TRUE(IsMet(SplitTarget(32, 20)));
  EXPECT_FALSE(IsMet(SplitTarget(32, 20.1)));
  EXPECT_TRUE(IsMet(SplitTarget(64, 50)));
  EXPECT_FALSE(IsMet(SplitTarget(64, 50.1)));
}

TEST(TargetsTest, ALoopMayBeOnePercentSlower) {
  EXPECT_TRUE(IsMet(LoopTarget(-0.002)));
  EXPECT_TRUE(IsMet(LoopTarget(0.01)));
  EXPECT_FALSE(IsMet(LoopTarget(0.0101)));
}

TEST(TargetsTest, WhatIsNoNumberIsAMiss) {
  EXPECT_FALSE(IsMet(LoopTarget(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_FALSE(IsMet(LoopTarget(std::numeric_limits<double>::infinity())));
}

TEST(TargetsTest, WhatADeviceCannotReachIsAWarningUpToWhatASoundBuildReaches) {
  const auto verdict = [](const std::string& device, double fused_to_copy) {
    return VerdictOn(OnDevice(CopyTargets(32, kExpertBytes, 1, fused_to_copy), device)[1]);
  };
  EXPECT_EQ(verdict("NVIDIA H200", 1.05), Verdict::kOk);
  EXPECT_EQ(verdict("NVIDIA H200", 1.12), Verdict::kWarning);
  EXPECT_EQ(verdict("NVIDIA H200", 1.121), Verdict::kMissed);
  EXPECT_EQ(verdict("NVIDIA H100 80GB HBM3", 1.08), Verdict::kWarning);
  EXPECT_EQ(verdict("NVIDIA H100 80GB HBM3", 1.081), Verdict::kMissed);
  EXPECT_EQ(VerdictOn(CopyTargets(32, kExpertBytes, 1, 1.06)[1]), Verdict::kMissed);
}

TEST(TargetsTest, AFigureWithoutATolerationIsMissedOnAKnownDeviceAndAWarningOnAnother) {
  EXPECT_EQ(VerdictOn(OnDevice({SplitTarget(64, 51)}, "NVIDIA H200")[0]), Verdict::kMissed);
  EXPECT_EQ(VerdictOn(OnDevice({SplitTarget(64, 51)}, "NVIDIA A100-SXM4-80GB")[0]),
            Verdict::kWarning);
  const Target unknown =
      OnDevice({SplitTarget(64, std::numeric_limits<double>::quiet_NaN())}, "NVIDIA L40S")[0];
  EXPECT_EQ(VerdictOn(unknown), Verdict::kMissed);
}

TEST(TargetsTest, AWarningIsNoFailure) {
  const std::vector<Target> targets = OnDevice(CopyTargets(32, kExpertBytes, 1, 1.1), "H200");
  EXPECT_EQ(ExitCode(targets, true), 0);
  EXPECT_THAT(VerdictLine(targets[1]), HasSubstr("\"verdict\": \"WARNING\""));
}

TEST(TargetsTest, APlainRunNeverFails) {
  EXPECT_EQ(ExitCode({LoopTarget(1)}, false), 0);
  EXPECT_EQ(ExitCode({LoopTarget(0), LoopTarget(1)}, true), 1);
  EXPECT_EQ(ExitCode({}, true), 0);
}

TEST(TargetsTest, ALineShowsFigureTargetAndVerdict) {
  EXPECT_EQ(VerdictLine(LoopTarget(0.0123)),
            "{\"target\": \"training loop beside an idle client\", \"figure\": \"slowdown\", "
            "\"value\": 0.0123, \"at_most\": 0.0100, \"verdict\": \"MISSED\"}\n");
  EXPECT_THAT(VerdictLine(LoopTarget(0)), HasSubstr("\"verdict\": \"ok\""));
}

TEST(TargetsTest, OnlyCheckIsAnArgument) {
  const char* const plain[] = {"bench"};
  const char* const check[] = {"bench", "--check"};
  const char* const other[] = {"bench", "--chekc"};
  EXPECT_TRUE(ParseArguments(1, plain).usable && !ParseArguments(1, plain).check);
  EXPECT_TRUE(ParseArguments(2, check).usable && ParseArguments(2, check).check);
  EXPECT_FALSE(ParseArguments(2, other).usable);
}

}  // namespace
}  // namespace eplb::bench
