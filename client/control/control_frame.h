// What travels on a connection of the control tree, and the reading of it without waiting.
#ifndef EPLB_CLIENT_CONTROL_CONTROL_FRAME_H_
#define EPLB_CLIENT_CONTROL_CONTROL_FRAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/control/socket.h"
#include "placement/ids.h"

namespace eplb {

inline constexpr size_t kMaxVoteValues = 64;

enum class ControlFrameType : uint8_t {
  kUp = 1,  // child to parent: the minimum over the child's subtree
  kDown,    // parent to child: the result
  kQuery,   // parent to child: something is wrong; whom do you miss?
  kReport,  // child to parent: I miss these ranks (perhaps none) and give up
  kAbort,   // parent to child: over; these ranks are missing
};
enum class ControlOp : uint8_t { kBarrier = 0, kAllReduceMin = 1, kFarewell = 2 };

struct ControlFrame {
  ControlFrameType type = ControlFrameType::kUp;
  ControlOp op = ControlOp::kBarrier;
  bool blame_late = false;  // kQuery, kReport: a deadline passed, so who is merely late counts too
  uint64_t call = 0;        // collectives since the start, from 1
  std::vector<int64_t> values;  // at most kMaxVoteValues
  std::vector<RankId> ranks;    // at most kMaxFrameRanks, the rest is cut
  std::string why;              // at most kMaxFrameText bytes, the rest is cut
};
inline constexpr size_t kMaxFrameRanks = 4096;
inline constexpr size_t kMaxFrameText = 512;

std::string EncodeFrame(const ControlFrame& frame);

// A proved connection to a neighbour in the tree. Threads: one caller.
class FrameConnection {
 public:
  explicit FrameConnection(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // errors: Unavailable when the peer is gone, DeadlineExceeded.
  absl::Status Send(const ControlFrame& frame, absl::Time deadline);
  // The next frame that has come, or nothing. errors: Unavailable when the peer is gone and every
  // frame of it was returned; DataLoss for bytes that are no frame.
  absl::StatusOr<std::optional<ControlFrame>> Next();
  // Lets what was sent arrive and then closes our direction.
  void FinishSending();

 private:
  absl::StatusOr<std::optional<ControlFrame>> Parse();

  Fd fd_;
  std::string in_;  // at most one frame and a read
};

}  // namespace eplb

#endif  // EPLB_CLIENT_CONTROL_CONTROL_FRAME_H_
