#include "client/migration/peer_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

namespace eplb {
namespace {

// Headers and one detached piece are queued per post; a peer that lets this much pile up reads
// nothing any more.
constexpr size_t kMaxQueuedFrames = 4096;

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

void PeerLink::Queue(const RowFrame& frame, std::span<const std::byte> payload) {
  if (gone()) return;
  if (output_.size() >= kMaxQueuedFrames) return Close("it does not read what it is sent");
  const RowFrame sealed = SealFrame(frame);
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
    // The reading side gives the reason, after what the peer still said.
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

std::optional<RowFrame> PeerLink::ReadHeader() {
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

}  // namespace eplb
