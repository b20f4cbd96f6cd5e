#include "server/runner/mailbox.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

class MailboxTest : public ::testing::Test {
 protected:
  int wakes_ = 0;
  Mailbox mailbox_{{.wake = [this] { ++wakes_; }, .cancel = [] {}}};
};

TEST_F(MailboxTest, MessagesOfDifferentKindsComeInOrder) {
  mailbox_.Put(wire::Welcome{.term = 3, .server_version = ""});
  mailbox_.Put(wire::Pace{.report_every = 7});
  EXPECT_EQ(std::get<wire::Welcome>(*mailbox_.Take()).term, 3);
  EXPECT_EQ(std::get<wire::Pace>(*mailbox_.Take()).report_every, 7);
  EXPECT_FALSE(mailbox_.Take().has_value());
  EXPECT_EQ(wakes_, 2);
}

TEST_F(MailboxTest, ANewerMessageReplacesTheUnsentOneOfItsKindAndGoesLast) {
  wire::Propose propose;
  propose.version = 5;
  mailbox_.Put(propose);
  mailbox_.Put(wire::Retract{.version = 5, .reason = ""});
  propose.version = 6;
  mailbox_.Put(propose);
  EXPECT_EQ(mailbox_.size(), 2);
  EXPECT_EQ(std::get<wire::Retract>(*mailbox_.Take()).version, 5);
  EXPECT_EQ(std::get<wire::Propose>(*mailbox_.Take()).version, 6);
}

TEST_F(MailboxTest, AHundredThousandMessagesToAReaderThatNeverReadsAreOneOfEachKind) {
  for (int32_t i = 0; i < 100000; ++i) mailbox_.Put(wire::Pace{.report_every = i});
  EXPECT_EQ(mailbox_.size(), 1);
}

TEST_F(MailboxTest, WhatWasPutBeforeCloseIsSentAndNothingAfterIt) {
  mailbox_.Put(wire::Pace{.report_every = 1});
  mailbox_.Close(absl::AbortedError("first"));
  mailbox_.Put(wire::Retract{.version = 1, .reason = ""});
  mailbox_.Close(absl::InternalError("second"));
  EXPECT_TRUE(mailbox_.Take().has_value());
  EXPECT_FALSE(mailbox_.Take().has_value());
  EXPECT_EQ(mailbox_.closing(), absl::AbortedError("first"));
}

}  // namespace
}  // namespace eplb
