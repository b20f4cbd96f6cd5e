#include "client/migration/row_frame.h"

#include <bit>
#include <cstddef>
#include <span>

#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/control/monotonic_clock.h"
#include "cuda/checksum.h"

namespace eplb {

namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr uint32_t kMagic = 0x5752'4c45;  // "ELRW"

uint64_t HeaderChecksum(const RowFrame& frame) {
  return cuda::ChecksumOnHost(
      std::as_bytes(std::span(&frame, 1)).first(offsetof(RowFrame, header_checksum)));
}

// The most bytes that a frame of a type may be about; negative for no type.
int64_t MaxBytes(const RowFrame& frame) {
  switch (frame.type) {
    case RowFrameType::kPosted:
    case RowFrameType::kEnded:
      return 0;
    case RowFrameType::kPiece:
      return kRowPieceBytes;
    case RowFrameType::kLanded:
    case RowFrameType::kComing:
      return frame.row_bytes;
    case RowFrameType::kMeet:
      return kMeetBytes;
  }
  return -1;
}

}  // namespace

RowFrame SealFrame(RowFrame frame) {
  frame.magic = kMagic;
  frame.header_checksum = HeaderChecksum(frame);
  return frame;
}

absl::Status CheckFrame(const RowFrame& frame) {
  if (frame.magic != kMagic || frame.header_checksum != HeaderChecksum(frame)) {
    return absl::DataLossError("a damaged frame came");
  }
  const bool meets = frame.type == RowFrameType::kMeet;
  if (frame.bytes < (meets ? kMeetBytes : 0) || frame.bytes > MaxBytes(frame)) {
    return absl::DataLossError("a frame came that no rank writes");
  }
  return absl::OkStatus();
}

bool IsAboutRow(const RowFrame& frame) {
  return frame.type == RowFrameType::kPiece || frame.type == RowFrameType::kLanded ||
         frame.type == RowFrameType::kComing;
}

bool HasPayload(const RowFrame& frame) {
  return frame.type == RowFrameType::kPiece || frame.type == RowFrameType::kMeet;
}

absl::Status AwaitBatch(cuda::RowQueue& queue, int64_t batch, absl::Time deadline) {
  constexpr absl::Duration kBetweenLooks = absl::Microseconds(20);
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const bool ended, queue.Ended(batch));
    if (ended) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("row copies have not ended in time");
    }
    absl::SleepFor(kBetweenLooks);
  }
}

}  // namespace eplb
