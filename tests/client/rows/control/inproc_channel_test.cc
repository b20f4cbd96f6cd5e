#include <gmock/gmock.h>

#include "tests/client/rows/control/control_channel_contract.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(Inproc, ControlChannelContractTest,
                         ::testing::Values(&MakeInprocControlChannels));

TEST(MissingRanksTest, StatusCarriesTheRanksRisingAndOnce) {
  const std::vector<RankId> ranks = {{5}, {3}, {5}};
  const absl::Status status = MissingRanksError("vote", ranks, "connection closed");
  EXPECT_EQ(status.message(), "vote: ranks 3, 5 are missing: connection closed");
  EXPECT_THAT(MissingRanks(status), ::testing::ElementsAre(RankId{3}, RankId{5}));
  EXPECT_THAT(MissingRanks(absl::AbortedError("other")), ::testing::IsEmpty());
}

}  // namespace
}  // namespace eplb
