#include "client/migration/nccl_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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
  EXPECT_EQ(message({.piece_bytes = 4096}), "nccl.piece_bytes: 4096, expected 65536..1073741824");
  EXPECT_EQ(message({.piece_bytes = 1'000'001}),
            "nccl.piece_bytes: 1000001, expected a multiple of 64");
  EXPECT_EQ(message({.warm_up_ranks = -1}), "nccl.warm_up_ranks: -1, expected 0..4096");
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
  EXPECT_THAT(TellNcclSettings({.traffic_class = 0}), Contains(Pair("traffic_class", "0")));
  EXPECT_THAT(TellNcclEnvironment(), Not(Contains(Pair("NCCL_IB_TC", testing::_))));
  setenv("NCCL_IB_TC", "106", 1);
  setenv("NCCL_NET", "", 1);
  EXPECT_THAT(TellNcclEnvironment(), Contains(Pair("NCCL_IB_TC", "106")));
  EXPECT_THAT(TellNcclEnvironment(), Contains(Pair("NCCL_NET", ""))) << "set to nothing is set";
}

}  // namespace
}  // namespace eplb
