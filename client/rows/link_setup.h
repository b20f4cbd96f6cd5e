// Brings the ranks of a transport together: addresses, proved connections, and a descriptor of each
// rank's staging for the peers on its host.
#ifndef EPLB_CLIENT_ROWS_LINK_SETUP_H_
#define EPLB_CLIENT_ROWS_LINK_SETUP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/control/socket.h"
#include "client/rows/row_message.h"
#include "client/rows/transport.h"
#include "placement/ids.h"

namespace eplb {

// One peer of a transport: its connection, what is still to be written to it, and the frame that is
// being read from it.

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
  void Queue(const RowMessage& frame, std::span<const std::byte> payload = {});
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
  std::optional<RowMessage> ReadHeader();
  // Where the payload of the last header goes; an empty target drops it.
  void ExpectPayload(size_t bytes, std::span<std::byte> target);
  // True when the payload is complete.
  bool ReadPayload();
  bool reading_payload() const { return payload_left_ > 0; }
  bool payload_is_dropped() const { return target_.empty(); }
  void DropPayload() { target_ = {}; }
  const RowMessage& header() const { return header_; }

  // What the peer has told about posts.
  std::optional<uint64_t> posted;  // it receives rows of this post
  int32_t posted_way = 0;          // by this way
  // The newest post at whose end it dropped its part of what the ranks share.
  std::optional<uint64_t> dropped_shared;
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
  RowMessage header_;
  size_t header_bytes_ = 0;
  std::span<std::byte> target_;
  size_t payload_left_ = 0;
};

// The connections of a rank to all its peers.

// Threads: one caller. Nothing here waits, but for Wait.
class LinkSet {
 public:
  explicit LinkSet(std::vector<PeerLink> links);

  std::span<PeerLink> all() { return links_; }
  // Null for a rank that is no peer.
  PeerLink* Find(RankId peer);
  // REQUIRES: it is a peer.
  PeerLink& Of(RankId peer) { return *Find(peer); }

  // Sends a frame without payload to those of `peers` that are there.
  void Tell(std::span<const RankId> peers, const RowMessage& frame);
  void TellAll(const RowMessage& frame);
  // "ranks 2, 3 are gone (connection closed)"; empty when all are there.
  std::string DescribeGone(std::span<const RankId> among);
  // Until something can be read, or written where that is wanted, or `until`. errors: Internal.
  absl::Status Wait(absl::Time until) const;
  // Lets what was sent arrive, also where a forked child holds descriptors.
  void HangUp();

 private:
  std::vector<PeerLink> links_;
  std::map<RankId, size_t> index_;  // into links_
};

// What every rank tells all others, as six lines of text.
struct LinkAddress {
  std::string tcp;        // "10.0.0.1:4711"
  std::string unix_name;  // "@eplb-rows-...", empty without one
  std::string boot_id;    // empty when unknown
  int64_t staging_bytes = 0;
  std::string staging_text;  // of SharedStaging

  std::string Encode() const;
  // errors: InvalidArgument.
  static absl::StatusOr<LinkAddress> Decode(const std::string& text);
};

// What a rank gives its peers so that they can write into its staging; nothing when they cannot.
struct SharedStaging {
  int descriptor = -1;  // handed over unix sockets, where there is one
  std::string text;     // one line, to all ranks
};

struct LinkParts {
  struct Peer {
    PeerLink link;
    std::string staging_text;
    // Of a peer on this host that shares its staging, else why there is none.
    absl::StatusOr<Fd> descriptor;
  };
  std::vector<Peer> peers;  // rising by rank
};

// Calls `all_gather` once, whatever happens, so that the ranks' next all-gathers stay side by side.
// own: an error when this rank could not make its staging: it is returned here, and the others fail
// with it by its name. errors: as MakeHostTransport.
absl::StatusOr<LinkParts> SetUpLinks(const TransportOptions& options,
                                     const absl::StatusOr<SharedStaging>& own,
                                     const AllGather& all_gather);

// Which peers cannot be reached by the way one had hoped for, told once per reason.
class LinkNotes {
 public:
  void Add(RankId rank, std::string_view why);
  // "rows to ranks 1, 2 go over the socket: another host".
  void Tell(const TransportOptions& options, std::string_view how) const;

 private:
  std::map<std::string, std::vector<RankId>> ranks_;  // by reason
};

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_LINK_SETUP_H_
