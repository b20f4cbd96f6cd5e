// Writes and reads frames on the connections of a transport, without waiting.
#include "client/rows/peer_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

#include "base/wait_check.h"
#include "client/rows/control/meeting.h"

namespace eplb {
namespace {

// Limit of queued frames. A post queues headers and one detached piece; a peer that lets this much
// pile up does not read.
constexpr size_t kMaxQueuedFrames = 4096;

void TellOne(PeerLink& link, const RowMessage& frame) {
  if (link.gone()) return;
  link.Queue(frame);
  link.Flush();
}

}  // namespace

void PeerLink::Close(std::string why) {
  if (gone()) return;
  gone_why_ = std::move(why);
  output_.clear();
  target_ = {};
  payload_left_ = 0;
  parts_.fd.Reset();
}

void PeerLink::HangUp() {
  if (!gone()) (void)shutdown(fd(), SHUT_WR);
}

void PeerLink::Queue(const RowMessage& frame, std::span<const std::byte> payload) {
  if (gone()) return;
  if (output_.size() >= kMaxQueuedFrames) return Close("it does not read what it is sent");
  const RowMessage sealed = SealFrame(frame);
  const auto bytes = std::as_bytes(std::span(&sealed, 1));
  Output& header = output_.emplace_back();
  header.owned.assign(bytes.begin(), bytes.end());
  header.bytes = header.owned;
  if (!payload.empty()) output_.emplace_back().bytes = payload;
}

void PeerLink::Flush() {
  while (!output_.empty()) {
    Output& next = output_.front();
    const IoResult sent = SendSome(fd(), next.bytes);
    // The reading side finds the reason, after the last frames of the peer.
    if (sent.closed) {
      cannot_write_ = true;
      return output_.clear();
    }
    next.bytes = next.bytes.subspan(sent.bytes);
    if (!next.bytes.empty()) return;
    output_.pop_front();
  }
}

void PeerLink::Detach() {
  for (Output& output : output_) {
    if (!output.owned.empty()) continue;
    output.owned.assign(output.bytes.begin(), output.bytes.end());
    output.bytes = output.owned;
  }
}

std::optional<RowMessage> PeerLink::ReadHeader() {
  if (gone()) return std::nullopt;
  const auto bytes = std::as_writable_bytes(std::span(&header_, 1));
  while (header_bytes_ < bytes.size()) {
    const IoResult got = ReceiveSome(fd(), bytes.subspan(header_bytes_));
    header_bytes_ += got.bytes;
    if (got.closed) {
      Close("connection closed");
      return std::nullopt;
    }
    if (got.bytes == 0) return std::nullopt;
  }
  header_bytes_ = 0;
  return header_;
}

void PeerLink::ExpectPayload(size_t bytes, std::span<std::byte> target) {
  payload_left_ = bytes;
  target_ = target;
}

bool PeerLink::ReadPayload() {
  std::array<std::byte, 16384> scrap;
  while (payload_left_ > 0) {
    const bool dropped = target_.empty();
    const std::span<std::byte> into =
        dropped ? std::span(scrap).first(std::min(scrap.size(), payload_left_)) : target_;
    const IoResult got = ReceiveSome(fd(), into);
    payload_left_ -= got.bytes;
    if (!dropped && payload_left_ > 0) target_ = target_.subspan(got.bytes);
    if (got.closed) {
      Close("connection closed");
      return false;
    }
    if (got.bytes == 0) return false;
  }
  return true;
}

LinkSet::LinkSet(std::vector<PeerLink> links) : links_(std::move(links)) {
  for (size_t i = 0; i < links_.size(); ++i) index_[links_[i].rank()] = i;
}

PeerLink* LinkSet::Find(RankId peer) {
  const auto found = index_.find(peer);
  return found == index_.end() ? nullptr : &links_[found->second];
}

void LinkSet::Tell(std::span<const RankId> peers, const RowMessage& frame) {
  for (const RankId peer : peers) {
    if (PeerLink* link = Find(peer); link != nullptr) TellOne(*link, frame);
  }
}

void LinkSet::TellAll(const RowMessage& frame) {
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
  const absl::Status waited = PollUntil(polled, until).status();
  // Rows that are under way arrive first: only a later vote ends for a WaitCheck that failed.
  return CheckWait().ok() ? waited : absl::OkStatus();
}

void LinkSet::HangUp() {
  for (PeerLink& link : links_) link.HangUp();
}

}  // namespace eplb
