// Brings ranks together: dials some, waits for others, lets only those in that prove the secret.
#ifndef EPLB_CLIENT_ROWS_CONTROL_MEETING_H_
#define EPLB_CLIENT_ROWS_CONTROL_MEETING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/socket.h"
#include "placement/ids.h"

namespace eplb {

// Mutual proof that both ends of a connection know the run's secret. Nothing is sent or
// believed on a connection before it; what follows on it is not encrypted.

// What a connection is for; part of what is proved, so that a connection for one cannot be used as
// another.
enum class ConnectionRole : uint32_t { kControl = 1, kRows = 2 };

// One side of one handshake, driven by its owner's poll loop:
//   dialler   -> "EPLBHS01", role, its rank, the wanted rank, nonce        52 bytes
//   answerer  -> nonce, HMAC-SHA256(secret, "answer", hello, both nonces)  64 bytes
//   dialler   -> HMAC-SHA256(secret, "dial", hello, both nonces)           32 bytes
//   answerer  -> 1 byte, from Admit
// Nothing longer is ever read from a peer that has not proved itself. Threads: one caller.
class Handshake {
 public:
  struct Options {
    std::string secret;
    ConnectionRole role = ConnectionRole::kControl;
    RankId self;
  };
  static Handshake Dial(const Options& options, RankId peer);
  static Handshake Answer(const Options& options);

  // Goes on as far as the socket allows without waiting. true: the peer has proved itself (and, for
  // a dialler, has admitted us). errors: Unavailable when the peer closed; Unauthenticated when it
  // is a stranger: wrong bytes, role, rank or secret.
  absl::StatusOr<bool> Step(int fd);
  bool wants_write() const { return sent_ < out_.size(); }
  // The other rank; for an answerer valid once Step returned true.
  RankId peer() const { return peer_; }
  // The answerer's last byte: the dialler may use the connection. errors: Unavailable.
  static absl::Status Admit(int fd);

 private:
  enum class Stage { kHello, kChallenge, kProof, kAdmission, kDone };
  using Bytes32 = std::array<std::byte, 32>;

  explicit Handshake(const Options& options);
  void WriteHello();
  absl::Status OnHello();
  absl::Status OnChallenge();
  absl::Status OnProof();
  Bytes32 Mac(const char* label) const;

  Options options_;
  RankId peer_;
  Stage stage_ = Stage::kHello;  // what is read next
  std::vector<std::byte> hello_;
  Bytes32 own_nonce_{};
  Bytes32 answer_nonce_{};
  std::vector<std::byte> in_;
  size_t needed_ = 0;
  std::vector<std::byte> out_;
  size_t sent_ = 0;
};

struct MeetOptions {
  Handshake::Options handshake;
  struct Dial {
    RankId rank;
    std::vector<std::string> addresses;  // tried in turn, again and again until the deadline
  };
  std::vector<Dial> dial;
  std::vector<RankId> expect;              // ranks that dial us
  std::vector<const Listener*> listeners;  // where they do
  absl::Time deadline;
  absl::Duration handshake_timeout = absl::Seconds(5);  // of one connection that has not proved
                                                        // itself
};

struct MetPeer {
  Fd fd;
  std::string address;     // dialled, or of the listener the peer came to
  std::string first_miss;  // why the first address was not taken; empty when it was
};

struct Meeting {
  std::map<RankId, MetPeer> peers;
  int64_t strangers = 0;  // connections to us that were dropped
};

// One poll loop for all connections, so that neither a stranger nor a silent connection holds up
// the others; at most expect.size() + 64 unproved connections are kept, the oldest gives way.
// Collective among the ranks named. errors: DeadlineExceeded naming the ranks that did not come,
// `what` first; what socket.h reports.
absl::StatusOr<Meeting> MeetPeers(std::string_view what, const MeetOptions& options);

// "rank 3", "ranks 1, 2, 5"; at most 16 are written out.
std::string NameRanks(std::vector<RankId> ranks);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_CONTROL_MEETING_H_
