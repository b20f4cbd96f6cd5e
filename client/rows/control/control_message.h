// Messages on a connection of the control tree, and a reader that does not wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/socket.h"
#include "placement/ids.h"

namespace eplb {

inline constexpr size_t kMaxVoteValues = 64;

enum class ControlMessageType : uint8_t {
  kUp = 1,  // child to parent: the minimum over the child's subtree
  kDown,    // parent to child: the result
  kQuery,   // parent to child: a call failed; which ranks are missing?
  kReport,  // child to parent: these ranks (perhaps none) are missing, and the child gives up
  kAbort,   // parent to child: the channel ends; these ranks are missing
};
enum class ControlOp : uint8_t { kBarrier = 0, kAllReduceMin = 1, kFarewell = 2 };

struct ControlMessage {
  ControlMessageType type = ControlMessageType::kUp;
  ControlOp op = ControlOp::kBarrier;
  bool blame_late = false;  // kQuery, kReport: a deadline passed, so late ranks are missing, too
  uint64_t call = 0;        // collectives since the start, from 1
  std::vector<int64_t> values = {};  // at most kMaxVoteValues
  std::vector<RankId> ranks = {};    // at most kMaxFrameRanks, the rest is cut
  std::string why = {};              // at most kMaxFrameText bytes, the rest is cut
};
inline constexpr size_t kMaxFrameRanks = 4096;
inline constexpr size_t kMaxFrameText = 512;

std::string EncodeFrame(const ControlMessage& frame);

// A proved connection to a neighbour in the tree. Threads: one caller.
class FrameConnection {
 public:
  explicit FrameConnection(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // errors: Unavailable when the peer is gone, DeadlineExceeded.
  absl::Status Send(const ControlMessage& frame, absl::Time deadline);
  // Returns the next frame that has arrived, if any. errors: Unavailable if the peer is lost and
  // every frame of it was returned; DataLoss for bytes that are no frame.
  absl::StatusOr<std::optional<ControlMessage>> Next();
  // True if bytes were read that Next has not returned: perhaps a frame.
  bool has_bytes() const { return !in_.empty(); }
  // Closes this direction after the bytes that were sent.
  void FinishSending();

 private:
  absl::StatusOr<std::optional<ControlMessage>> Parse();

  Fd fd_;
  std::string in_;  // at most one frame and a read
};

}  // namespace eplb
