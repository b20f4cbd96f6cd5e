// What travels on a connection of the control tree, and the reading of it without waiting.
#ifndef EPLB_CLIENT_ROWS_CONTROL_CONTROL_MESSAGE_H_
#define EPLB_CLIENT_ROWS_CONTROL_CONTROL_MESSAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/meeting.h"
#include "client/rows/control/socket.h"
#include "placement/ids.h"

namespace eplb {

inline constexpr size_t kMaxVoteValues = 64;

enum class ControlMessageType : uint8_t {
  kUp = 1,  // child to parent: the minimum over the child's subtree
  kDown,    // parent to child: the result
  kQuery,   // parent to child: something is wrong; whom do you miss?
  kReport,  // child to parent: I miss these ranks (perhaps none) and give up
  kAbort,   // parent to child: over; these ranks are missing
};
enum class ControlOp : uint8_t { kBarrier = 0, kAllReduceMin = 1, kFarewell = 2 };

struct ControlMessage {
  ControlMessageType type = ControlMessageType::kUp;
  ControlOp op = ControlOp::kBarrier;
  bool blame_late = false;  // kQuery, kReport: a deadline passed, so who is merely late counts too
  uint64_t call = 0;        // collectives since the start, from 1
  std::vector<int64_t> values;  // at most kMaxVoteValues
  std::vector<RankId> ranks;    // at most kMaxFrameRanks, the rest is cut
  std::string why;              // at most kMaxFrameText bytes, the rest is cut
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
  // The next frame that has come, or nothing. errors: Unavailable when the peer is gone and every
  // frame of it was returned; DataLoss for bytes that are no frame.
  absl::StatusOr<std::optional<ControlMessage>> Next();
  // Lets what was sent arrive and then closes our direction.
  void FinishSending();

 private:
  absl::StatusOr<std::optional<ControlMessage>> Parse();

  Fd fd_;
  std::string in_;  // at most one frame and a read
};

// The tree that the ranks of a TCP control channel form, and one rank's connections in it.

// Rank 0 is the root; rank r's children are 8r+1..8r+8. REQUIRES for ParentOf: rank is not 0.
RankId ParentOf(RankId rank);
std::vector<RankId> ChildrenOf(RankId rank, int32_t world_size);
// Levels below `rank`: 0 for a leaf. 8 ranks have 1, 73 have 2, 585 have 3.
int32_t HeightOf(RankId rank, int32_t world_size);

struct Neighbour {
  RankId rank;
  FrameConnection connection;
  bool gone = false;
  bool answered = false;  // a child: its kUp or kReport of the running call is here
};

// What one neighbour did: a frame, or nothing when it is gone.
struct NeighbourEvent {
  Neighbour* from = nullptr;
  std::optional<ControlMessage> frame;
  std::string why;  // of being gone
};

// Threads: one caller.
class TreeNeighbours {
 public:
  TreeNeighbours(RankId self, std::map<RankId, MetPeer>&& peers);

  Neighbour* parent() const { return parent_.get(); }  // null at the root
  std::vector<Neighbour>& children() { return children_; }

  void ForgetAnswers();
  // Every child has answered or is gone.
  bool AllAnswered() const;
  // One frame, or the end, of every neighbour that has something; empty only when `until` has
  // passed.
  std::vector<NeighbourEvent> Receive(absl::Time until);
  // Peers read what was sent before and then find us gone. The descriptors stay until the end: to
  // close one with unread bytes could destroy what was sent.
  void HangUp();

 private:
  std::unique_ptr<Neighbour> parent_;
  std::vector<Neighbour> children_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_CONTROL_CONTROL_MESSAGE_H_
