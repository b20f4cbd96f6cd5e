// One rank's end of the connection with one peer, during a group: who sends waits until the other
// end receives, as NCCL's kernels do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/support/fake_nccl/mesh.h"
#include "tests/support/fake_nccl/plans.h"

namespace eplb::fake_nccl {

struct Outcome {
  ncclResult_t result = ncclSuccess;
  std::string text;
};

// Sizes that one rank sends to and receives from a peer in a group: sums over sizes in their order.
struct GroupShape {
  uint64_t number = 0;  // number among the groups with this peer
  uint64_t sends = 0;
  uint64_t receives = 0;
  uint64_t sent_sizes = 0;
  uint64_t received_sizes = 0;
  // NCCL's kernels write straight into memory that is registered, where both ends know of it.
  uint64_t registered_sends = 0;
  uint64_t registered_receives = 0;
};

struct Frame {
  enum Kind : uint64_t { kGroup, kPrepared, kData };
  uint64_t kind = kGroup;
  uint64_t bytes = 0;  // kPrepared and kData only
  GroupShape shape;    // kGroup only
};

// Threads: one.
class Link {
 public:
  Link(Descriptor socket, int32_t rank, int32_t peer);

  // Tells the peer what this group has for it; the peer's own word must agree.
  void BeginGroup(const std::vector<Operation>& operations);
  // Operations of the plan that runs now. They outlive it.
  void Post(const Operation& operation);
  bool idle() const { return sends_.empty() && receives_.empty() && outgoing_.empty(); }

  int socket() const { return socket_.get(); }
  short wanted_events() const;
  // Moves what can move without waiting.
  Outcome Progress();

 private:
  struct Outgoing {
    Frame frame;
    const Operation* payload = nullptr;
    size_t done = 0;  // bytes of frame and payload
  };

  void Queue(const Frame& frame, const Operation* payload);
  void MatchSends();
  Outcome CompareShapes();
  // Checks that the bytes to send have not changed since the call.
  Outcome CheckUnchanged(const Operation& send) const;
  Outcome Write();
  Outcome Read();
  Outcome Take(const Frame& frame);
  std::string Named(const std::string& text) const;

  Descriptor socket_;
  int32_t rank_;
  int32_t peer_;
  bool ended_ = false;  // the peer has closed its end
  uint64_t num_groups_ = 0;
  std::optional<GroupShape> own_shape_;  // not compared yet
  std::deque<GroupShape> peer_shapes_;   // not compared yet
  size_t num_ready_ = 0;                 // receives of the peer that are not matched yet
  std::deque<const Operation*> sends_;   // not written yet
  size_t num_matched_ = 0;               // matched entries of sends_
  std::deque<const Operation*> receives_;
  std::deque<Outgoing> outgoing_;
  std::array<std::byte, sizeof(Frame)> head_ = {};
  size_t head_done_ = 0;
  size_t payload_left_ = 0;  // payload of the first receive, when its frame has come
};

}  // namespace eplb::fake_nccl
