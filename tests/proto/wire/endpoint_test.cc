#include "proto/wire/endpoint.h"

#include <gtest/gtest.h>

namespace eplb::wire {
namespace {

TEST(EndpointTest, WhatGrpcTakesIsTaken) {
  for (const char* good : {"host:1", "127.0.0.1:65535", "[::1]:29610", "unix:/a/b", "unix:b"}) {
    EXPECT_EQ(*CheckEndpoint(good), good);
  }
  EXPECT_EQ(*CheckEndpoint("/run/eplb/eplbd.sock"), "unix:/run/eplb/eplbd.sock");
  EXPECT_TRUE(CheckEndpoint("/" + std::string(106, 'a')).ok());
  EXPECT_EQ(CheckEndpoint("/" + std::string(107, 'a')).status().message(),
            "endpoint is \"unix:/" + std::string(107, 'a') +
                "\", a path of 108 bytes, expected at most the 107 of a Unix socket");
}

// gRPC would take a name without a port, and connect to 443 for ever.
TEST(EndpointTest, AnAddressWithoutAPortIsRefused) {
  for (const char* bad : {"", "localhost", "localhost:", "localhost:0", "localhost:65536", ":1",
                          "::1:29610", "a b:1", "unix:", "host:port"}) {
    EXPECT_EQ(std::string(CheckEndpoint(bad).status().message()),
              "endpoint is \"" + std::string(bad) + "\", expected HOST:PORT or unix:PATH");
  }
}

TEST(EndpointTest, AListIsSplitAndEachOfItIsChecked) {
  EXPECT_EQ(*SplitEndpoints("a:1"), std::vector<std::string>{"a:1"});
  EXPECT_EQ(*SplitEndpoints("a:1, unix:/x ,[::1]:2"),
            (std::vector<std::string>{"a:1", "unix:/x", "[::1]:2"}));
  const auto error = [](const std::string& list) {
    return std::string(SplitEndpoints(list).status().message());
  };
  EXPECT_EQ(error("a:1,"), "endpoint is \"\", expected HOST:PORT or unix:PATH");
  EXPECT_EQ(error("a:1,/x,unix:/x"), "endpoint is \"a:1,/x,unix:/x\": unix:/x is in it twice");
  EXPECT_EQ(error("a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9"),
            "endpoint is a list of 9 daemons, expected at most 8");
}

TEST(EndpointTest, TheSystemsWordsAreFoundInThoseOfGrpc) {
  EXPECT_EQ(ConnectionCause("failed to connect to all addresses; last error: UNKNOWN: "
                            "ipv4:127.0.0.1:21999: Failed to connect to remote host: Connection "
                            "refused"),
            "connection refused");
  EXPECT_EQ(ConnectionCause("failed to connect to all addresses; last error: UNKNOWN: unix:/x: "
                            "No such file or directory"),
            "no such file or directory");
  EXPECT_EQ(ConnectionCause("failed to connect to all addresses; last error: UNKNOWN: odd"),
            "UNKNOWN: odd");
  EXPECT_EQ(ConnectionCause("Socket closed"), "Socket closed");
}

}  // namespace
}  // namespace eplb::wire
