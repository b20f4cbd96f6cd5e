#include "server/rpc/grpc_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GrpcVersionTest, ItIsThatOfTheLibraryWithThreeNumbers) {
  EXPECT_THAT(GrpcVersion(), ::testing::ContainsRegex("^[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(GrpcAdvisoryTest, VersionsBeforeTheMendedOneAreToldWithTheirNumber) {
  for (const char* version : {"1.51.1", "1.56.1", "0.99.9", "1.51.1-dev"}) {
    EXPECT_THAT(GrpcAdvisory(version), HasSubstr(version));
    EXPECT_THAT(GrpcAdvisory(version), HasSubstr("CVE-2023-4785"));
  }
}

TEST(GrpcAdvisoryTest, NewerAndUnreadableVersionsAreNot) {
  for (const char* version : {"1.56.2", "1.57.0", "1.83.0", "2.0.0", "", "1.51", "unknown"}) {
    EXPECT_THAT(GrpcAdvisory(version), IsEmpty()) << version;
  }
}

}  // namespace
}  // namespace eplb
