#include "server/http/intake.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

TEST(IntakeTest, AHeadThatDoesNotEndInTimeIsDroppedAndCounted) {
  absl::StatusOr<std::pair<Descriptor, Address>> listener = ListenHttp({.host = "127.0.0.1"});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const int port = listener->second.port;
  Intake intake(std::move(listener->first), {.head_deadline = absl::Milliseconds(50)});
  std::thread turns([&intake] { intake.Run(); });
  RawConnection slow(port);
  slow.Send("GET /livez HTTP/1.1\r\n");
  EXPECT_TRUE(slow.ReadToTheEnd());
  EXPECT_EQ(intake.drops().late, 1);
  EXPECT_EQ(intake.drops().crowded, 0);
  intake.Stop();
  turns.join();
  EXPECT_FALSE(intake.Next().has_value());
}

}  // namespace
}  // namespace eplb
