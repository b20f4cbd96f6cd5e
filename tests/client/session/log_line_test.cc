#include "client/session/log_line.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(LogLineTest, ALineOfForeignTextIsOneLineThatATerminalShowsAsItIs) {
  ::testing::internal::CaptureStderr();
  LogLine("eplbd at h:1 refuses rank 0: \x1b[2J\rall is well\n\u009b31m\u202e\xff");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "eplb: eplbd at h:1 refuses rank 0: ?[2J all is well ?31m??\n");
}

}  // namespace
}  // namespace eplb
