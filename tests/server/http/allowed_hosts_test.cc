#include "server/http/allowed_hosts.h"

#include <gtest/gtest.h>

#include <string>

namespace eplb {
namespace {

TEST(AllowedHostsTest, EveryAddressPasses) {
  const AllowedHosts hosts({});
  for (const char* host : {"127.0.0.1", "127.0.0.1:29611", "192.168.7.9", "10.0.0.1:", "[::1]",
                           "[::1]:80", "[fe80::1]:65535"}) {
    EXPECT_TRUE(hosts.Allows(host)) << host;
  }
}

TEST(AllowedHostsTest, OfNamesLocalhostAndTheListedPassInAnyCase) {
  const AllowedHosts hosts({"eplb.Example.org"});
  for (const char* host :
       {"localhost", "LocalHost:29611", "EPLB.example.ORG", "eplb.example.org:1"}) {
    EXPECT_TRUE(hosts.Allows(host)) << host;
  }
  for (const char* host : {"example.org", "x.eplb.example.org", "eplb.example.org.evil.net",
                           "localhost.evil.net", "evil.net"}) {
    EXPECT_FALSE(hosts.Allows(host)) << host;
  }
}

TEST(AllowedHostsTest, WhatOnlyLooksLikeAnAddressIsAName) {
  const AllowedHosts hosts({});
  for (const char* host :
       {"", ":", ":80", "127.0.0.1.evil.net", "127.1", "0x7f000001", "127.0.0.1:80:80",
        "127.0.0.1:http", "127.0.0.1:123456", "::1", "[::1", "::1]", "[]", "[127.0.0.1]",
        "[::1]evil.net", "evil.net]:80", "localhost:80@evil.net"}) {
    EXPECT_FALSE(hosts.Allows(host)) << host;
  }
  EXPECT_FALSE(hosts.Allows(std::string("127.0.0.1\0.evil.net", 18)));
}

}  // namespace
}  // namespace eplb
