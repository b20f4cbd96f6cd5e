#include "client/rows/row_message.h"

#include <bit>
#include <cstddef>
#include <span>

#include "absl/time/clock.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/wait_check.h"
#include "cuda/checksum.h"

namespace eplb {

namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kMagic = 0x5752'4c45;  // "ELRW"

uint64_t HeaderChecksum(const RowMessage& frame) {
  return cuda::ChecksumOnHost(
      std::as_bytes(std::span(&frame, 1)).first(offsetof(RowMessage, header_checksum)));
}

// The most bytes that a frame of a type may be about; negative for no type.
int64_t MaxBytes(const RowMessage& frame) {
  switch (frame.type) {
    case RowMessageType::kPosted:
    case RowMessageType::kEnded:
    case RowMessageType::kRegistered:
      return 0;
    case RowMessageType::kPiece:
      return kRowPieceBytes;
    case RowMessageType::kLanded:
    case RowMessageType::kComing:
      return frame.row_bytes;
    case RowMessageType::kMeet:
      return kMeetBytes;
  }
  return -1;
}

}  // namespace

RowMessage SealFrame(RowMessage frame) {
  frame.magic = kMagic;
  frame.header_checksum = HeaderChecksum(frame);
  return frame;
}

absl::Status CheckFrame(const RowMessage& frame) {
  if (frame.magic != kMagic || frame.header_checksum != HeaderChecksum(frame)) {
    return absl::DataLossError("received a damaged frame");
  }
  const bool meets = frame.type == RowMessageType::kMeet;
  if (frame.bytes < (meets ? kMeetBytes : 0) || frame.bytes > MaxBytes(frame)) {
    return absl::DataLossError("received a frame that no rank writes");
  }
  return absl::OkStatus();
}

bool IsAboutRow(const RowMessage& frame) {
  return frame.type == RowMessageType::kPiece || frame.type == RowMessageType::kLanded ||
         frame.type == RowMessageType::kComing;
}

bool HasPayload(const RowMessage& frame) {
  return frame.type == RowMessageType::kPiece || frame.type == RowMessageType::kMeet;
}

absl::Status AwaitBatch(cuda::RowQueue& queue, int64_t batch, absl::Time deadline) {
  constexpr absl::Duration kBetweenLooks = absl::Microseconds(20);
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const bool ended, queue.Ended(batch));
    if (ended) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("row copies have not ended before the deadline");
    }
    absl::SleepFor(kBetweenLooks);
    (void)CheckWait();  // a failed one ends the next vote
  }
}

}  // namespace eplb
