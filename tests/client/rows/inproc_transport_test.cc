#include <gmock/gmock.h>

#include "absl/time/clock.h"

#include "tests/client/rows/transport_contract.h"

namespace eplb {
namespace {

Transports MakeInprocContract(int32_t world_size, int64_t staging_bytes) {
  auto transports = MakeInprocTransports(world_size, staging_bytes);
  EXPECT_TRUE(transports.ok()) << transports.status();
  return *std::move(transports);
}

INSTANTIATE_TEST_SUITE_P(Inproc, TransportContractTest, ::testing::Values(&MakeInprocContract));

TEST(InprocTransportTest, ScriptedFlipIsFoundByItsChecksum) {
  InprocFaults faults;
  faults.after_copy = [](RankId from, RankId, int32_t row, std::span<std::byte> staged) {
    if (from == RankId{1} && row == 7) staged[3] ^= std::byte{0x10};
  };
  auto made = MakeInprocTransports(2, 64, faults);
  ASSERT_TRUE(made.ok());
  const std::vector<std::byte> row(64, std::byte{5});
  const Ticket receive = MustPost(
      *(*made)[0],
      {.post_id = 1,
       .sends = {},
       .receives =
           {{.from = RankId{1}, .row = 7, .round = 0, .staging_offset = 0, .num_bytes = 64}},
       .deadline = absl::Now() + absl::Seconds(30)});
  const Ticket send = MustPost(
      *(*made)[1],
      {.post_id = 1,
       .sends = {{.to = RankId{0}, .row = 7, .round = 0, .bytes = row, .staging_offset = 0}},
       .receives = {},
       .deadline = absl::Now() + absl::Seconds(30)});
  const auto results = Drive(*made, {receive, send});
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(results[0].status().message(), "post 1: row 7 from rank 1: checksum differs");
}

TEST(InprocTransportTest, WorldsThatCannotBeAreRefused) {
  EXPECT_EQ(MakeInprocTransports(0, 64).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeInprocTransports(1, -1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
