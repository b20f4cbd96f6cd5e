// How the bytes of rows get from live memory into a receiver's staging. LinkTransport does the
// rest: who has posted, what is owed, who is gone, what was agreed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/rows/peer_links.h"
#include "client/rows/row_message.h"
#include "client/rows/transfer_ledger.h"

namespace eplb {

// Threads: one caller. Nothing here waits, but for Close.
class RowPath {
 public:
  virtual ~RowPath() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view fallback_reason() const { return ""; }  // see Transport
  virtual std::span<std::byte> staging() = 0;
  // Rows go only between ranks that say the same while the post is open.
  virtual int32_t way() const { return 0; }

  // A post begins. `ledger` and `links` stay until Close. errors: InvalidArgument for moves that
  // this path cannot make, Internal; the post is refused.
  virtual absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) = 0;
  // Moves what can move now; true when something did. Tells the ledger of rows that have left our
  // memory and of bytes that are in staging and checked. errors: as Transport::Poll.
  virtual absl::StatusOr<bool> Advance() = 0;
  // Something is under way of which no connection will tell.
  virtual bool busy() const = 0;
  // Names what the path itself waits for, for the message of a deadline; empty if for nothing.
  virtual std::string Waiting() const { return ""; }

  // Returns the target for the payload of `frame`, which has frame.bytes bytes; empty drops a
  // payload that is no longer needed. Also called for a frame without payload. A row's frame
  // belongs to the open post and matches the agreement. errors: DataLoss for a frame that this path
  // does not send.
  virtual absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                                     const RowMessage& frame) = 0;
  // The frame and its payload are here. errors: DataLoss.
  virtual absl::Status Take(const PeerLink& link, const RowMessage& frame) = 0;

  // The open post, if any, is over: as done, or else as Transport::Abort, whose errors it has.
  virtual absl::Status Close(bool done) = 0;

  // See Transport.
  virtual bool is_whole() const { return true; }
  virtual absl::Status DropShared() { return absl::OkStatus(); }
};

}  // namespace eplb
