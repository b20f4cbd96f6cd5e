#include "server/runner/sessions.h"

#include <gtest/gtest.h>

#include "tests/server/test_stream.h"

namespace eplb {

namespace {

class MailboxTest : public ::testing::Test {
 protected:
  int wakes_ = 0;
  Mailbox mailbox_{{.wake = [this] { ++wakes_; }, .cancel = [] {}}};
};

TEST_F(MailboxTest, MessagesOfDifferentKindsComeInOrder) {
  mailbox_.Put(wire::Welcome{.term = 3, .server_version = ""});
  mailbox_.Put(wire::SetReportInterval{.report_every = 7});
  EXPECT_EQ(std::get<wire::Welcome>(*mailbox_.Take()).term, 3);
  EXPECT_EQ(std::get<wire::SetReportInterval>(*mailbox_.Take()).report_every, 7);
  EXPECT_FALSE(mailbox_.Take().has_value());
  EXPECT_EQ(wakes_, 2);
}

TEST_F(MailboxTest, ANewerMessageReplacesTheUnsentOneOfItsKindAndGoesLast) {
  wire::Propose propose;
  propose.version = 5;
  mailbox_.Put(propose);
  mailbox_.Put(wire::Cancel{.version = 5, .reason = ""});
  propose.version = 6;
  mailbox_.Put(propose);
  EXPECT_EQ(mailbox_.size(), 2);
  EXPECT_EQ(std::get<wire::Cancel>(*mailbox_.Take()).version, 5);
  EXPECT_EQ(std::get<wire::Propose>(*mailbox_.Take()).version, 6);
}

TEST_F(MailboxTest, AHundredThousandMessagesToAReaderThatNeverReadsAreOneOfEachKind) {
  for (int32_t i = 0; i < 100000; ++i) mailbox_.Put(wire::SetReportInterval{.report_every = i});
  EXPECT_EQ(mailbox_.size(), 1);
}

TEST_F(MailboxTest, WhatWasPutBeforeCloseIsSentAndNothingAfterIt) {
  mailbox_.Put(wire::SetReportInterval{.report_every = 1});
  mailbox_.Close(absl::AbortedError("first"));
  mailbox_.Put(wire::Cancel{.version = 1, .reason = ""});
  mailbox_.Close(absl::InternalError("second"));
  EXPECT_TRUE(mailbox_.Take().has_value());
  EXPECT_FALSE(mailbox_.Take().has_value());
  EXPECT_EQ(mailbox_.closing(), absl::AbortedError("first"));
}

constexpr absl::Time kSessionsStart = absl::UnixEpoch();

TEST(SessionsTest, NumbersStartAtOneAndNeverComeBack) {
  Sessions sessions({});
  TestStream stream;
  EXPECT_EQ(*sessions.Open(stream.mailbox(), kSessionsStart), 1);
  sessions.Remove(1);
  EXPECT_EQ(*sessions.Open(stream.mailbox(), kSessionsStart), 2);
  EXPECT_EQ(sessions.count(), 1);
}

TEST(SessionsTest, MoreThanTheLimitAreRefused) {
  Sessions sessions({.max_sessions = 1});
  TestStream stream;
  ASSERT_TRUE(sessions.Open(stream.mailbox(), kSessionsStart).ok());
  EXPECT_EQ(sessions.Open(stream.mailbox(), kSessionsStart).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SessionsTest, StreamsThatFoundNoPlaceAreToldUntilTheirClientsWouldHaveComeAgain) {
  Sessions sessions({});
  EXPECT_EQ(sessions.RefusedText(kSessionsStart), "");
  sessions.NoteRefused(absl::ResourceExhaustedError("8 streams are open"), kSessionsStart);
  EXPECT_EQ(
      sessions.RefusedText(kSessionsStart),
      "1 stream found no place, the newest 0 ago, and their ranks are not balanced: 8 streams "
      "are open");
  const absl::Time later = kSessionsStart + absl::Seconds(60);
  sessions.NoteRefused(absl::ResourceExhaustedError("9 streams are open"), later);
  EXPECT_EQ(sessions.RefusedText(later + absl::Seconds(5)),
            "2 streams found no place, the newest 5s ago, and their ranks are not balanced: 9 "
            "streams are open");
  EXPECT_NE(sessions.RefusedText(later + Sessions::kRefusalTold), "");
  EXPECT_EQ(sessions.RefusedText(later + Sessions::kRefusalTold + absl::Seconds(1)), "");
  sessions.NoteRefused(absl::ResourceExhaustedError("8 streams are open"),
                       later + absl::Minutes(30));
  EXPECT_EQ(sessions.RefusedText(later + absl::Minutes(30)).substr(0, 8), "1 stream");
}

TEST(SessionsTest, NewStreamsAreRefusedWhileDraining) {
  Sessions sessions({});
  TestStream stream;
  sessions.StopAccepting();
  EXPECT_EQ(sessions.Open(stream.mailbox(), kSessionsStart).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(SessionsTest, AStreamWithoutAFirstMessageIsClosedAtItsDeadline) {
  Sessions sessions({.hello_deadline = absl::Seconds(10)});
  TestStream silent;
  TestStream speaking;
  ASSERT_TRUE(sessions.Open(silent.mailbox(), kSessionsStart).ok());
  sessions.Spoke(*sessions.Open(speaking.mailbox(), kSessionsStart));
  sessions.Expire(kSessionsStart + absl::Milliseconds(9999));
  EXPECT_FALSE(silent.mailbox()->closing().has_value());
  sessions.Expire(kSessionsStart + absl::Seconds(10));
  EXPECT_EQ(silent.mailbox()->closing()->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(speaking.mailbox()->closing().has_value());
}

TEST(SessionsTest, AClosedStreamThatDoesNotEndIsCancelled) {
  Sessions sessions({});
  TestStream stream;
  const core::SessionId session = *sessions.Open(stream.mailbox(), kSessionsStart);
  EXPECT_FALSE(sessions.WasClosed(session));
  sessions.Close(session, absl::AbortedError("over"));
  EXPECT_TRUE(sessions.WasClosed(session));
  sessions.Expire(kSessionsStart);
  EXPECT_FALSE(stream.cancelled());
  sessions.Expire(kSessionsStart + Sessions::kCloseDeadline);
  EXPECT_TRUE(stream.cancelled());
}

TEST(SessionsTest, SendingToAStreamThatIsGoneDoesNothing) {
  Sessions sessions({});
  sessions.Send(77, wire::SetReportInterval{});
  sessions.Close(77, absl::OkStatus());
  EXPECT_FALSE(sessions.WasClosed(77));
  EXPECT_TRUE(sessions.WaitUntilEmpty(absl::ZeroDuration()));
}

}  // namespace

}  // namespace eplb
