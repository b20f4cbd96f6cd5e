// The tree that the ranks of a TCP control channel form, and one rank's connections in it.
#ifndef EPLB_CLIENT_CONTROL_TREE_NEIGHBOURS_H_
#define EPLB_CLIENT_CONTROL_TREE_NEIGHBOURS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "client/control/control_frame.h"
#include "client/control/meeting.h"
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
  bool answered = false;  // a child: its kUp or kReport of the running call is here
};

// What one neighbour did: a frame, or nothing when it is gone.
struct NeighbourEvent {
  Neighbour* from = nullptr;
  std::optional<ControlFrame> frame;
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

#endif  // EPLB_CLIENT_CONTROL_TREE_NEIGHBOURS_H_
