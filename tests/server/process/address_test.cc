#include "server/process/address.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace eplb
