#include "client/migration/link_set.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "client/control/meeting.h"
#include "client/control/socket.h"

namespace eplb {
namespace {

void TellOne(PeerLink& link, const RowFrame& frame) {
  if (link.gone()) return;
  link.Queue(frame);
  link.Flush();
}

}  // namespace

LinkSet::LinkSet(std::vector<PeerLink> links) : links_(std::move(links)) {
  for (size_t i = 0; i < links_.size(); ++i) index_[links_[i].rank()] = i;
}

PeerLink* LinkSet::Find(RankId peer) {
  const auto found = index_.find(peer);
  return found == index_.end() ? nullptr : &links_[found->second];
}

void LinkSet::Tell(std::span<const RankId> peers, const RowFrame& frame) {
  for (const RankId peer : peers) {
    if (PeerLink* link = Find(peer); link != nullptr) TellOne(*link, frame);
  }
}

void LinkSet::TellAll(const RowFrame& frame) {
  for (PeerLink& link : links_) TellOne(link, frame);
}

std::string LinkSet::DescribeGone(std::span<const RankId> among) {
  std::vector<RankId> gone;
  std::string why;
  for (const RankId peer : among) {
    const PeerLink& link = Of(peer);
    if (!link.gone()) continue;
    gone.push_back(peer);
    if (why.empty()) why = link.gone_why();
  }
  if (gone.empty()) return "";
  return absl::StrCat(NameRanks(gone), gone.size() == 1 ? " is gone (" : " are gone (", why, ")");
}

absl::Status LinkSet::Wait(absl::Time until) const {
  std::vector<pollfd> polled;
  for (const PeerLink& link : links_) {
    if (link.gone()) continue;
    const int events = link.has_output() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = link.fd(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  return PollUntil(polled, until).status();
}

void LinkSet::HangUp() {
  for (PeerLink& link : links_) link.HangUp();
}

}  // namespace eplb
