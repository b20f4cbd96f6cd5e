#include "server/http/intake.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "server/process/socket.h"
#include "tests/support/raw_connection.h"

namespace eplb {
namespace {

TEST(IntakeTest, AHeadThatDoesNotEndInTimeIsDroppedAndCounted) {
  absl::StatusOr<TcpListeners> bound = ListenTcp({.host = "127.0.0.1"}, /*backlog=*/8, /*most=*/1);
  ASSERT_TRUE(bound.ok()) << bound.status();
  const int port = bound->address.port;
  Intake intake(std::move(bound->sockets.front()), {.head_deadline = absl::Milliseconds(50)});
  std::thread turns([&intake] { intake.Run(); });
  RawConnection slow(port);
  slow.Send("GET /livez HTTP/1.1\r\n");
  EXPECT_TRUE(slow.ReadToTheEnd());
  EXPECT_EQ(intake.drops().late, 1);
  EXPECT_EQ(intake.drops().crowded, 0);
  intake.Stop();
  turns.join();
  EXPECT_FALSE(intake.Next(HttpLane::kQuestion).has_value());
}

TEST(IntakeTest, TheProbesHaveALaneOfTheirOwn) {
  for (const char* head :
       {"GET /livez HTTP/1.1\r\n", "HEAD /readyz HTTP/1.0\r\n", "GET /livez?x=1 HTTP/1.1\r\n"}) {
    EXPECT_EQ(LaneOf(head), HttpLane::kProbe) << head;
  }
  for (const char* head : {"GET /metrics HTTP/1.1\r\nX: /livez\r\n", "GET /livezz HTTP/1.1\r\n",
                           "GET\r\n/livez ", "", "GET /api/v1/jobs?x= /livez"}) {
    EXPECT_EQ(LaneOf(head), HttpLane::kQuestion) << head;
  }
}

}  // namespace
}  // namespace eplb
