#include "tests/bench/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace eplb::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kExpertBytes = 44'040'192;

bool IsMet(const Target& target) { return VerdictOn(target) == Verdict::kOk; }

TEST(TargetsTest, ACopyAtLeastAsFastAs85PercentIsMet) {
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.176, 1.05), true), 0);
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.177, 1.05), true), 1);
  EXPECT_EQ(ExitCode(CopyTargets(32, kExpertBytes, 1.176, 1.051), true), 1);
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
  EXPECT_EQ(VerdictOn(OnDevice(SplitTargets(64, 0, 30, 91), "NVIDIA H200")[1]), Verdict::kMissed);
  EXPECT_EQ(VerdictOn(OnDevice(SplitTargets(64, 0, 30, 91), "NVIDIA A100-SXM4-80GB")[1]),
            Verdict::kWarning);
  const Target unknown =
      OnDevice(SplitTargets(64, 0, std::numeric_limits<double>::quiet_NaN(), 0), "NVIDIA L40S")[0];
  EXPECT_EQ(VerdictOn(unknown), Verdict::kMissed);
}

TEST(TargetsTest, AWarningIsNoFailure) {
  const std::vector<Target> targets = OnDevice(CopyTargets(32, kExpertBytes, 1, 1.1), "H200");
  EXPECT_EQ(ExitCode(targets, true), 0);
  EXPECT_THAT(VerdictLine(targets[1]), HasSubstr("\"verdict\": \"WARNING\""));
}

}  // namespace
}  // namespace eplb::bench
