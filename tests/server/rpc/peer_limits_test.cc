#include "server/rpc/peer_limits.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(PeerLimitsTest, AHostIsAPeerWithoutItsPort) {
  EXPECT_EQ(HostOf("ipv4:10.0.0.1:4711"), "ipv4:10.0.0.1");
  EXPECT_EQ(HostOf("ipv6:%5B::1%5D:4711"), "ipv6:%5B::1%5D");
  EXPECT_EQ(HostOf("unix:/run/eplb/eplbd.sock"), "unix");
  EXPECT_EQ(HostOf("fd:12"), "unix");
  EXPECT_TRUE(IsThisMachine(HostOf("ipv4:127.0.0.1:1")));
  EXPECT_TRUE(IsThisMachine(HostOf("ipv6:%5B::1%5D:1")));
  EXPECT_TRUE(IsThisMachine(HostOf("unix:")));
  EXPECT_FALSE(IsThisMachine(HostOf("ipv4:10.0.0.1:1")));
  EXPECT_FALSE(IsThisMachine(HostOf("")));
}

TEST(PeerLimitsTest, CallsOfOneHostDoNotCostAnother) {
  PeerLimits limits({.max_sessions = 1, .calls_per_second = 1});
  EXPECT_TRUE(limits.TakeCall("a", kStart).ok());
  EXPECT_TRUE(limits.TakeCall("a", kStart).ok());
  EXPECT_EQ(limits.TakeCall("a", kStart).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(limits.TakeCall("b", kStart).ok());
  EXPECT_TRUE(limits.TakeCall("a", kStart + absl::Seconds(1)).ok());
}

TEST(PeerLimitsTest, SessionsAreGivenBack) {
  PeerLimits limits({.max_sessions = 2, .calls_per_second = 1});
  EXPECT_TRUE(limits.OpenSession("a", kStart).ok());
  EXPECT_TRUE(limits.OpenSession("a", kStart).ok());
  EXPECT_EQ(limits.OpenSession("a", kStart).message(),
            "limits.max_sessions_per_peer = 2 streams are open from this address");
  EXPECT_TRUE(limits.OpenSession("b", kStart).ok());
  limits.CloseSession("a");
  EXPECT_TRUE(limits.OpenSession("a", kStart).ok());
}

TEST(PeerLimitsTest, IdleHostsAreForgottenAndOthersAreNot) {
  PeerLimits limits({.max_sessions = 1, .calls_per_second = 1});
  ASSERT_TRUE(limits.OpenSession("at work", kStart).ok());
  for (size_t i = 1; i < PeerLimits::kMaxHosts; ++i) {
    ASSERT_TRUE(limits.TakeCall(absl::StrCat(i), kStart).ok());
  }
  EXPECT_FALSE(limits.TakeCall("new", kStart).ok());
  EXPECT_TRUE(limits.TakeCall("new", kStart + absl::Seconds(3)).ok());
  EXPECT_FALSE(limits.OpenSession("at work", kStart + absl::Seconds(3)).ok());
}

}  // namespace
}  // namespace eplb
