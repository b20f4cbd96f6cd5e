#include "placement/gpu_speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace eplb {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(int32_t num_gpus, std::vector<double> speeds, std::vector<int32_t> unusable) {
  return std::string(GpuSpeeds::Make(num_gpus, speeds, unusable).status().message());
}

TEST(GpuSpeedsTest, WithoutSpeedsAllAreEqual) {
  const auto speeds = GpuSpeeds::Make(3, {}, {});
  ASSERT_TRUE(speeds.ok());
  EXPECT_EQ(*speeds, GpuSpeeds::Equal(3));
  EXPECT_TRUE(speeds->all_equal());
  EXPECT_EQ(speeds->total(), 3);
}

TEST(GpuSpeedsTest, AnUnusableGpuHasNoSpeedAndIsNotCounted) {
  const double given[] = {1, 2, 0.5};
  const int32_t unusable[] = {1};
  const auto speeds = GpuSpeeds::Make(3, given, unusable);
  ASSERT_TRUE(speeds.ok());
  EXPECT_FALSE(speeds->all_equal());
  EXPECT_EQ(speeds->num_usable(), 2);
  EXPECT_EQ(speeds->total(), 1.5);
  EXPECT_FALSE(speeds->Usable(GpuId{1}));
  EXPECT_EQ(speeds->SpeedOf(GpuId{2}), 0.5);
}

TEST(GpuSpeedsTest, BadNumbersAreNamed) {
  EXPECT_THAT(ErrorOf(3, {1, 1}, {}), HasSubstr("2 GPU speeds for 3 GPUs"));
  EXPECT_THAT(ErrorOf(2, {1, 0}, {}), HasSubstr("GPU 1 has speed 0"));
  EXPECT_THAT(ErrorOf(2, {-1, 1}, {}), HasSubstr("GPU 0 has speed -1"));
  EXPECT_THAT(ErrorOf(2, {1, std::numeric_limits<double>::quiet_NaN()}, {}), HasSubstr("nan"));
  EXPECT_THAT(ErrorOf(2, {}, {2}), HasSubstr("unusable GPU 2 is outside 0..1"));
  EXPECT_THAT(ErrorOf(2, {}, {-1}), HasSubstr("unusable GPU -1 is outside 0..1"));
  EXPECT_THAT(ErrorOf(3, {}, {1, 1}), HasSubstr("unusable GPU 1 is given twice"));
  EXPECT_THAT(ErrorOf(2, {}, {0, 1}), HasSubstr("all 2 GPUs are unusable"));
}

}  // namespace
}  // namespace eplb
