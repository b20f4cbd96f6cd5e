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

TEST(TargetsTest, SmallAndLargeBatchesOfIdsOf4BytesAreHeldToTimes) {
  const auto met = [](const std::vector<Target>& targets) {
    EXPECT_THAT(targets, SizeIs(1));
    return IsMet(targets.front());
  };
  EXPECT_TRUE(met(RouteTargets(4096, 8, 4, 3)));
  EXPECT_FALSE(met(RouteTargets(4096, 8, 4, 3.1)));
  EXPECT_TRUE(met(RouteTargets(131'072, 8, 4, 4.5)));
  EXPECT_FALSE(met(RouteTargets(131'072, 8, 4, 4.6)));
  EXPECT_TRUE(met(QuotaRouteTargets(4096, 8, 4, 6)));
  EXPECT_FALSE(met(QuotaRouteTargets(4096, 8, 4, 6.1)));
  EXPECT_TRUE(met(QuotaRouteTargets(131'072, 8, 4, 15)));
  EXPECT_FALSE(met(QuotaRouteTargets(131'072, 8, 4, 15.1)));
  EXPECT_THAT(RouteTargets(131'072, 8, 8, 4), SizeIs(0));
  EXPECT_THAT(QuotaRouteTargets(16'384, 8, 4, 4), SizeIs(0));
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
