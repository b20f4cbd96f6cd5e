// Open sends and receives of one post, for the transports that move rows themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "client/rows/row_message.h"
#include "client/rows/transport.h"

namespace eplb {

// Limits of a transport.
struct MoveLimits {
  RankId self;
  int64_t max_row_bytes = 0;
  uint64_t last_post_id = 0;
  bool posted_before = false;
  int64_t staging_bytes = 0;  // size of our arena
  // Bytes of a peer's arena; negative for a rank that is no peer.
  std::function<int64_t(RankId)> peer_staging_bytes;
};

// errors: InvalidArgument as Transport::Post says, naming the row and the limit.
absl::Status CheckMoves(const RowMoves& moves, const MoveLimits& limits);

class TransferLedger {
 public:
  struct Incoming {
    RowReceive row;
    int64_t announced = 0;  // bytes that the sender told of
    int64_t received = 0;   // bytes in staging with matching checksums
    bool arrived = false;   // all bytes are in staging: what is left to do does not need the sender
    bool done = false;
  };
  struct Outgoing {
    RowSend row;
    int64_t sent = 0;        // bytes handed over
    bool announced = false;  // something was: a row may be empty
    bool done = false;       // and left our memory
  };

  // REQUIRES: CheckMoves said ok.
  explicit TransferLedger(const RowMoves& moves);
  // For a path that carries only some rows of `whole`: the ledger of these, where rounds count
  // these alone. It tells `whole`, which outlives it, of rows that are sent or received, of their
  // sums and of the times of rounds. REQUIRES: the rows of `part` are rows of `whole`, in their
  // order there.
  TransferLedger(const RowMoves& part, TransferLedger& whole);

  uint64_t post_id() const { return post_id_; }
  absl::Time deadline() const { return deadline_; }
  void PutOffDeadline(absl::Duration by) { deadline_ += by; }
  const Progress& progress() const { return progress_; }
  bool complete() const { return incoming_left_ == 0 && outgoing_left_ == 0; }

  // Something of a round begins now, of which this rank has rows; looked at in a post that is
  // timed.
  void NoteBegun(int32_t round);
  // Returns the checksum of a row of this round. cost: see cuda::ChecksumOnHost.
  uint64_t ChecksumOnHost(int32_t round, std::span<const std::byte> bytes);

  // Null for a row that `from` does not owe.
  Incoming* Find(RankId from, int32_t row);
  void AddReceived(Incoming& incoming, int64_t bytes);
  // The sends of the lowest round with a row that is not done and whose receiver `ready` says may
  // be written to; empty when there is none. A peer that has not posted holds up no other.
  std::span<Outgoing> CurrentRound(const std::function<bool(RankId)>& ready);
  void FinishSend(Outgoing& outgoing);
  // These bytes of the row were handed over with this checksum; looked at in a post that keeps
  // sums.
  void NoteSent(const Outgoing& outgoing, int64_t offset, int64_t num_bytes, uint64_t checksum);
  // Returns the frame about these bytes of a row of the post.
  RowMessage FrameOf(RowMessageType type, const RowSend& row, int64_t offset, int64_t bytes,
                     uint64_t checksum) const;
  // In the order of RowMoves::sends.
  std::span<Outgoing> outgoing() { return outgoing_; }

  // Ranks that owe this rank rows or that it owes rows, rising.
  std::vector<RankId> PeersLeft() const;
  // Returns the members of PeersLeft without which the post cannot end, in rising order.
  std::vector<RankId> PeersNeeded() const;
  std::vector<RankId> Peers() const;  // the ranks of all rows, rising
  // "post 7: ranks 2, 3 owe 4 rows; rank 5 has not taken 1 row": DeadlineExceeded.
  absl::Status DeadlineError() const;

 private:
  std::set<RankId> RanksOf(bool (*owes)(const Incoming&), bool (*takes)(const Outgoing&)) const;
  // Null in a post that is not timed, and for a round that this rank has no rows of.
  RoundTimes* TimesOf(int32_t round);
  RoundTimes* NoteEnded(int32_t round);

  uint64_t post_id_;
  absl::Time deadline_;
  bool keeps_sums_;
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;                       // by round
  std::map<std::pair<int32_t, int32_t>, size_t> index_;  // (from, row) -> incoming_
  size_t incoming_left_ = 0;
  size_t outgoing_left_ = 0;
  size_t first_open_ = 0;  // all of outgoing_ before it is done
  Progress progress_;
  TransferLedger* whole_ = nullptr;     // null unless this is a part
  std::vector<size_t> sends_of_whole_;  // part only: outgoing_ in whole_->outgoing_
};

}  // namespace eplb
