#include "cuda/nccl_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace eplb::cuda {
namespace {

using ::testing::HasSubstr;

const NcclOptions kGood{.rank = 1, .num_ranks = 2, .traffic_class = 3};

TEST(NcclConfigTest, OwnVersionGetsEverything) {
  const NcclOptions options{.rank = 1, .num_ranks = 2, .traffic_class = 3, .name = "rows"};
  const ncclConfig_t config = MakeNcclConfig(options, NCCL_VERSION_CODE);
  EXPECT_EQ(config.size, sizeof(ncclConfig_t));
  EXPECT_EQ(config.version, NCCL_VERSION_CODE);
  EXPECT_EQ(config.blocking, 0);
  EXPECT_EQ(config.maxCTAs, 16);
  EXPECT_EQ(config.nChannelsPerNetPeer, 8);
  EXPECT_EQ(config.trafficClass, 3);
  EXPECT_EQ(config.splitShare, 0);
  EXPECT_EQ(config.shrinkShare, 0);
  EXPECT_STREQ(config.commName, "rows");
}

TEST(NcclConfigTest, OlderVersionIsToldOnlyWhatItKnows) {
  const ncclConfig_t oldest = MakeNcclConfig(kGood, 21800);
  EXPECT_EQ(oldest.version, 21800U);
  EXPECT_EQ(oldest.size, offsetof(ncclConfig_t, splitShare) + sizeof(int));
  EXPECT_EQ(oldest.maxCTAs, 16);
  EXPECT_EQ(oldest.trafficClass, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(oldest.commName, nullptr);
  EXPECT_EQ(oldest.shrinkShare, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(oldest.nChannelsPerNetPeer, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(MakeNcclConfig(kGood, 22605).trafficClass, 3);
  EXPECT_EQ(MakeNcclConfig(kGood, 22605).commName, nullptr);
  EXPECT_STREQ(MakeNcclConfig(kGood, 22703).commName, "eplb");
  EXPECT_EQ(MakeNcclConfig(kGood, 22703).nChannelsPerNetPeer, NCCL_CONFIG_UNDEF_INT);
}

TEST(NcclConfigTest, NewerVersionIsToldTheVersionOfTheHeader) {
  EXPECT_EQ(MakeNcclConfig(kGood, 23100).version, NCCL_VERSION_CODE);
  EXPECT_EQ(MakeNcclConfig(kGood, 23100).size, sizeof(ncclConfig_t));
}

TEST(NcclConfigTest, TrafficClassIsLeftToNcclUnlessItIsGiven) {
  EXPECT_EQ(MakeNcclConfig({}, NCCL_VERSION_CODE).trafficClass, NCCL_CONFIG_UNDEF_INT);
}

TEST(NcclConfigTest, RefusalNamesTheNumber) {
  EXPECT_TRUE(CheckNcclOptions(kGood).ok());
  EXPECT_THAT(CheckNcclOptions({.rank = 2, .num_ranks = 2}).message(), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(CheckNcclOptions({.rank = -1}).message(), HasSubstr("rank -1 of 1"));
  EXPECT_THAT(CheckNcclOptions({.num_ranks = 0}).message(), HasSubstr("rank 0 of 0"));
  EXPECT_THAT(CheckNcclOptions({.max_ctas = 0}).message(), HasSubstr("0 CTAs"));
  EXPECT_THAT(CheckNcclOptions({.max_ctas = 65}).message(), HasSubstr("65 CTAs"));
  EXPECT_THAT(CheckNcclOptions({.channels_per_net_peer = 0}).message(), HasSubstr("0 channels"));
  EXPECT_THAT(CheckNcclOptions({.traffic_class = -2}).message(), HasSubstr("traffic class -2"));
}

}  // namespace
}  // namespace eplb::cuda
