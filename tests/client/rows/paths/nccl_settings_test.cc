#include "client/rows/paths/nccl_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#ifdef EPLB_WITH_NCCL
#include "cuda/nccl_communicator.h"
#endif

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class NcclSettingsTest : public ::testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }

  static void Clear() {
    for (const char* name : {"EPLB_NCCL_TRAFFIC_CLASS", "NCCL_IB_TC", "NCCL_NET"}) unsetenv(name);
  }
};

#ifdef EPLB_WITH_NCCL
TEST_F(NcclSettingsTest, TheDefaultsAreTheCommunicators) {
  const NcclSettings settings;
  EXPECT_TRUE(CheckNcclSettings(settings).ok());
  const cuda::NcclOptions options;
  EXPECT_EQ(settings.max_ctas, options.max_ctas);
  EXPECT_EQ(settings.channels_per_net_peer, options.channels_per_net_peer);
  EXPECT_EQ(settings.traffic_class, options.traffic_class);
}
#endif

TEST_F(NcclSettingsTest, ARefusalNamesFieldNumberAndExpectation) {
  const auto message = [](const NcclSettings& settings) {
    return std::string(CheckNcclSettings(settings).message());
  };
  EXPECT_EQ(message({.max_ctas = 65}), "nccl.max_ctas: 65, expected 1..64");
  EXPECT_EQ(message({.channels_per_net_peer = 0}), "nccl.channels_per_net_peer: 0, expected 1..64");
  EXPECT_EQ(message({.traffic_class = -2}), "nccl.traffic_class: -2, expected -1 or more");
  EXPECT_EQ(message({.piece_bytes = 4096}),
            "nccl.piece_bytes: 4096, expected 0 or 65536..1073741824");
  EXPECT_EQ(message({.piece_bytes = 1'000'001}),
            "nccl.piece_bytes: 1000001, expected a multiple of 64");
  EXPECT_EQ(message({.warm_up_ranks = -1}), "nccl.warm_up_ranks: -1, expected 0..4096");
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST_F(NcclSettingsTest, OnOneNodeALargerPieceTakesMoreChannels) {
  const auto channels = [](int64_t bytes, int32_t num_ranks) {
    return NcclChannels(bytes, {.num_ranks = num_ranks, .on_one_node = true}, {});
  };
  EXPECT_EQ(channels(16 * kMiB, 2), 8);
  EXPECT_EQ(channels(16 * kMiB, 4), 4);
  EXPECT_EQ(channels(16 * kMiB, 8), 2);
  EXPECT_EQ(channels(64 * kMiB, 8), 4) << "a part of 16 MiB is not cut";
  EXPECT_EQ(channels(64 * kMiB + 64, 8), 8);
  EXPECT_EQ(channels(128 * kMiB, 8), 8);
  EXPECT_EQ(channels(256 * kMiB, 8), 16);
  EXPECT_EQ(channels(1024 * kMiB, 8), 16) << "max_ctas";
  EXPECT_EQ(channels(16 * kMiB, 16), 1);
  EXPECT_EQ(channels(65'536, 2), 1) << "a part is at least 64 KiB";
  EXPECT_EQ(channels(65'537, 2), 2);
}

TEST_F(NcclSettingsTest, BetweenNodesAPieceTakesTheChannelsOfANetworkPeer) {
  const auto channels = [](int64_t bytes, const NcclSettings& settings) {
    return NcclChannels(bytes, {.num_ranks = 64}, settings);
  };
  EXPECT_EQ(channels(16 * kMiB, {}), 8);
  EXPECT_EQ(channels(16 * kMiB, {.channels_per_net_peer = 2}), 2);
  EXPECT_EQ(channels(16 * kMiB, {.max_ctas = 4}), 4);
  EXPECT_EQ(channels(131'072, {}), 1) << "a part may be 128 KiB";
  EXPECT_EQ(channels(131'073, {}), 2);
}

TEST_F(NcclSettingsTest, RanksAreOnOneNodeWhereTheirEpGroupHasOneBootId) {
  const std::vector<std::string> boot_ids{"a", "a", "b", "b", "", ""};
  const auto on_one_node = [&boot_ids](const std::vector<RankId>& ep_group) {
    const NcclRanks ranks = NcclRanksOf(ep_group, boot_ids);
    EXPECT_EQ(ranks.num_ranks, std::ssize(ep_group));
    return ranks.on_one_node;
  };
  EXPECT_TRUE(on_one_node({RankId{0}, RankId{1}}));
  EXPECT_TRUE(on_one_node({RankId{2}, RankId{3}}));
  EXPECT_FALSE(on_one_node({RankId{1}, RankId{2}}));
  EXPECT_FALSE(on_one_node({RankId{4}, RankId{5}})) << "unknown";
  EXPECT_FALSE(on_one_node({RankId{6}}));
}

TEST_F(NcclSettingsTest, AnOpenPieceFillsEightChannelsOnOneNode) {
  for (int32_t num_ranks = 2; num_ranks <= 72; ++num_ranks) {
    const NcclRanks ranks{.num_ranks = num_ranks, .on_one_node = true};
    const NcclSettings settings = WithPieceBytes({}, ranks);
    EXPECT_EQ(settings.piece_bytes, num_ranks == 2 ? 16 * kMiB : 64 * kMiB + 65'536);
    EXPECT_GE(NcclChannels(settings.piece_bytes, ranks, settings), 8);
    EXPECT_TRUE(CheckNcclSettings(settings).ok());
  }
  const NcclSettings narrow =
      WithPieceBytes({.max_ctas = 4}, {.num_ranks = 8, .on_one_node = true});
  EXPECT_EQ(NcclChannels(narrow.piece_bytes, {.num_ranks = 8, .on_one_node = true}, narrow), 4);
}

TEST_F(NcclSettingsTest, APieceThatIsGivenOrGoesBetweenNodesIsNotChosen) {
  EXPECT_EQ(
      WithPieceBytes({.piece_bytes = kMiB}, {.num_ranks = 8, .on_one_node = true}).piece_bytes,
      kMiB);
  EXPECT_EQ(WithPieceBytes({}, {.num_ranks = 64}).piece_bytes, 16 * kMiB);
}

TEST_F(NcclSettingsTest, TheEnvironmentGivesTheTrafficClassThatNobodyElseGave) {
  EXPECT_EQ(WithNcclEnvironment({})->traffic_class, -1);
  setenv("EPLB_NCCL_TRAFFIC_CLASS", "106", 1);
  EXPECT_EQ(WithNcclEnvironment({})->traffic_class, 106);
  EXPECT_EQ(WithNcclEnvironment({.traffic_class = 3})->traffic_class, 3);
  for (const char* bad : {"low", "-1", "1e3"}) {
    setenv("EPLB_NCCL_TRAFFIC_CLASS", bad, 1);
    EXPECT_THAT(std::string(WithNcclEnvironment({}).status().message()),
                HasSubstr("EPLB_NCCL_TRAFFIC_CLASS: \""))
        << bad;
  }
}

TEST_F(NcclSettingsTest, AVariableThatTakesTheDeadlinesAwayIsRefused) {
  EXPECT_TRUE(CheckNcclEnvironment().ok());
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  EXPECT_TRUE(CheckNcclEnvironment().ok());
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  const absl::Status status = CheckNcclEnvironment();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL_COMM_BLOCKING=1"));
}

TEST_F(NcclSettingsTest, TellsWhatIsSet) {
  EXPECT_THAT(TellNcclSettings({}), Contains(Pair("max_ctas", "16")));
  EXPECT_THAT(TellNcclSettings({}), Contains(Pair("traffic_class", "default")));
  EXPECT_THAT(TellNcclSettings({}), Contains(Pair("piece_bytes", "default")));
  EXPECT_THAT(TellNcclSettings({.traffic_class = 0}), Contains(Pair("traffic_class", "0")));
  EXPECT_THAT(TellNcclEnvironment(), Not(Contains(Pair("NCCL_IB_TC", ::testing::_))));
  setenv("NCCL_IB_TC", "106", 1);
  setenv("NCCL_NET", "", 1);
  EXPECT_THAT(TellNcclEnvironment(), Contains(Pair("NCCL_IB_TC", "106")));
  EXPECT_THAT(TellNcclEnvironment(), Contains(Pair("NCCL_NET", ""))) << "set to nothing is set";
}

}  // namespace
}  // namespace eplb
