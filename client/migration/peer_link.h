// One peer of a transport: its connection, what is still to be written to it, and the frame that is
// being read from it.
#ifndef EPLB_CLIENT_MIGRATION_PEER_LINK_H_
#define EPLB_CLIENT_MIGRATION_PEER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/control/socket.h"
#include "client/migration/row_frame.h"
#include "placement/ids.h"

namespace eplb {

// Threads: one caller. Nothing here waits.
class PeerLink {
 public:
  struct Parts {
    RankId rank;
    Fd fd;
    int64_t staging_bytes = 0;  // of the peer's arena
  };
  explicit PeerLink(Parts parts) : parts_(std::move(parts)) {}

  RankId rank() const { return parts_.rank; }
  int fd() const { return parts_.fd.get(); }
  int64_t staging_bytes() const { return parts_.staging_bytes; }

  // Ends the connection for good; the first reason stays.
  void Close(std::string why);
  // Lets what was sent arrive and tells the peer that no more comes.
  void HangUp();
  bool gone() const { return !gone_why_.empty(); }
  const std::string& gone_why() const { return gone_why_; }

  // Queues a header and its payload, if any, which is read until it is sent or Detach.
  void Queue(const RowFrame& frame, std::span<const std::byte> payload = {});
  // Writes what the socket takes.
  void Flush();
  bool has_output() const { return !output_.empty(); }
  // All that was queued has gone to a connection that still took it.
  bool has_sent_all() const { return output_.empty() && !cannot_write_; }
  // Copies queued payload that is still unsent (at most one piece): its source may change now, and
  // the stream must go on.
  void Detach();

  // The next header, or nothing when no complete one has come. REQUIRES: the payload of the one
  // before was read. A closed connection or a damaged header closes the link.
  std::optional<RowFrame> ReadHeader();
  // Where the payload of the last header goes; an empty target drops it.
  void ExpectPayload(size_t bytes, std::span<std::byte> target);
  // True when the payload is complete.
  bool ReadPayload();
  bool reading_payload() const { return payload_left_ > 0; }
  bool payload_is_dropped() const { return target_.empty(); }
  void DropPayload() { target_ = {}; }
  const RowFrame& header() const { return header_; }

  // What the peer has told about posts.
  std::optional<uint64_t> posted;  // it receives rows of this post
  int32_t posted_way = 0;          // by this way
  std::optional<uint64_t> passed;  // it was in this post, which is open here, and has gone on
  std::optional<uint64_t> ended;   // it has aborted posts up to this one

 private:
  struct Output {
    std::vector<std::byte> owned;      // when not empty, `bytes` lies in it
    std::span<const std::byte> bytes;  // still to be sent
  };

  Parts parts_;
  std::string gone_why_;
  std::deque<Output> output_;
  bool cannot_write_ = false;  // the peer has left; reading gives the reason
  RowFrame header_;
  size_t header_bytes_ = 0;
  std::span<std::byte> target_;
  size_t payload_left_ = 0;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_PEER_LINK_H_
