#include "client/c/client_handle.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace eplb::c {
namespace {

TEST(ClientHandleTest, ACallNeedsAClientThatIsConnectedAndOpen) {
  EXPECT_EQ(CheckState(nullptr, "record", Needs::kNothing),
            absl::InvalidArgumentError("record: client is NULL"));
  eplb_client handle;
  EXPECT_TRUE(CheckState(&handle, "close", Needs::kNothing).ok());
  EXPECT_EQ(CheckState(&handle, "record", Needs::kOpen),
            absl::FailedPreconditionError("record came before connect"));
  handle.closed = true;
  EXPECT_EQ(CheckState(&handle, "record", Needs::kConnected),
            absl::FailedPreconditionError("record came after close"));
}

TEST(ClientHandleTest, OneCallIsUnderWayAtATime) {
  eplb_client handle;
  {
    const Turn first(handle, "step_boundary");
    EXPECT_TRUE(first.status().ok());
    const Turn second(handle, "record");
    EXPECT_EQ(second.status(),
              absl::FailedPreconditionError("record came while step_boundary is under way, in "
                                            "another thread or in the one whose callback this is"));
  }
  EXPECT_TRUE(Turn(handle, "record").status().ok());
}

TEST(ClientHandleTest, TheMessageIsThatOfTheLastCallThatFailed) {
  eplb_client handle;
  EXPECT_EQ(Act(&handle, "one", Needs::kNothing, [] { return absl::AbortedError("first"); }),
            EPLB_ABORTED);
  EXPECT_EQ(handle.message, "first");
  EXPECT_EQ(Act(&handle, "two", Needs::kNothing, [] { return absl::OkStatus(); }), EPLB_OK);
  EXPECT_EQ(handle.message, "first");
  EXPECT_EQ(Act(&handle, "three", Needs::kNothing,
                []() -> absl::Status { throw std::runtime_error("second"); }),
            EPLB_INTERNAL);
  EXPECT_NE(handle.message.find("second"), std::string::npos) << handle.message;
}

TEST(ClientHandleTest, ACallInsideACallLeavesTheOthersMessage) {
  eplb_client handle;
  const int32_t code = Act(&handle, "outer", Needs::kNothing, [&] {
    EXPECT_EQ(Act(&handle, "inner", Needs::kNothing, [] { return absl::OkStatus(); }),
              EPLB_FAILED_PRECONDITION);
    EXPECT_EQ(handle.message, "");
    return absl::OkStatus();
  });
  EXPECT_EQ(code, EPLB_OK);
}

TEST(ClientHandleTest, LooksAreAllowedInsideACall) {
  eplb_client handle;
  const Turn turn(handle, "step_boundary");
  EXPECT_EQ(Look(&handle, "stats", Needs::kNothing, [] { return absl::OkStatus(); }), EPLB_OK);
  EXPECT_EQ(Look(&handle, "stats", Needs::kConnected, [] { return absl::OkStatus(); }),
            EPLB_FAILED_PRECONDITION);
}

}  // namespace
}  // namespace eplb::c
