// The header of everything that ranks send each other on a proved connection about rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cuda/row_queue.h"

namespace eplb {

enum class RowMessageType : uint32_t {
  kPosted = 1,  // to all peers of a post: it is open here, its rows may come
  kPiece,       // the next bytes of a row, which follow the header
  kLanded,      // the next bytes of a row, which are in the receiver's staging already
  kEnded,       // either way: this post was aborted here
  kComing,      // the next bytes of a row, which come by NCCL
  kMeet,        // the id of the NCCL communicator to join, which follows the header
  kRegistered,  // this rank has registered its memory with that communicator, or has not
};

// A row travels on a connection in pieces of at most this, so that sending, checking and aborting
// never hold a caller for long: 256 KiB at 5 GB/s = 50 us.
inline constexpr int64_t kRowPieceBytes = int64_t{256} * 1024;
// Payload of kMeet.
inline constexpr int64_t kMeetBytes = 128;

// Little-endian on the wire. Frames about no row use only type and post_id. Some also use `round`:
// kPosted for its way, kEnded for 1 if the rank dropped what the ranks share, kRegistered for 1 as
// yes. kMeet also has bytes.
struct RowMessage {
  uint32_t magic = 0;
  RowMessageType type = RowMessageType::kPosted;
  int32_t row = 0;
  int32_t round = 0;
  uint64_t post_id = 0;
  int64_t row_bytes = 0;       // size of the whole row
  int64_t staging_offset = 0;  // offset of the row, compared with the agreed one, never used
  int64_t offset = 0;          // start of this piece in the row; pieces come in order
  int64_t bytes = 0;           // size of this piece
  uint64_t checksum = 0;       // checksum of this piece's bytes at the source
  uint64_t header_checksum = 0;
};
static_assert(sizeof(RowMessage) == 72 && std::is_trivially_copyable_v<RowMessage>);

// Fills in magic and header checksum.
RowMessage SealFrame(RowMessage frame);
// errors: DataLoss for a damaged header or sizes that no sender writes.
absl::Status CheckFrame(const RowMessage& frame);

// True if the frame refers to bytes of a row; true if payload follows it.
bool IsAboutRow(const RowMessage& frame);
bool HasPayload(const RowMessage& frame);

// Waiting for the batches of a row queue where a wait is allowed.

// Copies of one arena take milliseconds: a GPU that needs longer than this does not answer.
inline constexpr absl::Duration kSettleTimeout = absl::Seconds(20);

// Until `batch` has ended. errors: DeadlineExceeded; Internal from the GPU.
absl::Status AwaitBatch(cuda::RowQueue& queue, int64_t batch, absl::Time deadline);

}  // namespace eplb
