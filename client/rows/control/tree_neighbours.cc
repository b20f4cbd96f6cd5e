// The shape of the control tree, and the one loop that reads from all neighbours.
#include "client/rows/control/tree_neighbours.h"

#include <algorithm>
#include <utility>

#include "client/rows/control/socket.h"

namespace eplb {
namespace {

constexpr int32_t kFanOut = 8;

}  // namespace

RankId ParentOf(RankId rank) { return RankId{(rank.value - 1) / kFanOut}; }

std::vector<RankId> ChildrenOf(RankId rank, int32_t world_size) {
  std::vector<RankId> children;
  const int64_t first = int64_t{rank.value} * kFanOut + 1;
  for (int64_t child = first; child < first + kFanOut && child < world_size; ++child) {
    children.push_back(RankId{static_cast<int32_t>(child)});
  }
  return children;
}

int32_t HeightOf(RankId rank, int32_t world_size) {
  int32_t height = 0;  // the leftmost path is the longest
  for (int64_t r = int64_t{rank.value} * kFanOut + 1; r < world_size; r = r * kFanOut + 1) {
    ++height;
  }
  return height;
}

TreeNeighbours::TreeNeighbours(RankId self, std::map<RankId, MetPeer>&& peers) {
  for (auto& [rank, peer] : peers) {
    Neighbour neighbour{.rank = rank, .connection = FrameConnection(std::move(peer.fd))};
    if (self.value != 0 && rank == ParentOf(self)) {
      parent_ = std::make_unique<Neighbour>(std::move(neighbour));
    } else {
      children_.push_back(std::move(neighbour));
    }
  }
}

void TreeNeighbours::ForgetAnswers() {
  for (Neighbour& child : children_) child.answered = false;
}

bool TreeNeighbours::AllAnswered() const {
  return std::ranges::all_of(children_,
                             [](const Neighbour& child) { return child.answered || child.gone; });
}

std::vector<NeighbourEvent> TreeNeighbours::Receive(absl::Time until) {
  std::vector<NeighbourEvent> events;
  const auto take = [&events](Neighbour& neighbour) {
    absl::StatusOr<std::optional<ControlMessage>> next = neighbour.connection.Next();
    if (!next.ok()) {
      neighbour.gone = true;
      events.push_back(
          {.from = &neighbour, .frame = std::nullopt, .why = std::string(next.status().message())});
    } else if (next->has_value()) {
      events.push_back({.from = &neighbour, .frame = *std::move(next)});
    }
  };
  std::vector<pollfd> polled;
  std::vector<Neighbour*> neighbours;
  const auto poll_too = [&](Neighbour& neighbour) {
    if (!neighbour.gone && neighbour.connection.has_bytes()) take(neighbour);
    if (neighbour.gone) return;
    polled.push_back({.fd = neighbour.connection.fd(), .events = POLLIN, .revents = 0});
    neighbours.push_back(&neighbour);
  };
  if (parent_ != nullptr) poll_too(*parent_);
  for (Neighbour& child : children_) poll_too(child);
  while (events.empty()) {
    const absl::StatusOr<int> ready = PollUntil(polled, until);
    if (!ready.ok() || *ready == 0) return {};
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) take(*neighbours[i]);
    }
  }
  return events;
}

void TreeNeighbours::HangUp() {
  if (parent_ != nullptr) parent_->connection.FinishSending();
  for (Neighbour& child : children_) child.connection.FinishSending();
}

}  // namespace eplb
