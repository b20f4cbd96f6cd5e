#include "client/migration/link_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/client/control/world.h"
#include "tests/client/migration/host_world.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LinkAddressTest, TextSurvivesAndOtherTextIsRefused) {
  const LinkAddress address{
      .tcp = "[::1]:77", .unix_name = "", .boot_id = "abc", .staging_bytes = 12};
  const auto again = LinkAddress::Decode(address.Encode());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->Encode(), address.Encode());
  for (const char* text : {"", "eplb-rows-1", "eplb-rows-2\na\nb\nc\n1", "eplb-rows-1\na\nb\nc\n-1",
                           "eplb-rows-1\n\nb\nc\n1", "eplb-rows-1\na\nb\nc\n1\n2"}) {
    EXPECT_FALSE(LinkAddress::Decode(text).ok()) << text;
  }
}

// What a rank of two with these options is told, and how often it asked the other for its text.
struct Refusal {
  absl::Status status;
  std::vector<std::string> told;
};
Refusal RefusalOf(const TransportOptions& options) {
  Refusal refusal;
  const Exchange exchange = [&](std::string_view text) -> absl::StatusOr<std::vector<std::string>> {
    refusal.told.emplace_back(text);
    return absl::UnavailableError("nobody is there");
  };
  refusal.status = SetUpLinks(options, SharedStaging{}, exchange).status();
  return refusal;
}

TEST(LinkSetupTest, OptionsThatCannotWorkAreRefusedByNameAndTold) {
  const auto refused = [&](const TransportOptions& options, const char* name) {
    const Refusal refusal = RefusalOf(options);
    EXPECT_EQ(refusal.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refusal.status.message()), HasSubstr(name));
    EXPECT_THAT(refusal.told, ElementsAre(HasSubstr(name)));
  };
  TransportOptions options = HostOptions(0, 1, 64);
  options.max_row_bytes = 0;
  refused(options, "max_row_bytes");
  options = HostOptions(1, 1, 64);
  refused(options, "rank 1");
  options = HostOptions(0, 1, 64);
  options.secret.clear();
  refused(options, "secret");
  options = HostOptions(0, 1, 64);
  options.peers = {RankId{4}};
  refused(options, "peer 4");
  options = HostOptions(0, 1, 64);
  options.bind_address = "203.0.113.7";  // an address for documentation, which nobody has
  const Refusal refusal = RefusalOf(options);
  EXPECT_TRUE(absl::IsUnavailable(refusal.status)) << refusal.status;
  EXPECT_THAT(refusal.told, ElementsAre(HasSubstr("203.0.113.7")));
}

TEST(LinkSetupTest, RankThatCannotTakePartFailsOnAllAndTheNextExchangeIsInStep) {
  ThreadExchange exchange(3);
  RunRanks(3, [&](int32_t rank) {
    absl::StatusOr<SharedStaging> staging = SharedStaging{};
    if (rank == 1) staging = absl::ResourceExhaustedError("no room for staging");
    const absl::Status status =
        SetUpLinks(HostOptions(rank, 3, 64), staging, exchange.ForRank(rank)).status();
    if (rank == 1) {
      EXPECT_EQ(status, staging.status());
    } else {
      EXPECT_EQ(status, absl::FailedPreconditionError("rank 1: no room for staging"));
    }
    const auto next = exchange.ForRank(rank)(std::to_string(rank));
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_THAT(*next, ElementsAre("0", "1", "2"));
  });
}

TEST(LinkSetupTest, ExchangeOfAnotherWorldIsRefused) {
  const Exchange exchange = [](std::string_view text) -> absl::StatusOr<std::vector<std::string>> {
    return std::vector<std::string>(3, std::string(text));
  };
  EXPECT_THAT(
      std::string(SetUpLinks(HostOptions(0, 2, 64), SharedStaging{}, exchange).status().message()),
      HasSubstr("the exchange gave 3 answers, expected 2"));
}

}  // namespace
}  // namespace eplb
