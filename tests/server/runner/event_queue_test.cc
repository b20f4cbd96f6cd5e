#include "server/runner/event_queue.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/server/test_stream.h"

namespace eplb {
namespace {

core::Event Report(core::SessionId session = 1) {
  return core::SessionMessage{.session = session, .message = ReportOf(0)};
}
core::Event Ready(int64_t version, core::SessionId session = 1) {
  wire::Prepared ready;
  ready.version = version;
  return core::SessionMessage{.session = session, .message = ready};
}
core::Event Hello(core::SessionId session) {
  return core::SessionMessage{.session = session, .message = wire::Hello{}};
}
core::Event Closed(core::SessionId session) { return core::SessionClosed{.session = session}; }

// Returns what the core gets: "R1" for a report of stream 1, likewise P PREPARED, H Hello, C the
// end.
std::string TakenFrom(EventQueue& queue) {
  std::string taken;
  while (const std::optional<core::Event> event = queue.Pop(absl::ZeroDuration())) {
    if (const auto* closed = std::get_if<core::SessionClosed>(&*event)) {
      absl::StrAppend(&taken, "C", closed->session, " ");
      continue;
    }
    const auto& message = std::get<core::SessionMessage>(*event);
    const bool report = std::holds_alternative<wire::LoadReport>(message.message);
    const bool hello = std::holds_alternative<wire::Hello>(message.message);
    absl::StrAppend(&taken, report ? "R" : hello ? "H" : "P", message.session, " ");
  }
  return taken;
}

TEST(EventQueueTest, EventsComeInOrder) {
  EventQueue queue({});
  ASSERT_EQ(queue.Push(Ready(1)), Admission::kQueued);
  ASSERT_EQ(queue.Push(core::Tick{}), Admission::kQueued);
  EXPECT_TRUE(std::holds_alternative<core::SessionMessage>(*queue.Pop(absl::ZeroDuration())));
  EXPECT_TRUE(std::holds_alternative<core::Tick>(*queue.Pop(absl::ZeroDuration())));
  EXPECT_FALSE(queue.Pop(absl::ZeroDuration()).has_value());
}

TEST(EventQueueTest, ReportsOfStreamsAreTakenInTurns) {
  EventQueue queue({});
  for (const core::SessionId stream : {1, 1, 1, 1, 2, 2, 3}) (void)queue.Push(Report(stream));
  ASSERT_TRUE(queue.Pop(absl::ZeroDuration()).has_value());
  (void)queue.Push(Report(3));
  (void)queue.Push(Report(4));
  EXPECT_EQ(TakenFrom(queue), "R2 R3 R1 R2 R3 R4 R1 R1 ");
}

TEST(EventQueueTest, AnAnswerOvertakesReportsAndTheEndOfAStreamDoesNot) {
  EventQueue queue({});
  for (const core::SessionId stream : {1, 1, 2}) (void)queue.Push(Report(stream));
  (void)queue.Push(Ready(1, 1));
  (void)queue.Push(Closed(1));
  (void)queue.Push(Closed(3));  // no report of it waits
  (void)queue.Push(Hello(4));   // the rank of stream 1 is back
  (void)queue.Push(Closed(4));
  EXPECT_EQ(TakenFrom(queue), "P1 C3 R1 R2 R1 C1 H4 C4 ");
}

TEST(EventQueueTest, AFloodOfOtherEventsLetsAReportThroughNowAndThen) {
  EventQueue queue({});
  for (int i = 0; i < 2; ++i) (void)queue.Push(Report(1));
  for (int i = 0; i < 2 * EventQueue::kOthersInARow + 1; ++i) (void)queue.Push(Ready(1, 2));
  std::string others;
  for (int i = 0; i < EventQueue::kOthersInARow; ++i) others += "P2 ";
  EXPECT_EQ(TakenFrom(queue), absl::StrCat(others, "R1 ", others, "R1 P2 "));
}

TEST(EventQueueTest, ReportsAreDroppedAndCountedBeforeOtherMessagesAreRefused) {
  EventQueue queue({.max_events = 4});
  EXPECT_EQ(queue.Push(Report()), Admission::kQueuedLast);
  EXPECT_EQ(queue.Push(Report()), Admission::kQueuedLast);
  EXPECT_EQ(queue.Push(Report()), Admission::kDropped);
  EXPECT_EQ(queue.dropped_reports(), 1);
  EXPECT_EQ(queue.Push(Ready(1)), Admission::kQueued);
  EXPECT_EQ(queue.Push(Ready(2)), Admission::kQueued);
  EXPECT_EQ(queue.Push(Ready(3)), Admission::kFull);
}

TEST(EventQueueTest, WhatIsAskedForIsRefusedWhenTheQueueIsFull) {
  EventQueue queue({.max_events = 1});
  ASSERT_EQ(queue.Push(Ready(1)), Admission::kQueued);
  EXPECT_EQ(queue.Push(core::Change{}), Admission::kFull);
  EXPECT_EQ(queue.Push(core::ReserveVersion{.ticket = 1, .job = "job"}), Admission::kFull);
  ASSERT_TRUE(queue.Pop(absl::ZeroDuration()).has_value());
  EXPECT_EQ(queue.Push(core::ReserveVersion{.ticket = 1, .job = "job"}), Admission::kQueued);
}

TEST(EventQueueTest, WhatIsNeitherSaidByARankNorAskedForIsAlwaysQueued) {
  EventQueue queue({.max_events = 0, .max_bytes = 0});
  EXPECT_EQ(queue.Push(core::SessionClosed{.session = 1, .reason = ""}), Admission::kQueued);
  EXPECT_EQ(queue.Push(core::DrainRequested{.grace = absl::Seconds(1)}), Admission::kQueued);
}

TEST(EventQueueTest, AHundredThousandReportsStayWithinTheBytes) {
  constexpr size_t kReportBytes = 4 * sizeof(int64_t);
  EventQueue queue(
      {.max_events = 1 << 30, .max_bytes = 100 * kReportBytes, .max_reports_of_stream = 1000});
  for (int i = 0; i < 100000; ++i) (void)queue.Push(Report());
  EXPECT_EQ(queue.size(), 100);
  EXPECT_EQ(queue.dropped_reports(), 100000 - 100);
  ASSERT_TRUE(queue.Pop(absl::ZeroDuration()).has_value());
  EXPECT_EQ(queue.Push(Report()), Admission::kQueuedLast);  // a place is free again
}

// Ranks send a backlog as fast as the queue lets them, as after a standstill of the daemon.
void ExpectAllReportsTaken(EventQueue::Limits limits, int num_streams, int num_reports) {
  std::vector<int> left(static_cast<size_t>(num_streams), num_reports);
  std::function<void(core::SessionId)> read;
  EventQueue queue(limits, [&read](core::SessionId session) { read(session); });
  read = [&](core::SessionId session) {
    int& reports = left[static_cast<size_t>(session)];
    while (reports > 0) {
      --reports;
      if (queue.Push(Report(session)) == Admission::kQueuedLast) return;
    }
  };
  for (int stream = 0; stream < num_streams; ++stream) read(stream);
  int taken = 0;
  while (queue.Pop(absl::ZeroDuration())) ++taken;
  EXPECT_EQ(queue.dropped_reports(), 0);
  EXPECT_EQ(taken, num_streams * num_reports);
}

TEST(EventQueueTest, ReportsOfMoreStreamsThanAQuarterOfThePlacesAreNotDropped) {
  constexpr int kMostSessions = 20000;  // default of limits.max_sessions
  ExpectAllReportsTaken({}, kMostSessions, 10);
}

TEST(EventQueueTest, ReportsThatFillTheBytesAreNotDroppedWhileOneOfEachStreamFits) {
  constexpr size_t kReportBytes = 4 * sizeof(int64_t);
  ExpectAllReportsTaken({.max_bytes = 65 * kReportBytes}, 9, 100);
}

TEST(EventQueueTest, AStreamWithAFewReportsWaitingReadsOnOnceTheCoreHasTakenHalfOfThem) {
  std::vector<core::SessionId> may_read;
  EventQueue queue({.max_reports_of_stream = 4},
                   [&may_read](core::SessionId session) { may_read.push_back(session); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Push(Report(1)), Admission::kQueued);
  EXPECT_EQ(queue.Push(Report(1)), Admission::kQueuedLast);
  EXPECT_EQ(queue.Push(Report(2)), Admission::kQueued) << "of another stream";
  EXPECT_EQ(queue.Push(Ready(1)), Admission::kQueued) << "no report";
  for (int i = 0; i < 3; ++i) (void)queue.Pop(absl::ZeroDuration());  // PREPARED, one of each
  EXPECT_TRUE(may_read.empty());
  (void)queue.Pop(absl::ZeroDuration());
  EXPECT_EQ(may_read, std::vector<core::SessionId>{1});
  while (queue.Pop(absl::ZeroDuration())) continue;
  EXPECT_EQ(may_read.size(), 1u) << "a stream that reads is not told so again";
  EXPECT_EQ(queue.Push(Report(1)), Admission::kQueued);
}

TEST(EventQueueTest, ReportsAboveAStreamsLimitAreHandedOutByStreamAndAreNotTheQueues) {
  EventQueue queue({});
  queue.CountLimitedReport(7);
  queue.CountLimitedReport(9);
  queue.CountLimitedReport(7);
  EXPECT_EQ(queue.dropped_reports(), 0);
  const std::vector<core::LimitedReports> taken = queue.TakeLimited();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].session, 7);
  EXPECT_EQ(taken[0].count, 2);
  EXPECT_TRUE(queue.TakeLimited().empty());
  EXPECT_EQ(queue.limited_reports(), 3);
}

TEST(EventQueueTest, StopEndsAWaitingPop) {
  EventQueue queue({});
  queue.Stop();
  EXPECT_FALSE(queue.Pop(absl::Hours(1)).has_value());
}

}  // namespace
}  // namespace eplb
