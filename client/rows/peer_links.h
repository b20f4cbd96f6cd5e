// The connections of a transport: frames out of a queue, frames in without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/rows/control/socket.h"
#include "client/rows/row_message.h"
#include "placement/ids.h"

namespace eplb {

// One peer of a transport: its connection, the bytes that are still to be written, and the frame
// that is being read. Threads: one caller. No call waits.
class PeerLink {
 public:
  struct Parts {
    RankId rank;
    Fd fd;
    int64_t staging_bytes = 0;  // size of the peer's arena
  };
  explicit PeerLink(Parts parts) : parts_(std::move(parts)) {}

  RankId rank() const { return parts_.rank; }
  int fd() const { return parts_.fd.get(); }
  int64_t staging_bytes() const { return parts_.staging_bytes; }

  // Ends the connection for good; the first reason stays.
  void Close(std::string why);
  // Ends this direction after the bytes that were sent.
  void HangUp();
  bool gone() const { return !gone_why_.empty(); }
  const std::string& gone_why() const { return gone_why_; }

  // Queues a header and its payload, if any. The payload's memory is read until it is sent, or
  // until Detach.
  void Queue(const RowMessage& frame, std::span<const std::byte> payload = {});
  // Writes as much as the socket takes.
  void Flush();
  bool has_output() const { return !output_.empty(); }
  // True if the connection has taken all that was queued.
  bool has_sent_all() const { return output_.empty() && !cannot_write_; }
  // Copies queued payload that is still unsent (at most one piece), because its source may change
  // now and the stream must go on.
  void Detach();

  // Returns the next header, if a complete one has arrived. A closed connection or a damaged header
  // closes the link. REQUIRES: the payload of the previous header was read.
  std::optional<RowMessage> ReadHeader();
  // Sets the target of the last header's payload; an empty target drops the payload.
  void ExpectPayload(size_t bytes, std::span<std::byte> target);
  // Reads payload; true once it is complete.
  bool ReadPayload();
  bool reading_payload() const { return payload_left_ > 0; }
  bool payload_is_dropped() const { return target_.empty(); }
  void DropPayload() { target_ = {}; }
  const RowMessage& header() const { return header_; }

  // State of posts that the peer has announced.
  std::optional<uint64_t> posted;  // it receives rows of this post
  int32_t posted_way = 0;          // RowPath::way() of that post
  // Newest post at whose end it dropped its part of the state that the ranks share.
  std::optional<uint64_t> dropped_shared;
  std::optional<uint64_t> passed;  // it has finished this post, which is still open here
  std::optional<uint64_t> ended;   // it has aborted posts up to this one

 private:
  struct Output {
    std::vector<std::byte> owned;      // if not empty, `bytes` is inside it
    std::span<const std::byte> bytes;  // still to be sent
  };

  Parts parts_;
  std::string gone_why_;
  std::deque<Output> output_;
  bool cannot_write_ = false;  // the peer has left; reading gives the reason
  RowMessage header_;
  size_t header_bytes_ = 0;
  std::span<std::byte> target_;
  size_t payload_left_ = 0;
};

// The connections of a rank to all its peers. Threads: one caller. Only Wait waits.
class LinkSet {
 public:
  explicit LinkSet(std::vector<PeerLink> links);

  std::span<PeerLink> all() { return links_; }
  // Null for a rank that is no peer.
  PeerLink* Find(RankId peer);
  // REQUIRES: `peer` is a peer.
  PeerLink& Of(RankId peer) { return *Find(peer); }

  // Sends a frame without payload to those of `peers` whose connection lives.
  void Tell(std::span<const RankId> peers, const RowMessage& frame);
  void TellAll(const RowMessage& frame);
  // Returns "ranks 2, 3 are gone (connection closed)"; empty if all connections live.
  std::string DescribeGone(std::span<const RankId> among);
  // Waits until a link can be read, or written if it has output, or until `until`. errors:
  // Internal.
  absl::Status Wait(absl::Time until) const;
  // Ends this side after the bytes that were sent, even if a forked child holds descriptors.
  void HangUp();

 private:
  std::vector<PeerLink> links_;
  std::map<RankId, size_t> index_;  // into links_
};

}  // namespace eplb
