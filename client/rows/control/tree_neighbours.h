// The tree that the ranks of a TCP control channel form, and one rank's connections in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "client/rows/control/control_message.h"
#include "client/rows/control/meeting.h"
#include "placement/ids.h"

namespace eplb {

// Rank 0 is the root; rank r's children are 8r+1..8r+8. REQUIRES for ParentOf: rank is not 0.
RankId ParentOf(RankId rank);
std::vector<RankId> ChildrenOf(RankId rank, int32_t world_size);
// Levels below `rank`: 0 for a leaf. 8 ranks have 1, 73 have 2, 585 have 3.
int32_t HeightOf(RankId rank, int32_t world_size);

struct Neighbour {
  RankId rank;
  FrameConnection connection;
  bool gone = false;
  bool answered = false;  // a child: its kUp or kReport of the running call has arrived
};

// Event of one neighbour: a frame, or none if the neighbour is lost.
struct NeighbourEvent {
  Neighbour* from = nullptr;
  std::optional<ControlMessage> frame;
  std::string why = {};  // cause of the loss
};

// Threads: one caller.
class TreeNeighbours {
 public:
  TreeNeighbours(RankId self, std::map<RankId, MetPeer>&& peers);

  Neighbour* parent() const { return parent_.get(); }  // null at the root
  std::vector<Neighbour>& children() { return children_; }

  void ForgetAnswers();
  // True if every child has answered or is lost.
  bool AllAnswered() const;
  // Returns one frame, or the end, of every neighbour that has one; empty only after `until`, or if
  // the thread's WaitCheck failed.
  std::vector<NeighbourEvent> Receive(absl::Time until);
  // Ends this rank's side: peers read the bytes that were sent, then the end. The descriptors stay
  // open, because closing one with unread bytes could destroy bytes that were sent.
  void HangUp();

 private:
  std::unique_ptr<Neighbour> parent_;
  std::vector<Neighbour> children_;
};

}  // namespace eplb
