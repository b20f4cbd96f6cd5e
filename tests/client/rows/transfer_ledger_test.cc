#include "client/rows/transfer_ledger.h"

#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

class LedgerOfPartTest : public ::testing::Test {
 protected:
  // Rank 0 sends a row to ranks 1, 2 and 1 again, one in a round, and receives one from rank 2.
  LedgerOfPartTest() {
    for (const int32_t round : {0, 1, 2}) {
      moves_.sends.push_back({.to = RankId{round == 1 ? 2 : 1},
                              .row = round,
                              .round = round,
                              .bytes = row_,
                              .staging_offset = 0});
    }
    moves_.receives = {{.from = RankId{2}, .row = 9, .round = 1, .num_bytes = 8}};
  }

  RowMoves PartWith(RankId rank) const {
    RowMoves part{.post_id = moves_.post_id};
    for (const RowSend& send : moves_.sends) {
      if (send.to == rank) part.sends.push_back(send);
    }
    for (const RowReceive& receive : moves_.receives) {
      if (receive.from == rank) part.receives.push_back(receive);
    }
    return part;
  }

  const std::vector<std::byte> row_ = std::vector<std::byte>(8);
  RowMoves moves_{.post_id = 3, .time_rounds = true};
};

TEST_F(LedgerOfPartTest, RoundsCountTheRowsOfThePartAlone) {
  TransferLedger whole(moves_);
  TransferLedger part(PartWith(RankId{1}), whole);
  const auto all = [](RankId) { return true; };
  ASSERT_EQ(part.CurrentRound(all).size(), 1U);
  part.FinishSend(part.CurrentRound(all).front());
  ASSERT_EQ(part.CurrentRound(all).size(), 1U);
  EXPECT_EQ(part.CurrentRound(all).front().row.round, 2) << "round 1 is another part's";
  EXPECT_EQ(whole.CurrentRound(all).front().row.round, 1);
}

TEST_F(LedgerOfPartTest, TheWholeKeepsTheSumsOfItsParts) {
  moves_.keep_sums = true;
  TransferLedger whole(moves_);
  TransferLedger part(PartWith(RankId{1}), whole);
  part.NoteSent(part.outgoing()[1], /*offset=*/2, /*num_bytes=*/6, /*checksum=*/17);
  ASSERT_EQ(whole.progress().sent.size(), 1U);
  EXPECT_EQ(whole.progress().sent[0].send, 2U) << "round 1 is another part's";
  EXPECT_EQ(whole.progress().sent[0].offset, 2);
  EXPECT_EQ(whole.progress().sent[0].num_bytes, 6);
  EXPECT_EQ(whole.progress().sent[0].checksum, 17U);
}

TEST_F(LedgerOfPartTest, TheWholeKnowsWhatThePartsAreTold) {
  TransferLedger whole(moves_);
  TransferLedger first(PartWith(RankId{1}), whole);
  TransferLedger second(PartWith(RankId{2}), whole);
  second.NoteBegun(1);
  EXPECT_LT(whole.progress().rounds[1].began, absl::InfiniteFuture());
  second.AddReceived(*second.Find(RankId{2}, 9), 8);
  second.FinishSend(second.outgoing()[0]);
  EXPECT_TRUE(second.complete());
  EXPECT_TRUE(whole.outgoing()[1].done);
  EXPECT_EQ(whole.progress().received_bytes, 8);
  EXPECT_EQ(whole.progress().rounds[1].sent_bytes, 8);
  EXPECT_FALSE(whole.complete());
  for (TransferLedger::Outgoing& outgoing : first.outgoing()) first.FinishSend(outgoing);
  EXPECT_TRUE(whole.complete());
  EXPECT_EQ(whole.progress().sent_bytes, 24);
}

}  // namespace
}  // namespace eplb
