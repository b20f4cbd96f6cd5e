#include "server/process/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/raw_connection.h"

namespace eplb {

namespace {

TEST(AddressTest, OnlyAddressesOfThisMachineAreLoopback) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/s"}) {
    EXPECT_TRUE(ParseAddress(text)->IsLoopback()) << text;
    EXPECT_EQ(ParseAddress(text)->Text(), text);
  }
  for (const char* text :
       {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1", "127.0.0.1.x.org:1"}) {
    EXPECT_FALSE(ParseAddress(text)->IsLoopback()) << text;
  }
}

TEST(AddressTest, UnusableAddressesAreRefused) {
  for (const char* text :
       {"", "x", ":1", "h:", "h:-1", "h:65536", "h:1x", "::1:5", "unix:", "h:+1"}) {
    EXPECT_FALSE(ParseAddress(text).ok()) << text;
  }
  EXPECT_FALSE(ParseAddress("unix:/" + std::string(107, 'x')).ok());
}

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
