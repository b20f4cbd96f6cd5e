#include "server/process/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/raw_connection.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(TcpListenersTest, PortZeroIsAFreePortThatTheAddressTells) {
  const absl::StatusOr<TcpListeners> bound = ListenTcp({.host = "127.0.0.1"}, 8, 4);
  ASSERT_TRUE(bound.ok()) << bound.status();
  ASSERT_EQ(bound->sockets.size(), 1U);
  EXPECT_GT(bound->address.port, 0);
  const RawConnection peer(bound->address.port);  // expects that connect succeeds
}

TEST(TcpListenersTest, AllAddressesOfANameHaveOnePort) {
  const absl::StatusOr<TcpListeners> bound = ListenTcp({.host = "localhost"}, 8, 4);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_GE(bound->sockets.size(), 1U);
  const absl::StatusOr<TcpListeners> again = ListenTcp(bound->address, 8, 4);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
}

TEST(TcpListenersTest, AnAddressInUseIsNamedWithTheReason) {
  const absl::StatusOr<TcpListeners> bound = ListenTcp({.host = "127.0.0.1"}, 8, 1);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(std::string(ListenTcp(bound->address, 8, 1).status().message()),
            "cannot listen on " + bound->address.Text() + ": Address already in use");
}

TEST(TcpListenersTest, AnAddressOfAnotherMachineAndANameThatNobodyHasAreErrors) {
  EXPECT_THAT(std::string(ListenTcp({.host = "192.0.2.1", .port = 80}, 8, 1).status().message()),
              StartsWith("cannot listen on 192.0.2.1:80: "));
  EXPECT_THAT(std::string(ListenTcp({.host = "no.such.invalid"}, 8, 1).status().message()),
              HasSubstr("cannot listen on no.such.invalid:0: "));
}

}  // namespace

}  // namespace eplb
