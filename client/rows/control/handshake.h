// Mutual proof that both ends of a connection have the run's secret. No other byte is sent or used
// on a connection before it; later bytes are not encrypted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

// Purpose of a connection. The proof covers it, so that a connection of one purpose cannot be used
// for another.
enum class ConnectionRole : uint32_t { kControl = 1, kRows = 2 };

// One side of one handshake, driven by its owner's poll loop:
//   dialler   -> "EPLBHS01", role, its rank, the wanted rank, nonce        52 bytes
//   answerer  -> nonce, HMAC-SHA256(secret, "answer", hello, both nonces)  64 bytes
//   dialler   -> HMAC-SHA256(secret, "dial", hello, both nonces)           32 bytes
//   answerer  -> 1 byte, from Admit
// No more is read from a peer that has not proved itself. Threads: one caller.
class Handshake {
 public:
  struct Options {
    std::string secret;
    ConnectionRole role = ConnectionRole::kControl;
    RankId self;
  };
  static Handshake Dial(const Options& options, RankId peer);
  static Handshake Answer(const Options& options);

  // Goes on as far as the socket allows without waiting. True: the peer has proved itself and, for
  // a dialler, has admitted this rank. errors: Unavailable if the peer closed; Unauthenticated for
  // wrong bytes, role, rank or secret.
  absl::StatusOr<bool> Step(int fd);
  bool wants_write() const { return sent_ < out_.size(); }
  // The other rank; valid for an answerer once Step returned true.
  RankId peer() const { return peer_; }
  // Sends the answerer's last byte, after which the dialler may use the connection. errors:
  // Unavailable.
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
  Stage stage_ = Stage::kHello;  // message that is read next
  std::vector<std::byte> hello_;
  Bytes32 own_nonce_{};
  Bytes32 answer_nonce_{};
  std::vector<std::byte> in_;
  size_t needed_ = 0;
  std::vector<std::byte> out_;
  size_t sent_ = 0;
};

}  // namespace eplb
