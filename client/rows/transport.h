// Moves rows from the live memory of one GPU into the staging of another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "placement/ids.h"

namespace eplb {

// A row is a contiguous piece of one registered tensor. `row` numbers it within the post, the same
// on both sides.
struct RowSend {
  RankId to;
  int32_t row = 0;
  int32_t round = 0;
  std::span<const std::byte> bytes;  // live memory; read until the ticket is done or Abort returned
  // In the receiver's arena. What rounds the row up to a multiple of 64 bytes belongs to it, as far
  // as the arena goes, and holds anything afterwards.
  int64_t staging_offset = 0;
};
struct RowReceive {
  RankId from;
  int32_t row = 0;
  int32_t round = 0;
  int64_t staging_offset = 0;  // in our arena
  int64_t num_bytes = 0;
};
// When this rank moved the rows of a round: from the first that it began to send or saw arrive to
// its last. MonotonicNow().
struct RoundTimes {
  int32_t round = 0;
  absl::Time began = absl::InfiniteFuture();
  absl::Time ended = absl::InfinitePast();
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  absl::Duration checksum = absl::ZeroDuration();  // part of it spent on the CPU's checksums
};
struct RowMoves {
  uint64_t post_id = 0;  // equal on all ranks, rising; a row of another post is never accepted
  std::vector<RowSend> sends = {};        // by round
  std::vector<RowReceive> receives = {};  // by round
  absl::Time deadline = absl::InfiniteFuture();
  // The deadline is for moving rows. Until `begin_by` it is put off while this rank waits for
  // `stream`, while a peer has not begun the post, and while the shared parts are not up.
  absl::Time begin_by = absl::InfinitePast();
  // The cudaStream_t that the rows' tensors are written on: what it holds at Post comes first. Null
  // in host memory.
  void* stream = nullptr;
  bool time_rounds = false;  // a reading of the clock for each piece of a row
  bool keep_sums = false;    // Progress says what was sent
};
// Bytes of a row as they were sent.
struct SentPiece {
  size_t send = 0;     // index into RowMoves::sends
  int64_t offset = 0;  // in the row
  int64_t num_bytes = 0;
  uint64_t checksum = 0;  // cuda::ChecksumOnHost of them, which the receiver found in staging too
};

using Ticket = int64_t;

struct Progress {
  bool done = false;  // all receives are in staging with matching checksums and all sends have left
                      // our memory
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  std::vector<RoundTimes> rounds =
      {};  // with time_rounds: those that this rank has rows of, rising
  // With keep_sums, once done: all bytes of all sends; fewer from a transport that does not say.
  std::vector<SentPiece> sent = {};
};

// One post at a time; a post may begin while peers are still in the one before. In a round a rank
// sends to at most one rank and receives from at most one. The transports that need this refuse
// other posts. Threads: one caller. Peers write the arena only between Post and the end of that
// post.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Why the name is no longer the first one: what carried the rows was given up. Empty till then.
  virtual std::string_view fallback_reason() const { return ""; }
  // The staging arena of this rank, allocated once, 64-byte aligned.
  virtual std::span<std::byte> staging() = 0;

  // errors: InvalidArgument for a row outside an arena or above the transport's largest row, for
  // rows that overlap in staging, for a bad rank, and for a post_id that does not rise.
  // FailedPrecondition while another post is open, or when a peer of this post is known to be gone.
  // The peers are told of a refused post that it ended here, so that they do not wait for it.
  virtual absl::StatusOr<Ticket> Post(RowMoves moves) = 0;
  // Makes progress for at most `max_wait`. errors, which name the peer: DeadlineExceeded (it still
  // owes rows past the post's deadline), Unavailable (it is gone), Aborted (it ended this post),
  // DataLoss (a row's checksum differs, or the peer sent what was not agreed). Also Internal: the
  // device or NCCL failed. After an error the caller calls Abort; until then Poll returns the same
  // error. A ticket that is done may be polled again.
  virtual absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) = 0;
  // This rank does not post what its peers may post under this id: they are told not to wait.
  // REQUIRES: no open post.
  virtual void Refuse(uint64_t post_id) = 0;
  // Ends the open post, if any. When it returned OK, none of our own writes can still land
  // anywhere, and rows of that post that arrive later are dropped. Called on all ranks when a post
  // did not succeed on all of them, also where it did. errors: Internal when a write may still
  // land: this rank must not vote.
  virtual absl::Status Abort() = 0;
  // False when an Abort had to end this rank's part of what the ranks share, such as a
  // communicator. Every rank then calls DropShared, and the next post makes it anew.
  virtual bool is_whole() const { return true; }
  // errors: as Abort.
  virtual absl::Status DropShared() { return absl::OkStatus(); }
  // This rank posts nothing any more: every post that needs it, also a later one, ends on its peers
  // as one that was aborted here. REQUIRES: no open post.
  virtual void Leave() = 0;
};

// Options that all transports have in common.
struct TransportOptions {
  RankId rank;
  int32_t world_size = 1;
  int64_t staging_bytes = 0;
  std::string bind_address = "127.0.0.1";
  std::string secret;             // per run; peers prove it with an HMAC
  bool use_shared_memory = true;  // host: between ranks of one host; else TCP everywhere
  int64_t max_row_bytes = int64_t{1} << 32;
  absl::Duration connect_timeout = absl::Seconds(60);
  // The ranks that rows go to or come from, e.g. those of the EP group; all others when empty. It
  // is a connection each, so a large job names them. Symmetric: a names b if b names a.
  std::vector<RankId> peers;
  // Told why rows do not take the way one would hope for: to some ranks, during construction, or
  // from a post on.
  std::function<void(std::string_view line)> on_note = {};
};

// Rows in host memory: memfd shared memory between ranks of one host, TCP between hosts.
// Collective: calls `all_gather` once, also when this rank fails. Not for a forked child: there
// every call fails and the destructor disturbs no rank. errors: InvalidArgument, ResourceExhausted
// when the arena cannot be allocated, Unavailable when the address cannot be bound,
// DeadlineExceeded naming the ranks that did not come.
absl::StatusOr<std::unique_ptr<Transport>> MakeHostTransport(const TransportOptions& options,
                                                             const AllGather& all_gather);

}  // namespace eplb
